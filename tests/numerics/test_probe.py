"""Linear probes against scikit-learn's own pipeline, scipy on the objective, and stored readings."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, special
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from service.numerics.probe import (
    GRID,
    Fitted,
    Solver,
    at_once,
    choose,
    fit,
    mean_recall,
    standardised,
)

Array = NDArray[Any]
MODELS = ["minilm", "minilm_int8", "e5small_q4", "use_multilingual"]
RANDOM = np.random.default_rng(80)


def blobs(n: int, classes: int, d: int = 6, apart: float = 1.0) -> tuple[Array, Array]:
    codes = RANDOM.integers(0, classes, n)
    centres = apart * RANDOM.normal(size=(classes, d))
    return centres[codes] + RANDOM.normal(size=(n, d)) * np.geomspace(3, 0.01, d), codes


X, Y = blobs(240, 4)
Z, ZY = blobs(90, 4)
TWO = (Y > 1).astype(np.int64)


def pipeline(**settings: Any) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(**settings))


@pytest.mark.parametrize("model", MODELS)
def test_the_probe_of_the_reference_is_reproduced(
    model: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """An independent script, with its settings: C = 1 and scikit-learn's own tolerance."""
    x = rows(f"clinc150/{model}")
    train = np.array(column("clinc150", "split")) == "train"
    _, codes = np.unique(column("clinc150", "intent"), return_inverse=True)
    fitted = fit(x[train], codes[train], x[~train], 1.0, Solver(1e-4, 2000))
    wanted = reference["clinc150"][model]["compression"]["native"]["probe_balanced_accuracy"]
    assert mean_recall(codes[~train], fitted.predicted) == printed(wanted)
    assert fitted.converged


@pytest.mark.parametrize("c", GRID)
@pytest.mark.parametrize("codes", [Y, TWO], ids=["four classes", "two classes"])
def test_predictions_are_those_of_a_plain_pipeline(c: float, codes: Array) -> None:
    """scikit-learn's pipeline, fitted on the same rows as they are."""
    fitted = fit(X, codes, Z, c)
    plain = pipeline(C=c, tol=1e-8, max_iter=5000).fit(X, codes)
    assert fitted.predicted.tolist() == plain.predict(Z).tolist()
    assert fitted.train_accuracy == plain.score(X, codes)
    assert fitted.n_iter == plain[-1].n_iter_[0]
    assert fitted.c == c


@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
def test_the_objective_is_minimised(c: float) -> None:
    """scipy's Newton method on the log loss of one-hot codes, written out."""
    (x, z), _ = standardised(X, Z)
    n, d = x.shape
    hot = np.eye(4)[Y]

    def loss(theta: Array) -> float:
        w, b = theta[:-4].reshape(4, d), theta[-4:]
        scores = x @ w.T + b
        log = special.logsumexp(scores, axis=1) - (scores * hot).sum(axis=1)
        return float(log.sum() + (w * w).sum() / (2 * c))

    def slope(theta: Array) -> Array:
        w, b = theta[:-4].reshape(4, d), theta[-4:]
        left = special.softmax(x @ w.T + b, axis=1) - hot
        return np.concatenate([(left.T @ x + w / c).ravel(), left.sum(axis=0)])

    found = optimize.minimize(loss, np.zeros(4 * d + 4), jac=slope, method="trust-constr",
                              options={"gtol": 1e-9, "maxiter": 5000})  # fmt: skip
    w, b = found.x[:-4].reshape(4, d), found.x[-4:]
    fitted = fit(X, Y, Z, c)
    assert fitted.predicted.tolist() == (z @ w.T + b).argmax(axis=1).tolist()
    assert fitted.train_accuracy == np.mean((x @ w.T + b).argmax(axis=1) == Y)
    assert np.abs(slope(found.x)).max() / n < 1e-8


@pytest.mark.parametrize("codes", [Y, TWO], ids=["four classes", "two classes"])
@pytest.mark.parametrize("max_iter", [1, 3, 5000])
def test_the_gradient_is_the_largest_difference_quotient_of_the_loss(
    codes: Array, max_iter: int
) -> None:
    """Central differences of the mean penalised loss at scikit-learn's coefficients."""
    c = 0.3
    fitted = fit(X, codes, Z, c, Solver(1e-8, max_iter))
    (x,), _ = standardised(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=c, tol=1e-8, max_iter=max_iter).fit(x, codes)
    w, b = model.coef_, model.intercept_

    def loss(w: Array, b: Array) -> float:
        scores = x @ w.T + b
        if len(w) == 1:
            scores = np.hstack([0 * scores, scores])
        log = special.logsumexp(scores, axis=1) - scores[np.arange(len(x)), codes]
        return float(log.mean() + (w * w).sum() / (2 * c * len(x)))

    step = 1e-5
    slopes = []
    for i in np.ndindex(w.shape):
        e = np.zeros_like(w)
        e[i] = step
        slopes.append((loss(w + e, b) - loss(w - e, b)) / (2 * step))
    slopes += [(loss(w, b + e) - loss(w, b - e)) / (2 * step) for e in step * np.eye(len(b))]
    assert fitted.gradient == pytest.approx(np.abs(slopes).max(), rel=1e-4, abs=1e-8)


