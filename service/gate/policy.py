"""A policy: what must hold before a release, and everything that can be wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator

from service.check import BARE, Check, Measure, Params, Slot
from service.errors import Fault, InvalidRequest, did_you_mean, pointer_to
from service.gate.rule import Rule
from service.redaction import KEPT
from service.references import Model, ModelName
from service.request import LARGEST_INTEGER, check_of, invalid, names_of

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,64}$"), KEPT]
InputKind = Literal["vectors", "column", "relevance", "table"]
MOST_LOOKS = 20
LEVEL_DIGITS = 12
"""Levels are rounded so, that equal ones are asked for in equal words."""


class PolicyModel(Model):
    """One of several models: the name its results go by, and the input each part is bound to."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Name]

    name: ModelName

    @property
    def parts(self) -> dict[str, str]:
        """Inputs by part: `vectors` where a model is one matrix."""
        return dict(self.__pydantic_extra__)


class PolicyCheck(Model):
    """A check to run, with its roles bound to names of the policy's inputs."""

    kind: str
    inputs: dict[str, Name | list[PolicyModel]]
    """A name, or, for a role of several models, a list of `{name, vectors}`, or of `{name, queries,
    documents}` where a model has several matrices."""
    params: dict[str, Any] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, le=LARGEST_INTEGER)

    @property
    def models(self) -> list[str]:
        """Names of the models it compares."""
        names = [m.name for bound in self.inputs.values() if isinstance(bound, list) for m in bound]
        bare = any(slot.several and slot.name not in self.inputs for slot in self._slots)
        return [BARE] if bare else names

    @property
    def _slots(self) -> tuple[Slot, ...]:
        return check_of(self.kind).slots

    @property
    def typed_params(self) -> Params:
        """Its parameters, defaults filled in."""
        return check_of(self.kind).params.model_validate(self.params)

    @property
    def measures(self) -> dict[str, Measure]:
        """Every measure its report has, by path; a difference under either order of models."""
        names = self._names()
        return {
            filled: measure
            for measure in check_of(self.kind).measures
            for filled in _with_names(measure.path, self.models, names)
        }

    def _names(self) -> dict[str, list[str]]:
        """What other places in braces stand for; none where the parameters are at fault."""
        try:
            return self.typed_params.names()
        except ValidationError:
            return {}


class Policy(Model):
    """What must hold before a release."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=200), KEPT]
    inputs: dict[Name, InputKind]
    """Names that are bound to data when the gate is run."""
    checks: dict[Name, PolicyCheck] = Field(min_length=1, max_length=50)
    rules: list[Rule] = Field(min_length=1, max_length=500)
    familywise: bool = False
    """Say `fail` only at alpha / m, m the number of blocking rules, so that a release that satisfies
    all of them is blocked with probability alpha at most."""
    look: int = Field(default=1, ge=1, le=MOST_LOOKS)
    """How many times pooled data are judged in all, from the first look on: each at alpha / look."""

    @field_validator("rules")
    @classmethod
    def _one_blocks(cls, rules: list[Rule]) -> list[Rule]:
        if not any(rule.blocks for rule in rules):
            raise ValueError(
                "at least one rule must block: warnings alone pass whatever the data are"
            )
        return rules

    def level(self, name: str) -> float:
        """Coverage of the intervals that a check's rules are judged on."""
        level = self.checks[name].typed_params.level
        return level if self.look == 1 else _level((1 - level) / self.look)

    def fail_level(self, name: str) -> float:
        """Coverage of the intervals that `fail` is judged on."""
        blocking = sum(rule.blocks for rule in self.rules)
        if not self.familywise or blocking == 1:
            return self.level(name)
        return _level((1 - self.level(name)) / blocking)

    def runs(self) -> dict[str, list[float]]:
        """Levels each check is run at: one, and a second where `fail` needs wider intervals."""
        wide = {
            rule.measure.partition(".")[0]
            for rule in self.rules
            if rule.blocks and self.measure_of(rule).shape != "scalar"
        }
        return {
            name: sorted({self.level(name), self.fail_level(name) if name in wide else 0} - {0})
            for name in self.checks
        }

    def measure_of(self, rule: Rule) -> Measure:
        """The measure a rule is about."""
        name, _, path = rule.measure.partition(".")
        return self.checks[name].measures[path]


