"""Reading a policy: every fault by its place, before any data is needed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidRequest, UnknownCheck
from service.gate import Policy, Rule, cautions, read_policy
from service.request import BY_KIND
from tests.inside import inside

POLICY: dict[str, Any] = {
    "version": 1,
    "name": "release",
    "inputs": {"rows": "vectors", "left": "vectors", "right": "vectors", "topics": "column"},
    "checks": {
        "shape": {"kind": "geometry", "inputs": {"vectors": "rows", "groups": "topics"}},
        "floor": {"kind": "cosine_floor", "inputs": {"a": "left", "b": "right"}},
        "groups": {
            "kind": "group_structure",
            "inputs": {
                "models": [{"name": "old", "vectors": "left"}, {"name": "new", "vectors": "right"}],
                "groups": "topics",
            },
        },
        "size": {"kind": "power", "inputs": {}, "params": {"groups": 20}},
    },
    "rules": [{"measure": "shape.anisotropy", "at_most": 0.3}],
}


def read(*rules: dict[str, Any], **changes: Any) -> Policy:
    return read_policy({**POLICY, "rules": list(rules) or POLICY["rules"], **changes})


def fault(*rules: dict[str, Any], **changes: Any) -> str:
    """The one message a policy is refused with."""
    with pytest.raises(InvalidRequest) as caught:
        read(*rules, **changes)
    (only,) = caught.value.faults
    return only.message


DIFFERENCE = "groups.differences.new.old"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"measure": f"{DIFFERENCE}.r2_test.p", "at_least": 0.05}, "only have an `at_most` rule"),
        ({"measure": f"{DIFFERENCE}.r2_test.p_holm", "within": [0, 1]}, "only have an `at_most`"),
        ({"measure": "groups.models.old.p", "at_least": 0.05}, "only have an `at_most` rule"),
        ({"measure": f"{DIFFERENCE}.r2_test.p", "unchanged_within": 0.1}, "only have an `at_most`"),
        ({"measure": f"{DIFFERENCE}.v", "not_worse_by": 0.1}, "neither direction of `v` is better"),
        ({"measure": "groups.models.new.icc1", "not_worse_by": 0.1}, "under `differences.`"),
        ({"measure": "shape.rankme", "unchanged_within": 1}, "under `differences.`"),
    ],
    ids=str,
)  # fmt: skip
def test_a_comparison_belongs_to_the_measures_it_means_something_for(
    rule: dict[str, Any], says: str
) -> None:
    """A large p shows nothing; a margin needs two models; worse needs a direction."""
    assert says in fault(rule)


@pytest.mark.parametrize(
    "rule",
    [
        {"measure": f"{DIFFERENCE}.r2_test.p", "at_most": 0.05},
        {"measure": "groups.differences.old.new.r2", "not_worse_by": 0},
        {"measure": f"{DIFFERENCE}.within_share", "not_worse_by": 0.02},
        {"measure": f"{DIFFERENCE}.v", "unchanged_within": 0.02},
        {"measure": f"{DIFFERENCE}.r2", "within": [-0.1, 0.2]},
        {"measure": "shape.anisotropy", "within": [0.1, 0.1]},
        {"measure": "groups.models.new.p_f2", "at_most": 0.01},
    ],
    ids=str,
)
def test_the_others_are_read(rule: dict[str, Any]) -> None:
    """Either order of the models names a difference."""
    assert read(rule).rules[0].measure == rule["measure"]


@pytest.mark.parametrize(
    "rule",
    [
        {"measure": "shape.rankme"}, {"measure": "shape.rankme", "at_least": 1, "at_most": 2},
        {"measure": "shape.rankme", "at_least": None}, {"at_least": 1},
        {"measure": "shape.rankme", "at_least": float("nan")},
        {"measure": "shape.rankme", "at_most": float("inf")},
        {"measure": "shape.rankme", "at_most": "a lot"},
        {"measure": "shape.rankme", "at_most": 1, "level": "none"},
        {"measure": "shape.rankme", "within": [2, 1]}, {"measure": "shape.rankme", "within": [1]},
        {"measure": "shape.rankme", "within": [1, float("inf")]},
        {"measure": "shape.rankme", "within": [1, 2], "at_most": 2},
        {"measure": f"{DIFFERENCE}.r2", "not_worse_by": -0.1},
        {"measure": f"{DIFFERENCE}.r2", "unchanged_within": 0},
        {"measure": f"{DIFFERENCE}.r2", "unchanged_within": -1},
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_has_one_finite_bound(rule: dict[str, Any]) -> None:
    """A bound that nothing crosses would pass everything, one that all cross nothing."""
    with pytest.raises(InvalidRequest):
        read(rule)


@pytest.mark.parametrize(
    ("measure", "params", "need"),
    [
        ("floor.aligned.gap_all", {}, "parameter `align`"),
        ("floor.aligned.partner_ranked_first.tied", {"align": None}, "parameter `align`"),
        ("groups.models.old.performance.spearman", {}, "role `response`"),
        (
            "groups.models.old.dispersion.p",
            {"dispersion_test": False},
            "parameter `dispersion_test`",
        ),
        ("size.groups_for_rule", {"groups": 20}, "parameter `standard_error`"),
    ],
)
def test_a_measure_that_can_only_be_null_is_refused_with_what_it_needs(
    measure: str, params: dict[str, Any], need: str
) -> None:
    """Known before any data: the block was not asked for."""
    name = measure.partition(".")[0]
    checks = copy.deepcopy(POLICY["checks"])
    checks[name]["params"] = params
    assert need in fault({"measure": measure, "at_most": 1}, checks=checks)


def test_what_a_measure_needs_can_be_given() -> None:
    """The same measures, asked for."""
    checks = copy.deepcopy(POLICY["checks"])
    checks["floor"]["params"] = {"align": "procrustes"}
    checks["groups"]["inputs"]["response"] = "topics"
    checks["size"]["params"] = {"groups": 20, "standard_error": 0.1, "distance": 0.1}
    read(
        {"measure": "floor.aligned.gap_all", "at_least": 0},
        {"measure": "groups.models.old.performance.spearman", "at_least": 0},
        {"measure": "groups.models.old.dispersion.p", "at_most": 0.05},
        {"measure": "size.groups_for_rule", "at_most": 100},
        checks=checks,
    )


def test_every_need_is_a_role_or_a_parameter_of_its_check() -> None:
    """A name nobody can give would refuse every policy."""
    for kind, check in BY_KIND.items():
        known = {slot.name for slot in check.slots} | set(check.params.model_fields)
        for measure in check.measures:
            assert set(measure.needs) <= known, f"{kind}.{measure.path}"


def test_warnings_alone_are_no_policy() -> None:
    """They would pass whatever the data are."""
    assert "at least one rule must block" in fault(
        {"measure": "shape.anisotropy", "at_most": 0.3, "level": "warn"}
    )


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ([{"name": "old", "vectors": "left"}, {"name": "old", "vectors": "right"}], "given twice"),
        ([{"name": "old"}], "`old` needs vectors"),
        ([{"name": "old", "vectors": "left", "queries": "right"}], "`old` needs vectors"),
        ([{"name": "old", "vectors": "topics"}], "declared as column"),
        ([{"name": "old", "vectors": "lft"}], "did you mean `left`?"),
        ([], "takes 1 to 8 models"),
        ([{"name": f"m{i}", "vectors": "left"} for i in range(9)], "takes 1 to 8 models"),
        ("left", "takes a list of models: `[{name: NAME, vectors: INPUT}, ...]`"),
    ],
    ids=str,
)
def test_models_are_named_once_and_have_the_matrices_of_their_role(models: Any, says: str) -> None:
    """A check whose models have several matrices names them; this one has one."""
    checks = copy.deepcopy(POLICY["checks"])
    checks["groups"]["inputs"]["models"] = models
    assert says in fault(checks=checks)


def test_levels_follow_from_the_looks_and_the_number_of_blocking_rules() -> None:
    """Alpha .025 one-sided: halved by two looks, divided by the blocking rules for `fail` alone."""
    rules = [{"measure": "shape.anisotropy", "at_most": x} for x in (0.3, 0.4, 0.5, 0.6)]
    rules.append({"measure": "floor.raw.gap_all", "at_least": 0, "level": "warn"})
    assert read(*rules).runs() == {name: [0.95] for name in POLICY["checks"]}
    assert set(map(tuple, read(*rules, look=2).runs().values())) == {(0.975,)}
    together = read(*rules, familywise=True)
    assert together.runs() == {
        **{name: [0.95] for name in POLICY["checks"]},
        "shape": [0.95, 0.9875],
    }
    assert (together.level("shape"), together.fail_level("shape")) == (0.95, 0.9875)
    both = read(*rules, familywise=True, look=2)
    assert (both.level("shape"), both.fail_level("shape")) == (0.975, 0.99375)
    assert read(rules[0], familywise=True).runs()["shape"] == [0.95]


def test_rules_on_plain_numbers_widen_no_interval() -> None:
    """A count or a warning breaks its rule or does not: alpha is shared by the others alone."""
    estimated = [{"measure": "shape.anisotropy", "at_most": x} for x in (0.3, 0.4)]
    numbers = [
        {"measure": "shape.rankme", "at_least": 2},
        {"measure": "shape.warnings.rows_dropped", "at_most": 0},
        {"measure": "floor.warnings.rows_dropped", "at_most": 0},
    ]
    p_values = [{"measure": "groups.models.new.p", "at_most": x} for x in (0.05, 0.1)]
    together = read(*estimated, *numbers, familywise=True)
    assert together.fail_level("shape") == 0.975
    assert together.runs()["shape"] == [0.95, 0.975]
    assert together.runs()["floor"] == [0.95]
    alone = read(estimated[0], *numbers, familywise=True)
    assert alone.runs()["shape"] == [0.95]
    assert read(*estimated, *p_values, familywise=True).runs()["groups"] == [0.95, 0.9875]


def test_a_check_keeps_the_level_it_asks_for() -> None:
    """The policy's author may want wider intervals."""
    checks = copy.deepcopy(POLICY["checks"])
    checks["shape"]["params"] = {"level": 0.9}
    assert read(checks=checks).runs()["shape"] == [0.9]
    assert read(checks=checks, look=4).runs()["shape"] == [0.975]


