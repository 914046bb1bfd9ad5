"""Linear probes: logistic regression on standardised rows, and how its optimiser ended."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from service.numerics.rows import Floats, Rows, blocks, ordered_map

Codes = NDArray[np.int64]
Stop = Literal["gradient", "loss", "iterations"]
GRID = tuple(10.0**power for power in range(-2, 6))
SMALLEST_C, LARGEST_C = 1e-9, 1e9
FLAT = 1e-6  # of the mean loss at most, where it cannot be lowered any more
MOST_CELLS = 1 << 24  # scores and gradients that take half a GiB while two threads compute
HISTORY = 10  # pairs of gradients that L-BFGS keeps
FARTHEST = 1e100  # of the train rows' largest: products with coefficients stay finite
TIED = 1e-12

R = TypeVar("R")


@dataclass(frozen=True)
class Solver:
    """
    When L-BFGS stops.

    Attributes
    ----------
    tol : float
        Largest partial derivative of the mean loss that is read as zero. scikit-learn's own 1e-4
        stops after 17 iterations on 2,100 rows of 60 classes, where 1e-8 takes 226 and another
        share of test rows is right.
    max_iter : int
    """

    tol: float = 1e-8
    max_iter: int = 5000


@dataclass(frozen=True)
class Fitted:
    """
    What a classifier that was fitted on some rows says of others.

    Attributes
    ----------
    c : float
        Inverse strength of the penalty.
    predicted : (m,) int64
        Code of each of the other rows; the lowest where codes tie.
    train_accuracy : float
        Share of the rows fitted on whose code it gives.
    n_iter : int
    gradient : float
        Largest partial derivative of the mean penalised loss, computed here from the coefficients.
    constant : int
        Columns that do not vary over the rows fitted on.
    stop : "gradient", "loss" or "iterations"
        The gradient fell to `tol`, one step lowered the loss by less than 64 eps, or iterations
        ran out.
    """

    c: float
    predicted: Codes
    train_accuracy: float
    n_iter: int
    gradient: float
    constant: int
    stop: Stop

    @property
    def converged(self) -> bool:
        """Whether it stopped where the loss is flat."""
        return self.stop == "gradient" or (self.stop == "loss" and self.gradient <= FLAT)


@dataclass(frozen=True)
class Tried:
    """One strength of the penalty, and the mean recall it reaches on rows that were held out."""

    fitted: Fitted
    score: float


def most_codes(n: int, d: int) -> int:
    """How many different codes of n train rows of d dimensions fit in memory at once."""
    return MOST_CELLS // (n + HISTORY * d)


def at_once(n: int, d: int, labels: int, threads: int) -> int:
    """Threads that fit in memory together, each with its scores and gradients."""
    return max(1, min(threads, 2 * MOST_CELLS // (labels * (n + HISTORY * d))))


def standardised(train: Rows, *others: Rows, reuse: bool = False) -> tuple[list[Floats], int]:
    """
    Columns with the mean and the variance of the train rows taken out, and how many do not vary.

    Columns are brought to about one by powers of two first, which changes no digit of what comes
    out and keeps squares in range.

    Parameters
    ----------
    train : (n, d) finite
    others : (m, d) finite
    reuse : bool
        Float64 rows may be written over, which saves a copy of them.

    Returns
    -------
    (rows, constant) : float64 arrays, `train` first
    """
    from sklearn.preprocessing import StandardScaler

    largest = np.maximum(train.max(axis=0).astype(float), -train.min(axis=0).astype(float))
    _, power = np.frexp(largest)
    scale = np.ldexp(1.0, -np.clip(power, -1000, 1000))
    scaler = StandardScaler(copy=False)
    found = [train.astype(np.float64, order="C", copy=not reuse)]
    found[0] *= scale
    for which in blocks(*train.shape):
        scaler.partial_fit(found[0][which])
    scaler.transform(found[0])
    for x in others:
        scaled = x.astype(np.float64, order="C", copy=not reuse)
        with np.errstate(over="ignore"):
            scaled *= scale
        np.clip(scaled, -FARTHEST, FARTHEST, out=scaled)
        found.append(scaler.transform(scaled))
    # columns lie within (-1, 1), where no variance is 1: a scale of 1 stands for no variance
    return found, int(np.count_nonzero(scaler.scale_ == 1))


def fit(
    train: Rows,
    codes: Codes,
    test: Rows,
    c: float,
    solver: Solver | None = None,
    reuse: bool = False,
) -> Fitted:
    """
    Fit on train rows with a penalty of given strength, and say what the test rows are.

    Multinomial logistic regression with an L2 penalty, of columns standardised by the train rows.

    Parameters
    ----------
    train : (n, d) finite
    codes : (n,) int64, two or more different
    test : (m, d) finite
    c : float > 0
    solver : Solver
    reuse : as for `standardised`

    Notes
    -----
    Time O(n d k) an iteration for k codes; memory the rows once more in float64 and O((n + m) k).
    The first call imports scikit-learn, which takes most of a second.

    References
    ----------
    Liu & Nocedal, "On the limited memory BFGS method for large scale optimization", Math. Program.
    45, 1989, doi:10.1007/BF01589116.
    """
    (x, y), constant = standardised(train, test, reuse=reuse)
    return _alone(lambda: _fitted(x, codes, y, c, solver or Solver(), constant))


def choose(
    train: Rows,
    codes: Codes,
    held_out: Rows,
    held_out_codes: Codes,
    cs: Sequence[float],
    solver: Solver,
    threads: int,
    step: Callable[[int, int], None],
) -> tuple[list[Tried], int]:
    """
    Fit with each strength of the penalty, and find the one that recalls held-out rows best.

    The score is the mean over codes of held-out rows of the share that is right; the smallest `c`
    wins among equals. No fit starts from another: at `c` = 1e5 a start from the solution before
    moves coefficients by a tenth within the same tolerance, and saves a fifth of the iterations.

    Parameters
    ----------
    train, codes : as for `fit`
    held_out, held_out_codes : (m, d) and (m,), m >= 1
    cs : ascending
    step : told (strengths done, strengths in all)

    Returns
    -------
    (tried, best) : one for each of `cs`, and the place of the best
    """
    (x, y), constant = standardised(train, held_out)
    threads = at_once(len(x), x.shape[1], len(np.unique(codes)), threads)

    def one(c: float) -> Tried:
        fitted = _fitted(x, codes, y, c, solver, constant)
        return Tried(fitted, mean_recall(held_out_codes, fitted.predicted))

    def every() -> list[Tried]:
        found = []
        for tried in ordered_map(one, cs, threads):
            found.append(tried)
            step(len(found), len(cs))
        return found

    tried = _alone(every)
    scores = np.array([one.score for one in tried])
    return tried, int(np.argmax(scores >= scores.max() - TIED))


def mean_recall(codes: Codes, predicted: Codes) -> float:
    """
    Mean over the codes that occur of the share of their rows that is right.

    Parameters
    ----------
    codes, predicted : (m,) int64, m >= 1
    """
    _, kind = np.unique(codes, return_inverse=True)
    right = np.bincount(kind, weights=codes == predicted) / np.bincount(kind)
    return float(right.mean())


def _alone(work: Callable[[], R]) -> R:
    """
    Work with one thread of BLAS, libraries that came with scikit-learn included.

    Its warnings are silenced here, once for all threads: what one says is in `stop`, and codes that
    are many for the rows are what was asked for.
    """
    from sklearn.exceptions import ConvergenceWarning

    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        return work()


def _fitted(
    x: Floats, codes: Codes, test: Floats, c: float, solver: Solver, constant: int
) -> Fitted:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, tol=solver.tol, max_iter=solver.max_iter)
    model.fit(x, codes)
    n_iter = int(model.n_iter_[0])
    gradient = _gradient(x, codes, model, c)
    # the last digits of two computations of one derivative differ
    small = gradient <= solver.tol * (1 + 1e-6) + 1e-14
    stop: Stop = "gradient" if small else "iterations" if n_iter >= solver.max_iter else "loss"
    return Fitted(
        c=c,
        predicted=np.asarray(model.predict(test), np.int64),
        train_accuracy=float(np.mean(model.predict(x) == codes)),
        n_iter=n_iter,
        gradient=gradient,
        constant=constant,
        stop=stop,
    )


def _gradient(x: Floats, codes: Codes, model: Any, c: float) -> float:
    """Largest partial derivative of mean log loss plus |coefficients|^2 / (2 c n)."""
    n, d = x.shape
    classes, coefficients, intercepts = model.classes_, model.coef_, model.intercept_
    kind = np.searchsorted(classes, codes)
    if len(classes) == 2:
        coefficients, intercepts = (
            np.concatenate([0 * part, part]) for part in (coefficients, intercepts)
        )
    slope, level = np.zeros_like(coefficients), np.zeros(len(classes))
    for which in blocks(n, d + len(classes)):
        z = x[which] @ coefficients.T + intercepts
        z -= z.max(axis=1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(axis=1, keepdims=True)
        z[np.arange(len(z)), kind[which]] -= 1
        slope += z.T @ x[which]
        level += z.sum(axis=0)
    slope = slope / n + coefficients / (c * n)
    if len(classes) == 2:
        slope, level = slope[1:], level[1:]
    return float(max(np.abs(slope).max(), np.abs(level).max() / n))
