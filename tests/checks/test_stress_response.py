"""Stress response against damaged matrices: numpy, sorted cosines, scikit-learn's own probe."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.stats import ortho_group
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from service.check import Context
from service.checks.stress_response import stress_response
from service.dataset import Dataset, Labels
from service.errors import DimensionMismatch, InvalidRequest, MissingLabels, TooFewRows
from service.gating import read_gate, run_gate
from service.numerics.damages import noisy, unit_direction
from service.numerics.probe import Solver, fit
from service.operations import Services, perform, submit
from service.request import parse_request
from tests.stored_by_hand import top, unit

Array = NDArray[Any]
N, D, SEED = 60, 9, 3
RANDOM = np.random.default_rng(50)
CENTRES = 1.2 * RANDOM.normal(size=(4, D))
KINDS, TRAIN_KINDS = RANDOM.integers(0, 4, N), RANDOM.integers(0, 4, 90)
SHAPE = np.linspace(1.5, 0.3, D)
X = (CENTRES[KINDS] + RANDOM.normal(size=(N, D))) * SHAPE + 0.3
TRAIN = (CENTRES[TRAIN_KINDS] + RANDOM.normal(size=(90, D))) * SHAPE + 0.3
LABELS = [f"l{kind}" for kind in KINDS]
TRAIN_LABELS = [f"l{kind}" for kind in TRAIN_KINDS]
GROUPS = (np.arange(N) % 12).tolist()
DAMAGES = ("contraction", "offset", "rank_restriction", "noise", "mean_interpolation")
SEVERITIES = (0.25, 0.5, 0.75, 0.9, 0.99)
K = 5
MODELS = ("minilm", "e5small_q4")


def hurt(x: Array, train: Array, damage: str, s: float, on: str = "damage noise") -> Array:
    """Rows after a damage, in all dimensions; only what is drawn at random comes from the service."""
    x, train = np.asarray(x, np.float64), np.asarray(train, np.float64)
    if damage == "contraction":
        return (1 - s) * x
    if damage == "offset":
        return x + unit_direction(x.shape[1], SEED) * np.linalg.norm(train, axis=1).mean() * s / (
            1 - s
        )
    if damage == "mean_interpolation":
        return (1 - s) * x + s * train.mean(axis=0)
    if damage == "rank_restriction":
        _, _, directions = np.linalg.svd(train, full_matrices=False)
        kept = directions[: max(1, round(min(train.shape) * (1 - s)))]
        return np.asarray(x @ kept.T @ kept)
    return np.asarray(noisy(x, train.std() * s / (1 - s), np.float64, SEED, on, 1))


def neighbours(x: Array, k: int) -> Array:
    scores = unit(x) @ unit(x).T
    np.fill_diagonal(scores, -np.inf)
    return top(scores, k)


def readings(y: Array) -> dict[str, float]:
    """Every geometry measure the plain way."""
    n = len(y)
    z = unit(y)
    cosines = (z @ z.T)[~np.eye(n, dtype=bool)]
    variances = np.clip(np.linalg.eigvalsh(np.cov(y.T)), 0, None)[::-1]
    lengths = np.linalg.norm(y, axis=1)

    def rankme(x: Array) -> float:
        values = np.linalg.svd(x, compute_uv=False)
        p = values / values.sum() + 1e-7
        return float(np.exp(-(p * np.log(p)).sum()))

    by_dimension = y.var(axis=0)
    return {
        "dispersion_v": float(((z - z.mean(axis=0)) ** 2).sum() / n),
        "mean_resultant_length": float(np.linalg.norm(z.mean(axis=0))),
        "anisotropy": float(cosines.mean()),
        "anisotropy_sd": float(cosines.std()),
        "total_variance": float(np.trace(np.cov(y.T))),
        "norm_median": float(np.median(lengths)),
        "norm_cv": float(lengths.std() / lengths.mean()),
        "largest_over_mean": float(by_dimension.max() / by_dimension.mean()),
        "participation_ratio": float(variances.sum() ** 2 / (variances**2).sum()),
        "stable_rank": float((y**2).sum() / np.linalg.norm(y, 2) ** 2),
        "rankme": rankme(y),
        "rankme_centred": rankme(y - y.mean(axis=0)),
        "dimensions_90": float(
            np.searchsorted(np.cumsum(variances) / variances.sum(), 0.9 - 1e-12) + 1
        ),
    }


def number(found: Any, name: str) -> float:
    value = getattr(found, name)
    return float(value.estimate if hasattr(value, "estimate") else value)


def same_label(found: Array, labels: list[str]) -> Array:
    return np.array([np.mean([labels[j] == labels[i] for j in row]) for i, row in enumerate(found)])


def shares(before: Array, after: Array) -> Array:
    k = before.shape[1]
    return np.array([len(set(a) & set(b)) / k for a, b in zip(before, after, strict=True)])


def names(damage: str) -> list[tuple[str, float]]:
    return [(f"{damage}_{100 * s:g}", s) for s in SEVERITIES]


@pytest.fixture(scope="module")
def whole(run: Callable[..., Any]) -> Any:
    """All conditions of the small rows."""
    got, _ = run(
        stress_response, vectors=X, train=TRAIN, labels=LABELS, train_labels=TRAIN_LABELS,
        seed=SEED, threads=2, params={"k": K},
    )  # fmt: skip
    return got


@pytest.fixture(scope="module")
def real(
    run: Callable[..., Any],
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
) -> Callable[[str], tuple[Any, Array, Array, list[str]]]:
    """All conditions but probes on real rows: test rows damaged by what train rows say."""
    found: dict[str, Any] = {}
    split = np.array(column("clinc150", "split")) == "train"
    labels = np.array(column("clinc150", "intent"))[~split].tolist()

    def read(model: str) -> tuple[Any, Array, Array, list[str]]:
        x = rows(f"clinc150/{model}")
        if model not in found:
            found[model], _ = run(
                stress_response, vectors=x[~split], train=x[split], labels=labels, seed=SEED,
                threads=2,
            )  # fmt: skip
        return found[model], x[~split], x[split], labels

    return read


@pytest.mark.parametrize("damage", ["native", *DAMAGES])
def test_every_geometry_measure_is_that_of_the_damaged_matrix(whole: Any, damage: str) -> None:
    """numpy on rows that were damaged in all dimensions, nothing derived."""
    states = [("native", 0.0)] if damage == "native" else names(damage)
    for name, severity in states:
        found = whole.native if damage == "native" else whole.conditions[name]
        y = X if damage == "native" else hurt(X, TRAIN, damage, severity)
        wanted = readings(y)
        for measure, value in wanted.items():
            # one direction left: cosines are +-1, and the closed-form sd is good to 1e-7
            assert number(found, measure) == pytest.approx(value, rel=1e-7, abs=1e-9), (
                name,
                measure,
            )


@pytest.mark.parametrize("damage", DAMAGES)
def test_neighbours_and_labels_are_those_of_sorted_cosines(whole: Any, damage: str) -> None:
    """Whole matrices and Python sets, for contraction too, which the check does not search again."""
    before = neighbours(X, K)
    hits = same_label(before, LABELS)
    assert whole.native.label_precision[K].estimate == pytest.approx(hits.mean())
    for name, severity in names(damage):
        found, after = whole.conditions[name], neighbours(hurt(X, TRAIN, damage, severity), K)
        if damage == "rank_restriction" and round(D * (1 - severity)) <= 1:
            assert found.unresolved > 0  # on a line every cosine is +-1: ties
            continue
        share = shares(before, after)
        assert found.overlap[K].estimate == pytest.approx(share.mean()), name
        assert found.changed.estimate == pytest.approx((share < 1).mean())
        precision = same_label(after, LABELS)
        assert found.label_precision[K].estimate == pytest.approx(precision.mean())
        macro = np.mean([precision[np.array(LABELS) == label].mean() for label in set(LABELS)])
        assert found.label_precision_macro[K].estimate == pytest.approx(macro)
        change = found.label_precision_change[K].estimate
        assert change == pytest.approx(precision.mean() - hits.mean(), abs=1e-12)
        assert found.unresolved == 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_probe_is_scikit_learns_on_damaged_rows(whole: Any, damage: str) -> None:
    """Fitted anew under every damage, also where the check takes the one of the rows as given."""
    for name, severity in [("native", 0.0), *names(damage)]:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=1, tol=1e-8, max_iter=5000))
        train, x = TRAIN, X
        if severity:
            train = hurt(TRAIN, TRAIN, damage, severity, "damage noise on train")
            x = hurt(X, TRAIN, damage, severity)
        predicted = model.fit(train, TRAIN_LABELS).predict(x)
        found = whole.conditions[name] if severity else whole.native
        accuracy = np.mean(predicted == np.array(LABELS))
        assert found.probe_accuracy.estimate == pytest.approx(accuracy), name
        assert found.probe_balanced_accuracy.estimate == pytest.approx(
            balanced_accuracy_score(LABELS, predicted)
        )
        assert found.probe_train_accuracy == pytest.approx(model.score(train, TRAIN_LABELS))
        assert found.probe_converged is True
        if severity:
            change = accuracy - whole.native.probe_accuracy.estimate
            assert found.probe_accuracy_change.estimate == pytest.approx(change, abs=1e-12)


def test_probes_run_one_at_a_time_whatever_the_threads(run: Callable[..., Any]) -> None:
    """Two at once would hold their features together, and leave each other's silence behind."""
    running = most = 0
    lock = threading.Lock()

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        found = fit(*args, **more)
        with lock:
            running -= 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        module = import_module("service.checks.stress_response.probing")
        patch.setattr(module, "fit", counted)
        run(
            stress_response, vectors=X, train=TRAIN, labels=LABELS, train_labels=TRAIN_LABELS,
            params={"damages": ["noise"]}, threads=4,
        )  # fmt: skip
    assert most == 1