def test_a_check_whose_rules_have_no_interval_runs_once() -> None:
    """A wider interval would change nothing."""
    rules = [{"measure": "shape.rankme", "at_least": x} for x in (2, 3)]
    assert read(*rules, familywise=True).runs()["shape"] == [0.95]


@pytest.mark.parametrize(("key", "value"), [("look", 0), ("look", 21), ("familywise", "perhaps")])
def test_looks_are_counted_from_one(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        read(**{key: value})


def test_faults_of_a_policy_are_named_together() -> None:
    """Six in one reading, each with its pointer and a suggestion."""
    wrong = copy.deepcopy(POLICY)
    wrong["checks"]["floor"]["inputs"] = {"a": "left", "bb": "right"}
    wrong["checks"]["shape"]["params"] = {"max_spectrum": 0}
    wrong["checks"]["shape"]["inputs"]["groups"] = "left"
    wrong["rules"] = [
        {"measure": "shape.anisotropi", "at_most": 1}, {"measure": "shpe.rankme", "at_least": 1},
    ]  # fmt: skip
    with pytest.raises(InvalidRequest) as caught:
        read_policy(wrong)
    faults = {fault.pointer: fault.message for fault in caught.value.faults}
    assert faults.keys() == {
        "/policy/checks/shape/params/max_spectrum", "/policy/checks/shape/inputs/groups",
        "/policy/checks/floor/inputs/bb", "/policy/checks/floor/inputs",
        "/policy/rules/0/measure", "/policy/rules/1/measure",
    }  # fmt: skip
    assert "did you mean `anisotropy`" in faults["/policy/rules/0/measure"]
    assert "did you mean `shape`" in faults["/policy/rules/1/measure"]
    assert "`b` is required" in faults["/policy/checks/floor/inputs"]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"measure": "shape.dispersion_v", "at_most": 2}, "`dispersion_v` are 0..1: this rule cannot"),
        ({"measure": "shape.dispersion_v", "at_most": 1}, "0..1: this rule cannot fail"),
        ({"measure": "shape.dispersion_v", "at_least": 0}, "0..1: this rule cannot fail"),
        ({"measure": "shape.dispersion_v", "at_least": 70}, "0..1: this rule cannot pass"),
        ({"measure": "shape.dispersion_v", "at_most": -0.1}, "0..1: this rule cannot pass"),
        ({"measure": "shape.dispersion_v", "within": [0, 1]}, "0..1: this rule cannot fail"),
        ({"measure": "shape.dispersion_v", "within": [2, 3]}, "0..1: this rule cannot pass"),
        ({"measure": "shape.rankme", "at_least": 1}, "1 or more: this rule cannot fail"),
        ({"measure": "shape.rankme", "at_most": 0.5}, "1 or more: this rule cannot pass"),
        ({"measure": "shape.dispersion_v", "at_most": 2, "level": "warn"}, "cannot fail"),
        ({"measure": "groups.models.old.p", "at_most": 1}, "0..1: this rule cannot fail"),
        ({"measure": "groups.models.old.p", "at_most": 0}, "0..1: this rule cannot pass"),
        ({"measure": f"{DIFFERENCE}.r2", "not_worse_by": 1}, "-1..1: this rule cannot fail"),
        ({"measure": f"{DIFFERENCE}.within_share", "not_worse_by": 5}, "cannot fail"),
        ({"measure": f"{DIFFERENCE}.r2", "unchanged_within": 1}, "-1..1: this rule cannot fail"),
        ({"measure": "groups.differences.old.new.r2", "at_least": 1.5}, "-1..1: this rule cannot pass"),
    ],
    ids=str,
)  # fmt: skip
def test_a_rule_that_decides_nothing_is_a_fault(rule: dict[str, Any], says: str) -> None:
    """`at_most: 2` of a share promoted a baseline; `at_least: 70` failed with no hint."""
    with pytest.raises(InvalidRequest) as caught:
        read(rule, *POLICY["rules"])
    (only,) = caught.value.faults
    assert says in only.message
    comparison = next(key for key in rule if key not in ("measure", "level"))
    assert only.pointer == f"/policy/rules/0/{comparison}"


