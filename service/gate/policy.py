"""A policy: what must hold before a release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator

from service.check import BARE, Measure, Params, Slot
from service.gate.rule import Rule
from service.gate.warned import counts
from service.redaction import KEPT
from service.references import Model, ModelName
from service.request import LARGEST_INTEGER, check_of

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


def _form_of(bound: Any) -> str | None:
    return "<name>" if isinstance(bound, str) else "<models>" if isinstance(bound, list) else None


Binding = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[list[PolicyModel], Tag("<models>")],
    Discriminator(
        _form_of,
        custom_error_type="form",
        custom_error_message="takes the name of an input, or a list of models: "
        "`[{name: NAME, vectors: INPUT}, ...]`",
    ),
]
"""What a role of a check is bound to."""


class PolicyCheck(Model):
    """A check to run, with its roles bound to names of the policy's inputs."""

    kind: str
    inputs: dict[str, Binding]
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

    def level(self, look: int) -> float:
        """Coverage of the intervals its rules are judged on, with so many looks."""
        level = self.typed_params.level
        return level if look == 1 else _level((1 - level) / look)

    @property
    def measures(self) -> dict[str, Measure]:
        """Every measure of its report by path, a difference under either order of models; warnings."""
        names, check = self._names(), check_of(self.kind)
        measures = {
            filled: measure
            for measure in check.measures
            for filled in _with_names(measure.path, self.models, names)
        }
        return {**measures, **counts(check)}

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
    """Say `fail` only at alpha / m, m the number of blocking rules on measures with an interval or a
    p, so that a release that satisfies all of them is blocked with probability alpha at most."""
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
        return self.checks[name].level(self.look)

    def fail_level(self, name: str) -> float:
        """Coverage of the intervals that `fail` is judged on."""
        return self._fail_level(name, len(self._uncertain()))

    def runs(self) -> dict[str, list[float]]:
        """Levels each check is run at: one, and a second where `fail` needs wider intervals."""
        uncertain = self._uncertain()
        wide = {rule.measure.partition(".")[0] for rule, one in uncertain if one.shape != "scalar"}
        count = len(uncertain)
        return {
            name: sorted(
                {self.level(name)} | ({self._fail_level(name, count)} if name in wide else set())
            )
            for name in self.checks
        }

    def _uncertain(self) -> list[tuple[Rule, Measure]]:
        """Blocking rules that chance may break: of measures with an interval or a p."""
        blocking = [(rule, self.measure_of(rule)) for rule in self.rules if rule.blocks]
        return [(rule, one) for rule, one in blocking if one.shape != "scalar" or one.is_p_value]

    def _fail_level(self, name: str, rules: int) -> float:
        level = self.level(name)
        return _level((1 - level) / rules) if self.familywise and rules > 1 else level

    def measure_of(self, rule: Rule) -> Measure:
        """The measure a rule is about."""
        name, _, path = rule.measure.partition(".")
        return self.checks[name].measures[path]


def _level(outside: float) -> float:
    return round(1 - outside, LEVEL_DIGITS)


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