def test_a_probe_that_does_not_standardise_sees_contraction(whole: Any) -> None:
    """scikit-learn without a scaler, on the rows of a contraction that ours cannot tell."""
    plain = LogisticRegression(C=1, tol=1e-8, max_iter=5000)
    as_given = plain.fit(TRAIN, TRAIN_LABELS).score(X, LABELS)
    contracted = plain.fit(0.01 * TRAIN, TRAIN_LABELS).score(0.01 * X, LABELS)
    assert contracted < as_given - 0.05
    found = whole.conditions["contraction_99"]
    assert found.probe_accuracy == whole.native.probe_accuracy
    assert any("does not standardise" in line for line in stress_response.scope)


def test_floors_are_what_random_neighbours_and_blind_guesses_reach(whole: Any) -> None:
    """All pairs enumerated; the commonest train label given to every row."""
    labels = np.array(LABELS)
    pairs = (labels[:, None] == labels[None, :])[~np.eye(N, dtype=bool)]
    assert whole.label_floor == pytest.approx(pairs.mean())
    sizes = np.array([(labels == label).sum() for label in set(LABELS)])
    assert whole.label_floor_macro == pytest.approx(((sizes - 1) / (N - 1)).mean())
    commonest = max(set(TRAIN_LABELS), key=TRAIN_LABELS.count)
    assert whole.probe_floor == pytest.approx((labels == commonest).mean())
    assert whole.probe_floor_balanced == pytest.approx(1 / 4)
    assert whole.classes == whole.probe_classes == 4
    assert any("(a blind guess at most 0.2500)" in line for line in whole.readings())
    assert whole.overlap_chance == pytest.approx(K / (N - 1))