@pytest.mark.parametrize("kind", BY_KIND)
@given(st.data())
def test_a_rule_is_refused_just_where_no_value_or_every_value_satisfies_it(
    kind: str, data: Any
) -> None:
    """By brute force over a grid of values that a measure can have; thresholds lie on the grid."""
    measure = data.draw(st.sampled_from(BY_KIND[kind].measures))
    low = -1e3 if measure.low is None else measure.low
    high = max(low, 0.0) + 1e3 if measure.high is None else measure.high
    values = np.linspace(low, high, 65)
    beyond = [*([low - 1] if measure.low is not None else []), *values[1:-1],
              *([low] if measure.low is not None else []),
              *([high, high + 1] if measure.high is not None else [])]  # fmt: skip
    comparison = data.draw(st.sampled_from(["at_least", "at_most", "within"]))
    one, other = (float(data.draw(st.sampled_from(beyond))) for _ in range(2))
    bound = sorted((one, other)) if comparison == "within" else one
    rule = Rule.model_validate({"measure": "x.y", comparison: bound})
    ends = {"at_least": (one, np.inf), "at_most": (-np.inf, one), "within": bound}[comparison]
    if measure.is_p_value:  # none is 0
        values = values[1:]
    satisfied = {bool(ends[0] <= value <= ends[1]) for value in values}
    told = {None: 2, "cannot fail": 1, "cannot pass": 1}
    message = rule.idle(measure)
    end = None if message is None else message[-len("cannot fail") :]
    assert len(satisfied) == told[end]
    if end is not None:
        assert satisfied == {end == "cannot fail"}


