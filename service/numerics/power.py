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


def groups_for_band(
    groups: int, error: float, below: float, above: float, alpha: float, power: float = POWER
) -> float:
    """
    Groups that would show an estimate to lie inside a band: both bounds of its interval inside.

    Parameters
    ----------
    groups, error : groups there are, and their standard error
    below, above : float > 0, one of them may be infinite
        From the band's ends to the estimate, which the truth is taken to equal.
    alpha : float
        One-sided level of each bound.

    Returns
    -------
    float
        The smallest n with Phi(below/se - z) + Phi(above/se - z) - 1 >= power, se = error
        sqrt(groups/n); with one end the closed form of `groups_for_rule`.
    """
    near = min(below, above)
    if math.isinf(max(below, above)):
        return groups_for_rule(groups, error, near, alpha, power)
    z = float(special.ndtri(1 - alpha))

    def shown(scale: float) -> bool:
        inside = special.ndtr(below / scale - z) + special.ndtr(above / scale - z) - 1
        return bool(inside >= power)

    both = float(special.ndtri((1 + power) / 2))
    low, high = near / (z + both), near / (z + float(special.ndtri(power)))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if shown(middle) else (low, middle)
    return math.ceil(groups * (error / low) ** 2 * (1 - 1e-12))


def trials_for_share(share: float, threshold: float, alpha: float, power: float = POWER) -> int:
    """
    Trials after which the exact interval of a share would lie on its side of a threshold.

    The normal approximation of the binomial at both values, n = ((z_{1-a} sqrt(t(1-t)) + z_{power}
    sqrt(p(1-p))) / (p-t))^2, corrected for continuity, n/4 (1 + sqrt(1 + 2/(n|p-t|)))^2; never fewer
    than the interval of the share itself takes, which for none or all of the trials is all it takes.

    Parameters
    ----------
    share, threshold : float in [0, 1], different
    alpha : float
        One-sided level.

    References
    ----------
    Fleiss, Levin & Paik, "Statistical Methods for Rates and Proportions", 3rd ed., 2003, section 2.5.
    """
    z, spare = float(special.ndtri(1 - alpha)), float(special.ndtri(power))
    clear = _trials_to_clear(share, threshold, alpha)
    if share in (0, 1):
        return clear
    spread = z * math.sqrt(threshold * (1 - threshold)) + spare * math.sqrt(share * (1 - share))
    distance = abs(share - threshold)
    n = (spread / distance) ** 2
    return max(math.ceil(n / 4 * (1 + math.sqrt(1 + 2 / (n * distance))) ** 2), clear)


def _trials_to_clear(share: float, threshold: float, alpha: float) -> int:
    """The smallest n at which the Clopper-Pearson bound of n * share has passed the threshold."""

    def clear(n: int) -> bool:
        if share > threshold:
            return float(special.betaincinv(n * share, n - n * share + 1, alpha)) >= threshold
        return float(special.betaincinv(n * share + 1, n - n * share, 1 - alpha)) <= threshold

    high = 1
    while not clear(high):
        high *= 2
        if high > MOST_GROUPS:
            raise OverflowError("more trials than can be counted")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if clear(middle) else (middle, high)
    return high


def without_spread(estimate: float, limit: float, alpha: float, units: int) -> float:
    """
    How far the mean may still lie towards `limit` when so many units all gave the same value.

    At least alpha^(1/units) of the population gives that value (Clopper & Pearson); the rest can be
    no further away than the limit.
    """
    same = math.exp(math.log(alpha) / units)
    return same * estimate + (1 - same) * limit


def units_without_spread(estimate: float, limit: float, threshold: float, alpha: float) -> int:
    """
    Units that take `without_spread` to a threshold between limit and estimate.

    Of a share, all perfect: 122 for .97 and 3,688 for .999 at one-sided .025.
    """
    return groups_for_perfect_share((threshold - limit) / (estimate - limit), alpha)