def test_intervals_leave_out_groups(
    run: Callable[..., Any], t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Jackknife-t by hand on the damaged matrix; a change never has an interval without width."""
    got, _ = run(
        stress_response, vectors=X, train=TRAIN, labels=LABELS, groups=GROUPS, seed=SEED,
        params={"k": K, "severities": [0.5], "damages": ["contraction", "noise"]},
    )  # fmt: skip
    units = np.array(GROUPS)
    for name in ("contraction", "noise"):
        y, found = hurt(X, TRAIN, name, 0.5), got.conditions[f"{name}_50"]
        for measure, statistic in (
            ("total_variance", lambda kept, y=y: float(np.trace(np.cov(y[kept].T)))),
            ("anisotropy", lambda kept, y=y: readings(y[kept])["anisotropy"]),
            ("dispersion_v", lambda kept, y=y: readings(y[kept])["dispersion_v"]),
        ):
            interval = getattr(found, measure).interval
            low, high = t_interval(statistic, units)
            assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))
            assert (interval.unit, interval.resamples) == ("group", 12)
    unmoved = got.conditions["contraction_50"].label_precision_change[K]
    assert unmoved.estimate == 0
    assert unmoved.interval.low < 0 < unmoved.interval.high


@pytest.mark.parametrize("model", MODELS)
def test_contraction_of_real_rows_moves_variance_and_nothing_else(
    model: str, real: Callable[[str], Any]
) -> None:
    """Closed form: variance times (1 - s)^2. The neighbours of contracted rows are sorted anew."""
    got, x, _, _ = real(model)
    for name, severity in names("contraction"):
        found = got.conditions[name]
        variance = got.native.total_variance.estimate * (1 - severity) ** 2
        assert found.total_variance.estimate == pytest.approx(variance, rel=1e-12)
        for measure in ("participation_ratio", "rankme", "rankme_centred", "stable_rank"):
            assert number(found, measure) == pytest.approx(number(got.native, measure), rel=1e-12)
        assert number(found, "anisotropy") == pytest.approx(number(got.native, "anisotropy"))
        assert found.label_precision == got.native.label_precision
        assert found.overlap[10].estimate == 1
    before, after = (neighbours(y.astype(np.float64), 10) for y in (x, 0.01 * x.astype(np.float64)))
    assert np.array_equal(before, after)
    moving = {r.instrument for r in got.responses
              if r.damage == "contraction" and r.direction != "unchanged"}  # fmt: skip
    assert moving == {"total_variance", "norm_median"}


@pytest.mark.parametrize("model", MODELS)
def test_an_offset_of_real_rows_leaves_variance_and_pulls_rankme_to_one(
    model: str, real: Callable[[str], Any]
) -> None:
    """Closed form: centring removes it. RankMe falls at every step; cosines go to one."""
    got, x, train, labels = real(model)
    series = [got.native, *(got.conditions[name] for name, _ in names("offset"))]
    rankme = [found.rankme for found in series]
    assert all(later < earlier for earlier, later in itertools.pairwise(rankme))
    assert 1 < rankme[-1] < 3.1
    for measure in ("participation_ratio", "total_variance", "rankme_centred"):
        values = [number(found, measure) for found in series]
        assert values == pytest.approx([values[0]] * 6, rel=1e-9)
    assert number(series[-1], "anisotropy") > 0.9998
    y = hurt(x, train, "offset", 0.99)
    after = neighbours(y, 10)
    assert number(series[-1], "rankme") == pytest.approx(readings(y)["rankme"], rel=1e-9)
    precision = same_label(after, labels).mean()
    assert series[-1].label_precision[10].estimate == pytest.approx(precision, abs=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_noise_on_real_rows_widens_the_spectrum_while_labels_go_to_their_floor(
    model: str, real: Callable[[str], Any]
) -> None:
    """The noise alone has variance d sd^2 (s / (1 - s))^2, and the floor is inside the interval."""
    got, _, train, _ = real(model)
    series = [got.native, *(got.conditions[name] for name, _ in names("noise"))]
    for measure in ("rankme", "participation_ratio"):
        values = [number(found, measure) for found in series]
        assert all(later > earlier for earlier, later in itertools.pairwise(values))
    precision = [found.label_precision[10].estimate for found in series]
    assert all(later < earlier for earlier, later in itertools.pairwise(precision))
    last = series[-1].label_precision[10].interval
    assert last.low < got.label_floor < last.high
    drawn = 384 * (99 * train.astype(np.float64).std()) ** 2
    assert number(series[-1], "total_variance") == pytest.approx(drawn, rel=0.01)


@pytest.mark.parametrize("model", MODELS)
def test_restricted_real_rows_are_those_of_numpys_svd(
    model: str, real: Callable[[str], Any]
) -> None:
    """In all dimensions, float64; the check keeps coordinates in float32."""
    got, x, train, labels = real(model)
    before = neighbours(x.astype(np.float64), 10)
    for name, severity in names("rank_restriction"):
        found, y = got.conditions[name], hurt(x, train, "rank_restriction", severity)
        wanted = readings(y)
        for measure, value in wanted.items():
            assert number(found, measure) == pytest.approx(value, rel=2e-6), (name, measure)
        after = neighbours(y, 10)
        share = shares(before, after)
        assert found.overlap[10].estimate == pytest.approx(share.mean(), abs=2e-4)
        precision = same_label(after, labels).mean()
        assert found.label_precision[10].estimate == pytest.approx(precision, abs=2e-4)


@pytest.mark.parametrize(("severity", "rankme"), [(0.99, 3.02), (0.999, 1.17)])
def test_an_offset_of_99_and_999_norms_has_the_published_rankme(
    severity: float,
    rankme: float,
    rows: Callable[[str], Array],
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Published for all MiniLM rows along the diagonal: 3.02 and 1.17."""
    x = rows("clinc150/minilm")
    monkeypatch.setattr(
        "service.numerics.damages.unit_direction", lambda d, seed: np.full(d, d**-0.5)
    )
    params = {"severities": [severity], "damages": ["offset"]}
    got, _ = run(stress_response, vectors=x, train=x, params=params, threads=2)
    (found,) = got.conditions.values()
    assert found.rankme == pytest.approx(rankme, abs=0.005)


def test_responses_say_what_the_conditions_say(whole: Any) -> None:
    """Recomputed from the conditions; the largest change, and whether steps have one sign."""
    seen = set()
    for one in whole.responses:
        name = one.instrument.removesuffix(f"@{K}")
        series = [whole.native, *(whole.conditions[c] for c, _ in names(one.damage))]
        values = np.array(
            [v[K].estimate if isinstance(v, dict) else number(f, name)
             for f in series for v in [getattr(f, name)]]
        )  # fmt: skip
        seen.add((one.damage, one.instrument))
        steps = np.diff(values)
        steps[np.abs(steps) <= 1e-9 * np.abs(values).max()] = 0
        wanted = (
            "unchanged" if not steps.any() else "rising" if (steps >= 0).all()
            else "falling" if (steps <= 0).all() else "mixed"
        )  # fmt: skip
        assert one.direction == wanted, one
        assert one.native == values[0]
        assert abs(one.furthest - values[0]) == pytest.approx(
            np.abs(values - values[0]).max(), abs=1e-9 * np.abs(values).max()
        )
        place = (0.0, *SEVERITIES).index(one.at)
        assert one.furthest == values[place]
        assert one.relative == pytest.approx(one.furthest / one.native - 1)
    assert {damage for damage, _ in seen} == set(DAMAGES)
    assert len(seen) == len(whole.responses) == 5 * 18


def test_readings_stand_beside_their_floors(whole: Any) -> None:
    text = " ".join(whole.readings())
    for damage in DAMAGES:
        assert f"`{damage}` from 0 to 0.99: total variance" in text
    assert f"{whole.overlap_chance:.4f} is chance" in text
    assert f"random neighbours {whole.label_floor:.4f}" in text
    assert f"the commonest label {whole.probe_floor:.4f}" in text
    assert "`offset` leaves unchanged: total_variance" in text


def test_another_seed_moves_noise_and_offset_alone(whole: Any, run: Callable[..., Any]) -> None:
    other, _ = run(
        stress_response, vectors=X, train=TRAIN, labels=LABELS, train_labels=TRAIN_LABELS,
        seed=SEED + 1, params={"k": K},
    )  # fmt: skip
    assert other.native == whole.native
    for name, found in whole.conditions.items():
        drawn = found.damage in ("noise", "offset")
        assert (other.conditions[name] == found) is not drawn, name


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6))
def test_axes_do_not_matter_where_nothing_is_drawn(seed: int) -> None:
    """A rotation of train and damaged rows."""
    turn = ortho_group.rvs(D, random_state=seed)
    params = {"k": K, "severities": [0.4, 0.8],
              "damages": ["contraction", "rank_restriction", "mean_interpolation"]}  # fmt: skip
    one, other = (
        stress_response.run(
            Context(),
            stress_response.inputs(vectors=Dataset(X @ way), train=Dataset(TRAIN @ way)),
            stress_response.params(**params),
        )
        for way in (np.eye(D), turn)
    )
    for name, found in one.conditions.items():
        turned = other.conditions[name]
        assert turned.overlap == found.overlap
        for measure in readings(X):
            if measure != "largest_over_mean":
                assert number(turned, measure) == pytest.approx(number(found, measure), rel=1e-7)