def test_a_bound_against_the_direction_is_a_caution() -> None:
    """Said, and the policy is read; a difference may be taken either way round."""
    policy = read(
        {"measure": "floor.raw.gap_all", "at_most": 0.3},
        {"measure": "shape.duplicates.rows", "at_least": 3},
        {"measure": "floor.raw.gap_all", "at_least": 0.3},
        {"measure": "shape.anisotropy", "at_most": 0.3},
        {"measure": "groups.differences.old.new.r2", "at_most": 0.1},
        look=2,
    )
    found = {one.where: (one.code, one.message) for one in cautions(policy)}
    assert found == {
        "policy/rules/0/at_most": (
            "against_direction",
            "`at_most` refuses good values: higher values of `floor.raw.gap_all` are better",
        ),
        "policy/rules/1/at_least": (
            "against_direction",
            "`at_least` refuses good values: lower values of `shape.duplicates.rows` are better",
        ),
    }
    assert [one.code for one in cautions(read())] == ["one_look"]


def test_faults_of_form_hide_no_others() -> None:
    """A misspelled comparison, a wrong type and a strange key beside what else is wrong."""
    wrong = copy.deepcopy(POLICY)
    wrong["nme"] = wrong.pop("name")
    wrong["inputs"]["odd"] = "matrix"
    wrong["checks"]["floor"]["inputs"] = {"a": "left", "b": "odd", "bb": "right"}
    wrong["checks"]["size"]["seed"] = -1
    wrong["checks"]["groups"]["inputs"]["models"] = {"old": "left", "new": "right"}
    wrong["checks"]["new"] = {"kind": "geometry", "inputs": {"vectors": "lft"}, "parms": {}}
    wrong["checks"]["shape"]["inputs"]["vectors"] = "rws"
    wrong["rules"] = [
        {"measure": "shape.dispersion_v", "atmost": 2},
        {"measure": "shape.dispersion_v", "at_most": 2},
        {"measure": "shape.anisotropi", "at_most": "much"},
        {"measure": "shpe.rankme", "at_least": 3},
        {"measure": "groups.models.old.r2", "at_least": 0.1},
        5,
    ]
    with pytest.raises(InvalidRequest) as caught:
        read_policy(wrong)
    faults = {fault.pointer: fault.message for fault in caught.value.faults}
    assert len(faults) == len(caught.value.faults)
    assert caught.value.detail == f"The policy has {len(faults)} faults."
    says = {
        "/policy/name": "is required",
        "/policy/nme": "there is no `nme` here; did you mean `name`?",
        "/policy/inputs/odd": "takes 'vectors', 'column', 'relevance' or 'table'",
        "/policy/checks/floor/inputs/bb": "there is no role `bb`; did you mean `b`?",
        "/policy/checks/size/seed": "takes 0 or more",
        "/policy/checks/groups/inputs/models":
            "takes a list of models: `[{name: NAME, vectors: INPUT}, ...]`",
        "/policy/checks/new/parms": "there is no `parms` here; did you mean `params`?",
        "/policy/checks/shape/inputs/vectors": "there is no input `rws`; did you mean `rows`?",
        "/policy/rules/0/atmost": "there is no `atmost` here; did you mean `at_most`?",
        "/policy/rules/1/at_most": "values of `dispersion_v` are 0..1: this rule cannot fail",
        "/policy/rules/2/at_most": "takes a number",
        "/policy/rules/3/measure": "there is no check `shpe`; did you mean `shape`?",
        "/policy/rules/5": "takes an object, not a number",
    }  # fmt: skip
    assert faults == says


