"""Everything that can be wrong with a policy, said at once and before any data are needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from service.check import Check, Measure, Slot
from service.errors import Fault, InvalidRequest, UnknownCheck, did_you_mean, pointer_to
from service.gate.policy import MOST_LOOKS, InputKind, Policy, PolicyCheck, PolicyModel
from service.gate.rule import Rule
from service.numerics.resampling import clopper_pearson
from service.references import Model
from service.request import BY_KIND, check_of, faults_of, names_of

M = TypeVar("M", bound=Model)
T = TypeVar("T")
MOST_FAULTS = 100


@dataclass(frozen=True)
class Draft:
    """What of a policy can be read; None stands for a part that is there and has faults itself."""

    inputs: Mapping[str, InputKind | None]
    checks: Mapping[str, PolicyCheck | None]
    rules: Iterable[Rule | None]
    look: int

    @classmethod
    def of(cls, body: Any) -> Draft:
        inputs, checks = (_section(body, key, dict) for key in ("inputs", "checks"))
        known, look = get_args(InputKind), _section(body, "look", int)
        return cls(
            inputs={name: kind if kind in known else None for name, kind in inputs.items()},
            checks={
                name: _read(PolicyCheck, one) if _kind(one) in BY_KIND else None
                for name, one in checks.items()
            },
            rules=[_read(Rule, one) for one in _section(body, "rules", list)],
            look=look if 1 <= look <= MOST_LOOKS else 1,
        )


def _read(model: type[M], body: Any) -> M | None:
    try:
        return model.model_validate(body)
    except ValidationError:
        return None


def read_policy(body: Any) -> Policy:
    """A policy whose names, roles, params and measures all exist, and whose rules decide something."""
    policy, faults = None, list[Fault]()
    try:
        policy = Policy.model_validate(body)
    except ValidationError as error:
        faults += _structural_faults(error, body)
    unknown = list(_unknown_kinds(body))
    faults += [*unknown, *_draft_faults(Draft.of(body))]
    if policy is not None and not faults:
        return policy
    detail = f"The policy has {'1 fault' if len(faults) == 1 else f'{len(faults)} faults'}"
    if unknown:
        raise UnknownCheck(f"{detail}; {unknown[0].message}", faults[:MOST_FAULTS])
    raise InvalidRequest(f"{detail}.", faults[:MOST_FAULTS])


def _structural_faults(error: ValidationError, body: Any) -> Iterator[Fault]:
    """Faults of form; models given by name are answered with the form their check takes."""
    forms = {
        pointer_to("policy", "checks", name, "inputs", slot.name): _listed(slot)
        for name, one in _section(body, "checks", dict).items()
        if (kind := _kind(one)) in BY_KIND
        for slot in BY_KIND[kind].slots
        if slot.most is not None
    }
    for fault in faults_of(error, {"policy": body}, ("policy",), Policy):
        yield fault.model_copy(update={"message": forms.get(fault.pointer, fault.message)})


def _unknown_kinds(body: Any) -> Iterator[Fault]:
    for name, one in _section(body, "checks", dict).items():
        if (kind := _kind(one)) and kind not in BY_KIND:
            place = pointer_to("policy", "checks", name, "kind")
            yield Fault(pointer=place, message=_unknown("check", kind, BY_KIND))


def _kind(wanted: Any) -> str:
    return _section(wanted, "kind", str)


def _section(body: Any, key: str, kind: type[T]) -> T:
    """What stands under a key where it is of that kind, else an empty one."""
    found = body.get(key) if isinstance(body, Mapping) else None
    return found if isinstance(found, kind) else kind()


def _draft_faults(draft: Draft) -> Iterator[Fault]:
    for name, wanted in draft.checks.items():
        if wanted is not None:
            yield from _check_faults(draft, pointer_to("policy", "checks", name), wanted)
    for i, rule in enumerate(draft.rules):
        if rule is not None and (found := _rule_fault(draft, f"/policy/rules/{i}", rule)):
            yield found


def _check_faults(draft: Draft, at: str, wanted: PolicyCheck) -> Iterator[Fault]:
    check = check_of(wanted.kind)
    try:
        check.params.model_validate(wanted.params)
    except ValidationError as error:
        for fault in faults_of(error, wanted.params, kind=check.params):
            yield Fault(pointer=f"{at}/params{fault.pointer}", message=fault.message)
    slots = {name: slot for slot in check.slots for name in names_of(slot)}
    for role, bound in wanted.inputs.items():
        here = at + pointer_to("inputs", role)
        if role not in slots:
            yield Fault(pointer=here, message=_unknown("role", role, list(slots)))
        else:
            slot = slots[role]
            if role != slot.name:  # a matrix of one model alone
                slot = replace(slot.part(role), name=role, most=None)
            for message in _binding_faults(draft, slot, bound):
                yield Fault(pointer=here, message=message)
    for slot in check.slots:
        bare = [part for part in slot.parts if slot.several and part in wanted.inputs]
        if bare and (slot.name in wanted.inputs or not set(slot.needed) <= set(bare)):
            yield Fault(pointer=f"{at}/inputs", message=f"give `{slot.name}`, or {_all(slot)}")
        elif slot.required and slot.name not in wanted.inputs and not bare:
            yield Fault(pointer=f"{at}/inputs", message=f"role `{slot.name}` is required")


def _listed(slot: Slot) -> str:
    each = ", ".join(f"{part}: INPUT" for part in slot.needed)
    return f"takes a list of models: `[{{name: NAME, {each}}}, ...]`"


def _all(slot: Slot) -> str:
    return " and ".join(f"`{part}`" for part in slot.needed)


def _binding_faults(draft: Draft, slot: Slot, bound: str | list[PolicyModel]) -> Iterator[str]:
    if isinstance(bound, str):
        if slot.most is not None:
            yield _listed(slot)
        else:
            yield from _input_faults(draft, slot, bound)
        return
    if slot.most is None:
        yield "takes one name"
        return
    if not 1 <= len(bound) <= slot.most:
        yield f"takes 1 to {slot.most} models, not {len(bound)}"
    for name in {model.name for model in bound}:
        if sum(model.name == name for model in bound) > 1:
            yield f"the name `{name}` is given twice"
    for model in bound:
        if not set(slot.needed) <= set(model.parts) <= set(slot.parts):
            more = f", takes {', '.join(slot.spare)}" if slot.spare else ""
            yield f"`{model.name}` needs {', '.join(slot.needed)}{more} and nothing else"
        for name in model.parts.values():
            yield from _input_faults(draft, slot, name)


def _input_faults(draft: Draft, slot: Slot, name: str) -> Iterator[str]:
    if name not in draft.inputs:
        yield _unknown("input", name, draft.inputs)
    elif draft.inputs[name] not in (slot.kind, None):
        yield f"`{name}` is declared as {draft.inputs[name]}; this role takes {slot.kind}"


def _rule_fault(draft: Draft, at: str, rule: Rule) -> Fault | None:
    name, _, path = rule.measure.partition(".")
    here = f"{at}/measure"
    if name not in draft.checks:
        return Fault(pointer=here, message=_unknown("check", name, draft.checks))
    if (wanted := draft.checks[name]) is None:
        return None
    known = wanted.measures
    if path not in known:
        return Fault(pointer=here, message=_unknown("measure", path, known))
    measure = known[path]
    if message := rule.fault(measure) or _undefined(check_of(wanted.kind), wanted, measure):
        return Fault(pointer=here, message=message)
    if message := rule.idle(measure) or _too_few_permutations(draft, wanted, rule, measure):
        return Fault(pointer=f"{at}/{rule.comparison}", message=message)
    return None


def _too_few_permutations(
    draft: Draft, wanted: PolicyCheck, rule: Rule, measure: Measure
) -> str | None:
    """
    Why no p-value can be shown to be as small as asked: none as extreme still leaves an interval.

    Data of few labellings have an exact p, and keep it with more permutations.
    """
    threshold = rule.at_most
    if measure.shape != "p_value" or threshold is None or threshold >= 1:
        return None
    try:
        params, level = wanted.typed_params, wanted.level(draft.look)
    except ValidationError:
        return None
    count = getattr(params, "permutations", None)
    if count is None or threshold >= (least := clopper_pearson(0, count, level)[1]):
        return None
    most = type(params).model_json_schema()["properties"]["permutations"]["maximum"]
    enough = math.log((1 - level) / 2) / math.log1p(-threshold)
    if enough > most:
        smallest = _rounded_up(clopper_pearson(0, most, level)[1])
        remedy = f"ask for no less than {smallest}, which the most there can be, {most}, show"
    else:
        remedy = (
            f"to show {threshold:g}, give `permutations: {math.ceil(enough)}` or more in this "
            "check's `params`"
        )
    return f"{count} random permutations show no p below {_rounded_up(least)}: {remedy}"


def _rounded_up(value: float) -> str:
    """Two digits, no less than the value."""
    digit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / digit) * digit:.2g}"


def _undefined(check: Check, wanted: PolicyCheck, measure: Measure) -> str | None:
    """Why a measure will be null whatever the data are."""
    params: Mapping[str, Any] = {
        name: field.get_default() for name, field in check.params.model_fields.items()
    } | wanted.params
    roles = {slot.name for slot in check.slots}
    for need in measure.needs:
        if need in roles and need not in wanted.inputs:
            return f"it is undefined without the role `{need}`: bind it in this check's `inputs`"
        if need not in roles and (params[need] is None or params[need] is False):
            return (
                f"it is undefined without the parameter `{need}`: set it in this check's `params`"
            )
    return None


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"there is no {what} `{name}`; {did_you_mean(name, known)}"