def test_names_are_in_percent_and_severities_each_once(run: Callable[..., Any]) -> None:
    got, _ = run(
        stress_response, vectors=X, train=TRAIN,
        params={"severities": [0.999, 0.5, 0.125, 0.5], "damages": ["contraction", "contraction"]},
    )  # fmt: skip
    assert list(got.conditions) == ["contraction_12_5", "contraction_50", "contraction_99_9"]
    for wrong in ([0.0], [1.0], [-0.5], [0.12345], [], [float("nan")]):
        with pytest.raises(ValidationError):
            stress_response.params(severities=wrong)


def test_rows_without_a_kept_direction_leave_directions_undefined(run: Callable[..., Any]) -> None:
    """Train rows in a plane, and two rows on the axis across it: cosines null, spectra not."""
    train = np.array([[2.0, 0, 0], [0, 1, 0], [1, 1, 0], [3, -1, 0]])
    x = np.vstack([np.random.default_rng(3).normal(size=(6, 3)), [[0, 0, 1.0], [0, 0, -2.0]]])
    params = {"k": 2, "severities": [0.3], "damages": ["rank_restriction"]}
    got, context = run(stress_response, vectors=x, train=train, params=params,
                       labels=["a", "b"] * 4)  # fmt: skip
    found = got.conditions["rank_restriction_30"]
    assert found.zero_rows == 2
    for name in ("dispersion_v", "anisotropy", "changed"):
        assert getattr(found, name).undefined["estimate"].code == "zero_rows"
    assert found.undefined["anisotropy_sd"].code == "zero_rows"
    assert found.overlap[2].undefined["estimate"].message.startswith("2 of 8 rows are zero")
    y = x * [1, 1, 0]
    assert found.total_variance.estimate == pytest.approx(np.trace(np.cov(y.T)))
    assert found.participation_ratio == pytest.approx(readings_of_spectrum(y))
    assert "rows_read_as_zero" in {warned.code for warned in context.warnings}


