"""What a reader of a verdict should know of the policy behind it."""

from __future__ import annotations

from collections.abc import Iterator

from service.gate.policy import Policy
from service.gate.warned import VerdictWarning

ONE_LOOK = VerdictWarning(
    code="one_look",
    message="A rule at the level .95 passes falsely with probability .025 at most if these data are "
    "judged once. Judging them again with more rows added inflates that, to .042-.049 with two "
    "looks and .070 with five: judge on new groups, or set `look` to the number of looks in the "
    "policy, from the first one on.",
    where="policy/look",
)


def cautions(policy: Policy) -> Iterator[VerdictWarning]:
    """Rules that may not be what their author meant, and how often the data may be judged."""
    for i, rule in enumerate(policy.rules):
        if message := rule.caution(policy.measure_of(rule)):
            place = f"policy/rules/{i}/{rule.comparison}"
            yield VerdictWarning(code="against_direction", message=message, where=place)
    if policy.look == 1:
        yield ONE_LOOK