def test_how_the_optimiser_ended_is_said() -> None:
    """By construction: enough iterations, one, and a tolerance below the rounding of the loss."""
    enough = fit(X, Y, Z, 1.0)
    assert (enough.stop, enough.converged) == ("gradient", True)
    assert enough.gradient <= 1.000001e-8
    one = fit(X, Y, Z, 1.0, Solver(1e-8, 1))
    assert (one.stop, one.converged, one.n_iter) == ("iterations", False, 1)
    finer = fit(X, Y, Z, 1.0, Solver(1e-15, 5000))
    assert (finer.stop, finer.converged) == ("loss", True)
    assert 1e-15 < finer.gradient < 1e-6


def test_a_fit_that_stops_on_a_slope_has_not_converged() -> None:
    """So strong a penalty that one small step ends the fit far from the bottom."""
    found = fit(X, Y, Z, 1e-12)
    assert (found.stop, found.converged) == ("loss", False)
    assert found.gradient > 1e-4
    for gradient, flat in ((1e-6, True), (1.1e-6, False), (np.inf, False), (np.nan, False)):
        one = dataclasses.replace(found, gradient=gradient)
        assert one.converged is flat


def test_small_features_do_not_stop_the_optimiser_at_zero() -> None:
    """scikit-learn's tolerance on rows of scale 1e-3 is met at once, and chance is read in silence."""
    rng = np.random.default_rng(81)
    codes, others = rng.integers(0, 4, 400), rng.integers(0, 4, 200)
    centres = 2 * rng.normal(size=(4, 8))
    x, z = (1e-3 * (centres[y] + rng.normal(size=(len(y), 8))) for y in (codes, others))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        silent = LogisticRegression(tol=1e-4).fit(x, codes)
    assert silent.score(x, codes) <= np.bincount(codes).max() / len(codes)
    assert balanced_accuracy_score(others, silent.predict(z)) == pytest.approx(0.25, abs=0.1)
    found, plain = fit(x, codes, z, 1.0), fit(1e3 * x, codes, 1e3 * z, 1.0)
    assert found.predicted.tolist() == plain.predicted.tolist()
    assert mean_recall(others, found.predicted) > 0.8


@given(scale=st.floats(-300, 290), shift=st.floats(-5, 5), seed=st.integers(0, 20))
def test_columns_of_any_size_and_place_give_the_same_answer(
    scale: float, shift: float, seed: int
) -> None:
    """Compared with itself after another scale and shift of each column."""
    rng = np.random.default_rng(seed)
    factor = 10.0 ** (scale + rng.uniform(-3, 3, X.shape[1]))
    moved = [factor * (x + shift) for x in (X[:100], Z)]
    one, other = fit(X[:100], Y[:100], Z, 1.0), fit(moved[0], Y[:100], moved[1], 1.0)
    assert one.predicted.tolist() == other.predicted.tolist()


def test_standardised_rows_are_scikit_learns_and_constant_columns_are_counted() -> None:
    """StandardScaler on the rows as they are."""
    x, z = X.copy(), Z.copy()
    x[:, 2] = z[:, 2] = 0.1
    (a, b), constant = standardised(x, z)
    scaler = StandardScaler().fit(x)
    assert constant == 1
    assert a == pytest.approx(scaler.transform(x), abs=1e-12)
    assert b == pytest.approx(scaler.transform(z), abs=1e-12)


def test_a_row_far_beyond_the_train_rows_has_an_answer() -> None:
    """A column that overflows in units of its spread."""
    x = np.array([[1e-200], [2e-200], [3e-200], [4e-200]])
    found = fit(x, np.array([0, 0, 1, 1]), np.array([[1e300], [-1e300]]), 1.0)
    assert found.predicted.tolist() == [1, 0]


def test_rows_are_written_over_only_where_they_may_be() -> None:
    """Copies; the same answer either way."""
    x, z = X.copy(), Z.copy()
    one = fit(x, Y, z, 1.0)
    assert np.array_equal(x, X)
    assert np.array_equal(z, Z)
    assert same(one, fit(x, Y, z, 1.0, reuse=True))
    assert not np.array_equal(x, X)


def test_codes_may_be_any_integers_and_unseen_ones_are_never_given() -> None:
    """The same fit by other names."""
    named = np.array([7, 3, 40, 12])[Y]
    found = fit(X, named, Z, 1.0)
    names = np.array([3, 7, 12, 40])
    again = fit(X, np.searchsorted(names, named), Z, 1.0)
    assert found.predicted.tolist() == names[again.predicted].tolist()