def readings_of_spectrum(y: Array) -> float:
    variances = np.linalg.eigvalsh(np.cov(y.T))
    return float(variances.sum() ** 2 / (variances**2).sum())


def test_a_row_that_meets_the_train_mean_halfway_is_zero(run: Callable[..., Any]) -> None:
    """Closed form: half of -m and half of m."""
    train = TRAIN / 3
    x = np.vstack([X, -train.mean(axis=0)])
    got, _ = run(stress_response, vectors=x, train=train,
                 params={"severities": [0.5, 0.75], "damages": ["mean_interpolation"]})  # fmt: skip
    assert got.conditions["mean_interpolation_50"].zero_rows == 1
    assert got.conditions["mean_interpolation_50"].anisotropy.estimate is None
    assert got.conditions["mean_interpolation_75"].zero_rows == 0
    assert got.conditions["mean_interpolation_75"].anisotropy.estimate is not None


@pytest.mark.parametrize(
    ("train", "damage", "code"),
    [
        (TRAIN[:, :2] @ RANDOM.normal(size=(2, D)), "rank_restriction", "too_few_directions"),
        (np.eye(D), "rank_restriction", "tied_directions"),
        (np.full((5, D), 0.1), "noise", "no_deviation"),
    ],
)
def test_a_damage_that_cannot_be_done_is_null_with_its_reason(
    train: Array, damage: str, code: str, run: Callable[..., Any]
) -> None:
    got, context = run(stress_response, vectors=X, train=train, labels=LABELS,
                       params={"severities": [0.5], "damages": [damage]})  # fmt: skip
    (found,) = got.conditions.values()
    for name in ("zero_rows", "rankme", "norm_median", "unresolved", "anisotropy_sd"):
        assert found.undefined[name].code == code
    assert found.overlap[10].undefined["estimate"].code == code
    assert found.total_variance.undefined["estimate"].code == code
    assert code in {warned.code for warned in context.warnings}
    assert got.responses == []
    assert "cannot be measured" in got.readings()[0]