@pytest.mark.parametrize("body", [None, [], "x", {"checks": 3, "rules": {}, "inputs": [1]}])
def test_what_is_no_policy_is_refused_by_its_form(body: Any) -> None:
    """Nothing in it can be read."""
    with pytest.raises(InvalidRequest) as caught:
        read_policy(body)
    assert all(one.pointer.startswith("/policy") for one in caught.value.faults)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("group_structure", "`[{name: NAME, vectors: INPUT}, ...]`"),
        ("linear_probe", "`[{name: NAME, rows: INPUT}, ...]`"),
        ("retrieval", "`[{name: NAME, queries: INPUT, documents: INPUT}, ...]`"),
    ],
)
@pytest.mark.parametrize("given_as", [{"old": "left", "new": "right"}, "left"], ids=str)
def test_models_are_answered_with_the_form_their_check_takes(
    kind: str, form: str, given_as: Any
) -> None:
    """It said "Input should be a valid string"."""
    checks = {**POLICY["checks"], "x": {"kind": kind, "inputs": {"models": given_as}}}
    with pytest.raises(InvalidRequest) as caught:
        read(checks=checks)
    found = {one.pointer: one.message for one in caught.value.faults}
    assert found["/policy/checks/x/inputs/models"] == f"takes a list of models: {form}"


def test_an_unknown_check_hides_no_other_fault() -> None:
    """Each by its place; the code stays that of an unknown check."""
    wrong = copy.deepcopy(POLICY)
    wrong["checks"]["shape"]["kind"] = "geometri"
    wrong["rules"].append({"measure": "flor.raw.gap_all", "at_least": 0.1})
    with pytest.raises(UnknownCheck) as caught:
        read_policy(wrong)
    assert [one.pointer for one in caught.value.faults] == [
        "/policy/checks/shape/kind", "/policy/rules/1/measure",
    ]  # fmt: skip


def test_a_policy_of_an_unknown_check_says_what_it_may_have_been() -> None:
    """As a job of it does."""
    wrong = copy.deepcopy(POLICY)
    wrong["checks"]["shape"]["kind"] = "geometri"
    with pytest.raises(UnknownCheck, match="geometry"):
        read_policy(wrong)