def mean_scores(x: Array, y: Array, z: Array, zy: Array) -> list[float]:
    return [
        balanced_accuracy_score(zy, pipeline(C=c, tol=1e-8, max_iter=5000).fit(x, y).predict(z))
        for c in GRID
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_strength_that_recalls_most_is_chosen(seed: int) -> None:
    """scikit-learn's balanced accuracy of a plain pipeline for each C, the first of the best."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, 120)
    x = np.eye(3)[codes] @ rng.normal(size=(3, 30)) + 2.5 * rng.normal(size=(120, 30))
    told: list[tuple[int, int]] = []
    tried, best = choose(
        x[:80], codes[:80], x[80:], codes[80:], GRID, Solver(), 2, lambda *step: told.append(step)
    )
    wanted = mean_scores(x[:80], codes[:80], x[80:], codes[80:])
    assert [one.score for one in tried] == pytest.approx(wanted)
    assert best == int(np.argmax(np.array(wanted) >= max(wanted) - 1e-9))
    assert [one.fitted.c for one in tried] == list(GRID)
    assert told == [(i, len(GRID)) for i in range(1, len(GRID) + 1)]


def test_the_smallest_strength_wins_among_equals() -> None:
    """Rows so far apart that every strength is right."""
    x = np.repeat(np.eye(3), 10, axis=0) * 100 + RANDOM.normal(size=(30, 3))
    codes = np.repeat(np.arange(3), 10)
    tried, best = choose(x, codes, x, codes, GRID, Solver(), 1, lambda done, total: None)
    assert {one.score for one in tried} == {1.0}
    assert best == 0


def test_blas_has_one_thread_while_a_probe_runs() -> None:
    """Asked of every library that is loaded, between two fits."""
    found: list[Any] = []
    with threadpool_limits(limits=2):
        choose(X, Y, Z, ZY, GRID, Solver(), 2, lambda done, total: found.extend(threadpool_info()))
    counts = {one["num_threads"] for one in found if one["user_api"] == "blas"}
    assert counts == {1}


def same(one: Fitted, other: Fitted) -> bool:
    return (one.predicted.tolist(), one.n_iter, one.gradient, one.train_accuracy) == (
        other.predicted.tolist(), other.n_iter, other.gradient, other.train_accuracy,
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_change_no_bit(threads: int) -> None:
    """Compared with fits one after another."""
    tried, _ = choose(X, Y, Z, ZY, GRID, Solver(), threads, lambda done, total: None)
    assert all(same(one.fitted, fit(X, Y, Z, c)) for c, one in zip(GRID, tried, strict=True))


@pytest.mark.parametrize(
    ("n", "d", "labels", "threads", "wanted"),
    [
        (100, 10, 5, 8, 8),
        (16_000, 16, 800, 8, 2),
        (16_000, 16, 1_000, 8, 2),
        (16_000, 16, 1_038, 8, 2),
        (8_000, 8, 1_038, 8, 4),
        (16_000, 16, 1_039, 1, 1),
        (50_000, 4096, 900, 16, 1),
    ],
)
def test_so_many_strengths_are_fitted_at_once_as_memory_holds(
    n: int, d: int, labels: int, threads: int, wanted: int
) -> None:
    """Cells of all threads are no more than of two with the most labels; one thread more is not."""
    assert at_once(n, d, labels, threads) == wanted
    cells = labels * (n + 10 * d)
    assert wanted == 1 or wanted * cells <= 2 * 2**24
    assert wanted == threads or (wanted + 1) * cells > 2 * 2**24


def test_strengths_are_chosen_by_so_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for four fits of four labels."""
    used: list[int] = []

    def counted(function: Callable[[Any], Any], items: Any, threads: int) -> Any:
        used.append(threads)
        return map(function, items)

    monkeypatch.setattr("service.numerics.probe.ordered_map", counted)
    monkeypatch.setattr("service.numerics.probe.MOST_CELLS", 2 * 4 * (240 + 10 * 6))
    choose(X, Y, Z, ZY, GRID[:2], Solver(), 8, lambda done, total: None)
    assert used == [4]


@given(codes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40))
def test_mean_recall_is_balanced_accuracy(codes: list[tuple[int, int]]) -> None:
    """scikit-learn."""
    truth, predicted = (np.array(column) for column in zip(*codes, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = balanced_accuracy_score(truth, predicted)
    assert mean_recall(truth, predicted) == pytest.approx(wanted)


def test_scikit_learn_is_not_imported_before_a_probe_runs() -> None:
    """A fresh process that imports everything a server or a worker does."""
    code = (
        "import sys, api.main, workers.main, workers.tasks, workers.commands, service.numerics.probe;"
        "print('sklearn' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