def test_ties_are_said_of_every_state(run: Callable[..., Any]) -> None:
    """On a line every cosine is 1 or -1: which neighbours are taken is the order of the rows."""
    few = {"k": K, "severities": [0.99], "damages": ["rank_restriction", "noise"]}
    got, context = run(stress_response, vectors=X, train=TRAIN, params=few, seed=SEED)
    (warned,) = [one for one in context.warnings if one.code == "ties"]
    assert warned.where == "results/conditions/rank_restriction_99/unresolved"
    assert warned.message.startswith(
        f"`rank_restriction_99`: {got.conditions['rank_restriction_99'].unresolved} rows have a tie"
    )
    assert any("a tie at place 5" in line for line in got.readings())
    _, context = run(stress_response, vectors=np.repeat(X, 2, axis=0), train=TRAIN,
                     params=few | {"k": 2}, seed=SEED)  # fmt: skip
    assert "results/native/unresolved" in {one.where for one in context.warnings}


def test_a_probe_that_stops_on_a_slope_is_said_of_every_state(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slope is flat enough, and none falls to a tolerance below the rounding of the loss."""
    monkeypatch.setattr("service.numerics.probe.FLAT", 0.0)
    monkeypatch.setattr("service.numerics.probe.Solver", lambda: Solver(1e-15, 5000))
    few = {"k": K, "severities": [0.5], "damages": ["contraction"]}
    got, context = run(stress_response, vectors=X, train=TRAIN, labels=LABELS,
                       train_labels=TRAIN_LABELS, params=few)  # fmt: skip
    assert got.native.probe_converged is False
    assert [one.where for one in context.warnings if one.code == "not_converged"] == [
        "results/native/probe_converged",
        "results/conditions/contraction_50/probe_converged",
    ]


def test_rows_the_probe_was_fitted_on_are_counted_where_there_is_a_probe(
    run: Callable[..., Any],
) -> None:
    """Every row of `vectors` as `train` too, in another order; without labels there is no probe."""
    few = {"k": K, "severities": [0.5], "damages": ["contraction"]}
    order = np.arange(N)[::-1]
    train = np.concatenate([X[order], TRAIN])
    labels = [LABELS[row] for row in order] + TRAIN_LABELS
    got, context = run(
        stress_response, vectors=X, train=train, labels=LABELS, train_labels=labels, params=few
    )
    assert got.shared_rows == N
    (warned,) = (one for one in context.warnings if one.code == "tested_on_train_rows")
    assert warned.message.startswith(f"{N} of {N} rows")
    got, context = run(stress_response, vectors=X, train=train, labels=LABELS, params=few)
    assert got.undefined["shared_rows"].code == "no_train_labels"
    assert "tested_on_train_rows" not in {one.code for one in context.warnings}


def test_train_labels_without_labels_are_refused(
    run: Callable[..., Any], services: Services, store: Callable[..., Any]
) -> None:
    """On submission, and by the check itself."""
    request = {
        "kind": "stress_response",
        "inputs": {"vectors": {"dataset": store(X).id}, "train": {"dataset": store(TRAIN).id},
                   "train_labels": {"values": TRAIN_LABELS}},
        "params": {"k": K},
    }  # fmt: skip
    with pytest.raises(MissingLabels) as caught:
        submit(services, "default", parse_request(request))
    assert [fault.pointer for fault in caught.value.faults] == ["/inputs/labels"]
    with pytest.raises(MissingLabels):
        run(stress_response, vectors=X, train=TRAIN, train_labels=TRAIN_LABELS, params={"k": K})


def test_severity_0_is_said_to_be_native() -> None:
    with pytest.raises(ValidationError, match="always under `native`"):
        stress_response.params(severities=[0, 0.25])
    with pytest.raises(ValidationError, match="greater than 0"):
        stress_response.params(severities=[-0.25])


def test_labels_that_cannot_be_learnt_say_why(run: Callable[..., Any]) -> None:
    few = {"k": K, "severities": [0.5], "damages": ["contraction"]}

    def asked(**inputs: Any) -> tuple[Any, Any]:
        return run(stress_response, vectors=X, train=TRAIN, params=few, **inputs)

    got, _ = asked()
    assert got.native.label_precision[K].undefined["estimate"].code == "no_labels"
    assert got.undefined["label_floor"].code == got.undefined["classes"].code == "no_labels"
    got, _ = asked(labels=LABELS)
    assert got.native.probe_accuracy.undefined["estimate"].code == "no_train_labels"
    assert got.native.label_precision[K].estimate is not None
    got, _ = asked(labels=LABELS, train_labels=["l0"] * 90)
    assert got.conditions["contraction_50"].probe_accuracy.undefined["estimate"].code == "one_label"
    got, context = asked(labels=["new"] * 10 + LABELS[10:], train_labels=TRAIN_LABELS)
    (warned,) = context.warnings
    assert (warned.code, warned.message[:7]) == ("labels_not_in_train", "10 rows")
    got, _ = asked(labels=list(range(N)), train_labels=[i % 60 for i in range(90)])
    assert got.native.probe_accuracy.estimate is not None
    assert got.native.probe_balanced_accuracy.undefined["estimate"].code == "too_few_rows"
    assert any("the commonest label" in line for line in got.readings())
    assert got.undefined["label_floor_macro"].code == "too_few_rows"
    assert got.undefined["probe_floor_balanced"].code == "too_few_rows"


def test_labels_without_train_rows_count_in_accuracy_alone(run: Callable[..., Any]) -> None:
    """scikit-learn's recall by label, of the labels that could be given."""
    kept = TRAIN_KINDS != 0
    labels = np.array(TRAIN_LABELS)[kept]
    got, _ = run(
        stress_response, vectors=X, train=TRAIN[kept], labels=LABELS,
        train_labels=labels.tolist(),
        params={"k": K, "severities": [0.5], "damages": ["contraction"]},
    )  # fmt: skip
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1, tol=1e-8, max_iter=5000))
    predicted = model.fit(TRAIN[kept], labels).predict(X)
    right = predicted == np.array(LABELS)
    assert got.native.probe_accuracy.estimate == pytest.approx(right.mean())
    recalls = [right[kind == KINDS].mean() for kind in (1, 2, 3)]
    assert got.native.probe_balanced_accuracy.estimate == pytest.approx(np.mean(recalls))
    assert (got.classes, got.probe_classes) == (4, 3)
    assert got.probe_floor_balanced == pytest.approx(1 / 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(3))