def test_every_measure_that_can_be_defined_can_be_a_rule() -> None:
    """Read without fault, and nothing that is no measure is."""
    for name in ("shape", "floor"):
        for measure in BY_KIND[POLICY["checks"][name]["kind"]].measures:
            if not measure.needs:
                read({"measure": f"{name}.{measure.path}", "at_most": inside(measure)})
    for path in ("shape.n", "shape", "floor.means.a.count", "shape.anisotropy.estimate", "shape."):
        with pytest.raises(InvalidRequest):
            read({"measure": path, "at_least": 0})


@pytest.mark.parametrize(
    "file",
    sorted((Path(__file__).parents[2] / "examples/policies").glob("*.yaml")),
    ids=lambda file: file.stem,
)
def test_the_sample_policies_are_read(file: Path) -> None:
    """What the examples ship is valid, and cautions of nothing but judging the same data again."""
    policy = read_policy(yaml.safe_load(file.read_text()))
    assert [one.code for one in cautions(policy)] == ["one_look"]


def test_a_range_is_against_no_direction() -> None:
    """Of a measure without a direction and of one with: both ends were meant."""
    policy = read(
        {"measure": "shape.dispersion_v", "within": [0.1, 0.9]},
        {"measure": "floor.raw.gap_all", "within": [0.1, 0.9]},
        {"measure": "shape.dispersion_v", "at_most": 0.9},
        look=2,
    )
    assert list(cautions(policy)) == []


SEARCH: dict[str, Any] = {
    "inputs": {"lines": "vectors", "texts": "vectors", "right": "relevance", "topics": "column"},
    "rules": [{"measure": "search.models.model_1.hit@10", "at_least": 0.9}],
}


def search(**inputs: Any) -> dict[str, Any]:
    """A policy of one retrieval check with these inputs."""
    check = {"kind": "retrieval", "inputs": {"relevance": "right", **inputs}}
    return {**SEARCH, "checks": {"search": check}}


def test_one_model_may_be_bound_by_bare_roles() -> None:
    """Its results go by the name that it has without one; listed, it is the same."""
    read_policy({**POLICY, **search(queries="lines", documents="texts")})
    listed = [{"name": "model_1", "queries": "lines", "documents": "texts"}]
    read_policy({**POLICY, **search(models=listed)})


def recover(**inputs: Any) -> dict[str, Any]:
    """A policy of one linear probe with these inputs."""
    check = {"kind": "linear_probe", "inputs": {"labels": "topics", **inputs}}
    rule = {"measure": "probe.models.model_1.accuracy", "at_least": 0.9}
    return {**POLICY, **SEARCH, "checks": {"probe": check}, "rules": [rule]}


def test_a_matrix_that_may_be_left_out_may_be_bound() -> None:
    """Bare and listed, with and without it; neither instead of the one that is needed."""
    for bound in ({"rows": "lines"}, {"rows": "lines", "test": "texts"}):
        read_policy(recover(**bound))
        read_policy(recover(models=[{"name": "model_1", **bound}]))
    for inputs, says in (
        ({"test": "texts"}, "give `models`, or `rows`"),
        ({"models": [{"name": "model_1", "test": "texts"}]}, "needs rows, takes test"),
        ({"models": [{"name": "model_1", "rows": "lines", "more": "texts"}]}, "and nothing else"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            read_policy(recover(**inputs))
        assert any(says in one.message for one in caught.value.faults)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"queries": "lines"}, "give `models`, or `queries` and `documents`"),
        ({}, "role `models` is required"),
        ({"queries": "lines", "documents": "right"}, "declared as relevance; this role takes vectors"),
        ({"queries": "lines", "documents": "texts", "relevance": "topics"},
         "declared as column; this role takes relevance"),
        ({"queries": ["x"], "documents": "texts"}, "checks"),
    ],
)  # fmt: skip
def test_models_of_several_matrices_are_bound_whole(inputs: dict[str, Any], says: str) -> None:
    """Faults by their place."""
    with pytest.raises(InvalidRequest) as caught:
        read_policy({**POLICY, **search(**inputs)})
    assert any(says in f"{one.pointer} {one.message}" for one in caught.value.faults), (
        caught.value.faults
    )