def _level(outside: float) -> float:
    return round(1 - outside, LEVEL_DIGITS)


def read_policy(body: Any) -> Policy:
    """A policy whose names, roles, params and measures all exist."""
    try:
        policy = Policy.model_validate(body)
    except ValidationError as error:
        raise invalid(error, {"policy": body}, ("policy",)) from None
    faults: list[Fault] = []
    for name, wanted in policy.checks.items():
        faults += _check_faults(policy, f"/policy/checks/{name}", wanted)
    for i, rule in enumerate(policy.rules):
        if message := _rule_fault(policy, rule):
            faults.append(Fault(pointer=f"/policy/rules/{i}/measure", message=message))
    if faults:
        many = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise InvalidRequest(f"The policy has {many}.", faults)
    return policy


def _check_faults(policy: Policy, at: str, wanted: PolicyCheck) -> Iterator[Fault]:
    check = check_of(wanted.kind)
    try:
        check.params.model_validate(wanted.params)
    except ValidationError as error:
        for fault in invalid(error, wanted.params).faults:
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
            for message in _binding_faults(policy, slot, bound):
                yield Fault(pointer=here, message=message)
    for slot in check.slots:
        bare = [part for part in slot.parts if slot.several and part in wanted.inputs]
        if bare and (slot.name in wanted.inputs or not set(slot.needed) <= set(bare)):
            yield Fault(pointer=f"{at}/inputs", message=f"give `{slot.name}`, or {_all(slot)}")
        elif slot.required and slot.name not in wanted.inputs and not bare:
            yield Fault(pointer=f"{at}/inputs", message=f"role `{slot.name}` is required")


def _all(slot: Slot) -> str:
    return " and ".join(f"`{part}`" for part in slot.needed)


def _binding_faults(policy: Policy, slot: Slot, bound: str | list[PolicyModel]) -> Iterator[str]:
    if isinstance(bound, str):
        if slot.most is not None:
            yield f"takes a list of {{name, {', '.join(slot.parts)}}}"
        else:
            yield from _input_faults(policy, slot, bound)
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
            yield from _input_faults(policy, slot, name)


def _input_faults(policy: Policy, slot: Slot, name: str) -> Iterator[str]:
    if name not in policy.inputs:
        yield _unknown("input", name, policy.inputs)
    elif policy.inputs[name] != slot.kind:
        yield f"`{name}` is declared as {policy.inputs[name]}; this role takes {slot.kind}"


def _rule_fault(policy: Policy, rule: Rule) -> str | None:
    name, _, path = rule.measure.partition(".")
    if name not in policy.checks:
        return _unknown("check", name, policy.checks)
    wanted = policy.checks[name]
    known = wanted.measures
    if path not in known:
        return _unknown("measure", path, known)
    return rule.fault(known[path]) or _undefined(check_of(wanted.kind), wanted, known[path])


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


def _with_names(path: str, models: list[str], names: Mapping[str, list[str]]) -> list[str]:
    """The paths a measure has when models have these names; a difference may be named either way."""
    for place, values in names.items():
        if f"{{{place}}}" in path:
            filled = [path.replace(f"{{{place}}}", value) for value in values]
            return [one for some in filled for one in _with_names(some, models, names)]
    if "{model}" in path:
        return [path.replace("{model}", name) for name in models]
    if "{later}" in path:
        return [
            path.replace("{later}", one).replace("{earlier}", other)
            for one in models
            for other in models
            if one != other
        ]
    return [path]


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    return f"there is no {what} `{name}`; {did_you_mean(name, known)}"
