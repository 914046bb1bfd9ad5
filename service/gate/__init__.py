"""The gate: a policy and reports make a verdict; nothing else does."""

from service.gate.cautions import cautions
from service.gate.judging import RuleResult, Verdict, judge, verdict_digest
from service.gate.needed import Needed
from service.gate.page import verdict_page
from service.gate.policy import InputKind, Policy, PolicyModel
from service.gate.reading import read_policy
from service.gate.rule import Region, Rule
from service.gate.warned import VerdictWarning, heard

__all__ = [
    "InputKind",
    "Needed",
    "Policy",
    "PolicyModel",
    "Region",
    "Rule",
    "RuleResult",
    "Verdict",
    "VerdictWarning",
    "cautions",
    "heard",
    "judge",
    "read_policy",
    "verdict_digest",
    "verdict_page",
]
