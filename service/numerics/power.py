"""How many groups, or permutations, it takes."""

from __future__ import annotations

import math

from scipy import special

POWER = 0.8
ALPHA = 0.05
MOST_GROUPS = 2**52


def _z(alpha: float, power: float) -> float:
    return float(special.ndtri(1 - alpha / 2) + special.ndtri(power))


def groups_for_correlation(rho: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """
    Groups that show a correlation: ((z_{1-a/2} + z_{power}) / artanh rho)^2 + 3, half up.

    Parameters
    ----------
    rho : float, 0 < |rho| < 1
        .5 takes 29 groups, .3 takes 85.
    alpha, power : float in (0, 1)

    References
    ----------
    Fisher, "On the probable error of a coefficient of correlation", Metron 1, 1921.
    """
    return math.floor((_z(alpha, power) / math.atanh(abs(rho))) ** 2 + 3 + 0.5)


def correlation_for_groups(groups: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """
    The correlation that so many groups show: tanh((z_{1-a/2} + z_{power}) / sqrt(G - 3)).

    Parameters
    ----------
    groups : int >= 4
        20 groups show .59.
    """
    return math.tanh(_z(alpha, power) / math.sqrt(groups - 3))


def groups_for_half_width(groups: int, error: float, half_width: float, level: float) -> int:
    """
    Groups for an interval of this half-width, if its standard error falls as 1/sqrt(groups).

    Parameters
    ----------
    groups, error : groups there are, and their jackknife standard error
    half_width : float > 0
    level : float in (0, 1)

    Returns
    -------
    int
        The smallest G with t_{G-1} error sqrt(groups / G) <= half_width, at least 2.

    Raises
    ------
    OverflowError
        Above 2^52 groups.
    """

    def fits(count: int) -> bool:
        t = float(special.stdtrit(count - 1, (1 + level) / 2))
        return t * error * math.sqrt(groups / count) <= half_width

    high = 2
    while not fits(high):
        high *= 2
        if high > MOST_GROUPS:
            raise OverflowError("more groups than can be counted")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return max(high, 2)


def permutations_for_p(resolution: float) -> int:
    """Random permutations whose smallest p is at most `resolution`: 1/(B + 1) <= resolution."""
    return math.ceil(1 / resolution - 1 - 1e-9)


def groups_for_rule(
    groups: int, error: float, distance: float, alpha: float, power: float = POWER
) -> int:
    """
    Groups that would decide a gate rule: ceil(G ((z_{1-a} + z_{power}) error / distance)^2).

    Parameters
    ----------
    groups, error : groups there are, and their standard error
    distance : float > 0
        Between estimate and threshold; the truth is taken to equal the estimate.
    alpha : float
        One-sided level.
    """
    z = float(special.ndtri(1 - alpha) + special.ndtri(power))
    return math.ceil(groups * (z * error / distance) ** 2)


def groups_for_perfect_share(threshold: float, alpha: float) -> int:
    """
    Groups that a share needs to pass `at_least threshold` if every one of them is perfect.

    alpha^(1/G) >= threshold: 122 for .97 and 3,688 for .999 at one-sided .025.
    """
    return math.ceil(math.log(alpha) / math.log(threshold))