def test_columns_that_rank_restriction_does_not_reach_tell_a_probe_nothing(
    run: Callable[..., Any], dtype: type[np.floating], seed: int
) -> None:
    """Every second column is zero: half the directions hold all of the rows, and nothing is lost."""
    rng = np.random.default_rng(seed)
    kinds, train_kinds = rng.integers(0, 4, 120), rng.integers(0, 4, 120)
    centres = rng.normal(size=(4, 16))
    x, train = (centres[c] + 1.5 * rng.normal(size=(120, 16)) for c in (kinds, train_kinds))
    x[:, ::2] = train[:, ::2] = 0
    got, _ = run(
        stress_response, vectors=x.astype(dtype), train=train.astype(dtype),
        labels=kinds.tolist(), train_labels=train_kinds.tolist(),
        params={"k": K, "severities": [0.5], "damages": ["rank_restriction"]},
    )  # fmt: skip
    found = got.conditions["rank_restriction_50"]
    assert found.overlap[K].estimate == 1
    assert found.probe_accuracy_change.estimate == 0
    assert found.probe_train_accuracy == got.native.probe_train_accuracy


def test_more_labels_than_fit_in_memory_are_not_learnt(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.numerics.probe.MOST_CELLS", 3 * (90 + 10 * D))
    got, _ = run(
        stress_response, vectors=X, train=TRAIN, labels=LABELS, train_labels=TRAIN_LABELS,
        params={"k": K, "severities": [0.5], "damages": ["contraction"]},
    )  # fmt: skip
    assert got.native.probe_accuracy.undefined["estimate"].code == "too_many_labels"
    assert got.native.label_precision[K].estimate is not None


def test_labels_of_train_rows_keep_their_type(run: Callable[..., Any]) -> None:
    """1 and "1" are two labels, whatever code each side gives them."""
    few = {"k": K, "severities": [0.5], "damages": ["contraction"], "min_support": 1}
    got, context = run(
        stress_response, vectors=X, train=TRAIN, params=few,
        labels=[int(kind) for kind in KINDS],
        train_labels=[3 - int(kind) if kind in (1, 2) else str(kind) for kind in TRAIN_KINDS],
    )  # fmt: skip
    absent = int(((KINDS == 0) | (KINDS == 3)).sum())
    assert [warned.message[:2] for warned in context.warnings] == [f"{absent}"]
    assert got.native.probe_accuracy.estimate < 0.3  # 1 and 2 were exchanged


def test_rows_near_the_ends_of_float32_are_kept_in_float64(run: Callable[..., Any]) -> None:
    """The largest and the smallest float32: nothing overflows, and no measure of shape moves."""
    params = {"k": K, "severities": [0.9]}
    given, _ = run(stress_response, vectors=X, train=TRAIN, seed=SEED, params=params)
    for factor in (1e37, 1e-36):
        got, _ = run(
            stress_response, seed=SEED, params=params, vectors=(X * factor).astype(np.float32),
            train=(TRAIN * factor).astype(np.float32),
        )  # fmt: skip
        for name, found in got.conditions.items():
            for measure in ("rankme", "participation_ratio", "anisotropy", "norm_cv"):
                wanted = number(given.conditions[name], measure)
                assert number(found, measure) == pytest.approx(wanted, rel=1e-5), (name, measure)


def test_a_refusal_says_where_and_what_to_do(services: Services, store: Callable[..., Any]) -> None:
    whole = {"dataset": store(X).id}

    def body(**inputs: Any) -> dict[str, Any]:
        return {"kind": "stress_response", "inputs": inputs}

    cases = [
        (TooFewRows, "/inputs/vectors", {"vectors": {"dataset": store(X[:9]).id}, "train": whole}),
        (TooFewRows, "/inputs/train", {"vectors": whole, "train": {"dataset": store(X[:1]).id}}),
        (DimensionMismatch, "/inputs/train",
         {"vectors": whole, "train": {"dataset": store(TRAIN[:, :7]).id}}),
    ]  # fmt: skip
    for error, pointer, inputs in cases:
        with pytest.raises(error) as caught:
            submit(services, "default", parse_request(body(**inputs)))
        assert pointer in [fault.pointer for fault in caught.value.faults]
    wrong = {**body(vectors=whole, train=whole), "params": {"severities": [0.12345]}}
    with pytest.raises(InvalidRequest):
        parse_request(wrong)


def test_rows_whose_squares_leave_float64_are_refused(run: Callable[..., Any]) -> None:
    for role, other in (("vectors", "train"), ("train", "vectors")):
        with pytest.raises(InvalidRequest) as caught:
            run(stress_response, **{role: X * 1e150, other: X})
        (fault,) = caught.value.faults
        assert fault.pointer == f"/inputs/{role}"
        assert "scale the rows" in fault.message


def test_a_gate_judges_conditions_by_name(services: Services, store: Callable[..., Any]) -> None:
    """A measure of a condition, a native one and a floor have paths of their own."""
    policy = {
        "version": 1,
        "name": "what-noise-leaves",
        "inputs": {"rows": "vectors", "fit": "vectors"},
        "checks": {
            "stress": {
                "kind": "stress_response",
                "inputs": {"vectors": "rows", "train": "fit"},
                "params": {"k": K, "severities": [0.5, 0.999]},
            }
        },
        "rules": [
            {"measure": f"stress.{path}", "at_least": bound}
            for path, bound in (
                (f"conditions.contraction_99_9.overlap@{K}", 0.9),
                (f"conditions.noise_99_9.overlap@{K}", 0.9),
                ("native.rankme", 1.5),
            )
        ],
    }
    given = {"rows": {"dataset": store(X).id}, "fit": {"dataset": store(TRAIN).id}}
    run = run_gate(services, "default", policy, given, {})
    for job in run.jobs.values():
        perform(services, job)
    judged = read_gate(services, "default", run.id)
    assert [rule.verdict for rule in judged.rules] == ["pass", "fail", "pass"]


def test_dropped_rows_take_their_labels_along(run: Callable[..., Any]) -> None:
    """Labels are read by row, in any order of levels."""
    params = {"k": K, "severities": [0.5], "damages": ["noise"], "min_support": 1}
    order = np.random.default_rng(9).permutation(N)
    one, _ = run(stress_response, vectors=X, train=TRAIN, labels=LABELS,
                 train_labels=TRAIN_LABELS, params=params)  # fmt: skip
    other = stress_response.run(
        Context(),
        stress_response.inputs(
            vectors=Dataset(X[order]),
            train=Dataset(TRAIN),
            labels=Labels.of([LABELS[i] for i in order]),
            train_labels=Labels.of(TRAIN_LABELS),
        ),
        stress_response.params(**params),
    )
    assert other.native.probe_accuracy.estimate == one.native.probe_accuracy.estimate
    precision = other.native.label_precision[K].estimate
    assert precision == pytest.approx(one.native.label_precision[K].estimate)