def test_a_rule_may_be_about_a_warning_its_check_declares() -> None:
    """Counted; another code is answered with the nearest, and one of another check is none."""
    read({"measure": "shape.warnings.duplicates", "at_most": 0})
    for code in ("rows_dropped", "missing_vectors", "lossy_storage"):
        read({"measure": f"shape.warnings.{code}", "at_most": 0})
    assert "did you mean `warnings.duplicates`?" in fault(
        {"measure": "shape.warnings.duplicate", "at_most": 0}
    )
    assert "there is no measure `warnings.duplicates`" in fault(
        {"measure": "floor.warnings.duplicates", "at_most": 0}
    )
    assert "are 0 or more: this rule cannot fail" in fault(
        {"measure": "shape.warnings.duplicates", "at_least": 0}
    )


@pytest.mark.parametrize(
    ("params", "look", "threshold", "least", "enough"),
    [
        ({"permutations": 99}, 1, 0.03, "0.037", 122),
        ({"permutations": 99}, 1, 0.001, "0.037", 3688),
        ({}, 1, 0.001, "0.0037", 3688),
        ({}, 1, 0.0001, "0.0037", 36887),
        ({"permutations": 99, "level": 0.99}, 1, 0.001, "0.053", 5296),
        ({"permutations": 99}, 5, 0.04, "0.053", 130),
    ],
)
@pytest.mark.parametrize("familywise", [False, True])
def test_a_p_that_the_permutations_asked_for_cannot_show_is_a_fault(
    params: dict[str, Any], look: int, threshold: float, least: str, enough: int, familywise: bool
) -> None:
    """
    Without an exceedance in N the interval ends at t where (1 - t)^N is half of what is outside.

    `fail` may be judged on a wider one, which no rule has to pass.
    """
    checks = {**POLICY["checks"], "groups": {**POLICY["checks"]["groups"], "params": params}}
    rule = {"measure": "groups.models.new.p", "at_most": threshold}
    others = [{"measure": "shape.anisotropy", "at_most": 0.3}] * 9
    more = {"look": look, "familywise": familywise}
    count = params.get("permutations", 999)
    assert fault(rule, *others, checks=checks, **more) == (
        f"{count} random permutations show no p below {least}: to show {threshold:g}, give "
        f"`permutations: {enough}` or more in this check's `params`"
    )
    outside = (1 - params.get("level", 0.95)) / 2 / look
    assert (1 - threshold) ** enough <= outside < (1 - threshold) ** (enough - 1)
    assert (1 - float(least)) ** count <= outside < (1 - 0.95 * float(least)) ** count
    read({**rule, "at_most": float(least)}, *others, checks=checks, **more)
    for some, accepted in ((enough, True), (enough - 1, False)):
        checks["groups"] = {**checks["groups"], "params": {**params, "permutations": some}}
        if accepted:
            read(rule, *others, checks=checks, **more)
        else:
            fault(rule, *others, checks=checks, **more)


@pytest.mark.parametrize("threshold", [2e-5, 1e-17, 5e-324])
def test_a_p_that_no_number_of_permutations_can_show_is_a_fault(threshold: float) -> None:
    """99,999 are the most; .025^(1/99999) leaves 3.69e-5."""
    rule = {"measure": "groups.models.new.p", "at_most": threshold}
    assert fault(rule).endswith(
        "ask for no less than 3.7e-05, which the most there can be, 99999, show"
    )
    checks = copy.deepcopy(POLICY["checks"])
    checks["groups"]["params"] = {"permutations": 99999}
    read({**rule, "at_most": 3.7e-5}, checks=checks)


def test_a_look_that_is_none_is_the_one_fault_of_its_policy() -> None:
    """The level of p-values cannot be told by it."""
    rule = {"measure": "groups.models.new.p", "at_most": 0.05}
    for look in (0, 21, 10**400, "two"):
        with pytest.raises(InvalidRequest) as caught:
            read(rule, look=look)
        assert [found.pointer for found in caught.value.faults] == ["/policy/look"]


def test_a_p_that_is_no_share_of_permutations_may_be_as_small_as_asked() -> None:
    """That of a t test has no least value."""
    contrasts = [{"name": "n", "a": "x", "b": "y"}]
    params = {"metrics": ["score"], "contrasts": contrasts}
    probe = {"kind": "seed_contrasts", "inputs": {"runs": "runs"}, "params": params}
    rule = {"measure": "seeds.contrasts.n.metrics.score.p_holm", "at_most": 1e-9}
    read(rule, inputs={"runs": "table"}, checks={"seeds": probe})
