"""`power` against the numbers of its definitions."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from service.check import Context
from service.checks.power import Power, PowerInputs, PowerParams, power
from service.errors import InvalidRequest
from service.operations import Services, submit
from service.request import parse_request


def asked(**params: Any) -> Power:
    found = power.run(Context(), PowerInputs(), PowerParams(**params))
    assert isinstance(found, Power)
    return found


@pytest.mark.parametrize(("correlation", "groups"), [(0.5, 29), (0.3, 85), (-0.5, 29)])
def test_groups_for_a_correlation_are_the_published_ones(correlation: float, groups: int) -> None:
    """Fisher z with alpha .05 and power .8, rounded half up."""
    assert asked(correlation=correlation).groups_for_correlation == groups


def test_twenty_groups_show_a_correlation_of_point_59() -> None:
    """The inverse of the same formula."""
    found = asked(groups=20).correlation_for_groups
    assert found is not None
    assert round(found, 2) == 0.59


def test_a_half_width_is_reached_by_the_groups_named_and_by_no_fewer() -> None:
    """Compared with Student's t of scipy."""
    groups, error, half = 20, 0.02, 0.013
    found = asked(groups=groups, standard_error=error, half_width=half).groups_for_half_width
    assert found is not None

    def width(count: int) -> float:
        return float(stats.t.ppf(0.975, count - 1)) * error * math.sqrt(groups / count)

    assert width(found) <= half < width(found - 1)


@pytest.mark.parametrize(("resolution", "permutations"), [(0.05, 19), (0.001, 999), (1e-4, 9999)])
def test_permutations_for_a_smallest_p(resolution: float, permutations: int) -> None:
    """1 / (B + 1)."""
    assert asked(p_resolution=resolution).permutations_for_p == permutations


def test_groups_for_a_rule_follow_the_formula_of_gates() -> None:
    """ceil(G ((z_.975 + z_.8) SE / distance)^2) with normal quantiles of scipy."""
    found = asked(groups=30, standard_error=0.01, distance=0.012).groups_for_rule
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert found == math.ceil(30 * (z * 0.01 / 0.012) ** 2)


@pytest.mark.parametrize(("share", "groups"), [(0.97, 122), (0.999, 3688)])
def test_a_perfect_share_still_needs_groups(share: float, groups: int) -> None:
    """Clopper-Pearson: .025^(1/G) >= share."""
    assert asked(perfect_share=share).groups_for_perfect_share == groups


def test_what_was_not_asked_is_null_with_what_it_needs() -> None:
    """Every null names the parameters that are missing."""
    found = asked(groups=20)
    assert found.groups_for_half_width is None
    assert found.undefined["groups_for_half_width"].code == "not_asked"
    assert "`half_width`" in found.undefined["groups_for_half_width"].message


@pytest.mark.parametrize(
    "params",
    [
        {"correlation": 1e-9},
        {"p_resolution": 1e-17},
        {"perfect_share": 1 - 1e-16},
        {"groups": 20, "standard_error": 1e300, "half_width": 1e-300},
        {"groups": 20, "standard_error": 1e300, "distance": 1e-300},
    ],
    ids=str,
)
def test_numbers_beyond_counting_are_null_with_a_reason(params: dict[str, float]) -> None:
    """They broke the canonical JSON of reports, or overflowed."""
    found = asked(**params)
    assert "too_large" in {reason.code for reason in found.undefined.values()}


@pytest.mark.parametrize("params", [{}, {"half_width": 0.1}, {"standard_error": 0.1}], ids=str)
def test_a_request_that_asks_nothing_is_refused_with_what_can_be_asked(
    params: dict[str, float], services: Services
) -> None:
    """It ended well, with six lines of "undefined". Before a job is there, and by the check itself."""
    with pytest.raises(InvalidRequest) as caught:
        submit(services, "default", parse_request({"kind": "power", "params": params}))
    (fault,) = caught.value.faults
    assert fault.pointer == "/params"
    assert fault.message == (
        "give one of these or more: `correlation`; `groups`; `groups` with `standard_error` with "
        "`half_width`; `p_resolution`; `groups` with `standard_error` with `distance`; "
        "`perfect_share`"
    )
    with pytest.raises(InvalidRequest):
        asked(**params)


def test_every_question_that_is_named_is_answered(services: Services) -> None:
    """One at a time."""
    for params in (
        {"correlation": 0.3}, {"groups": 20}, {"p_resolution": 0.01}, {"perfect_share": 0.9},
        {"groups": 20, "standard_error": 0.1, "half_width": 0.1},
    ):  # fmt: skip
        submit(services, "default", parse_request({"kind": "power", "params": params}))
        assert asked(**params).readings()


def test_a_correlation_of_nothing_is_refused() -> None:
    """No number of groups shows 0."""
    with pytest.raises(ValueError, match="cannot be shown"):
        PowerParams(correlation=0)
