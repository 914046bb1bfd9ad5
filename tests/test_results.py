"""Results: keys that spell k out."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from pydantic import ValidationError

from service.check import Results, ResultsAtK, measure, named
from service.measures import measures


class Overlap(ResultsAtK):
    """Lists compared."""

    n: int
    """Queries."""
    overlap: dict[int, float] = measure(low=0, high=1)
    """Share of the list that is kept."""


class Conditions(Results):
    """By storage scheme."""

    conditions: dict[str, Overlap] = named("condition")
    """One entry a condition."""


FOUND = Conditions(conditions={"fp16_both": Overlap(n=3, overlap={10: 0.5, 1: 1.0})})
WRITTEN = {"conditions": {"fp16_both": {"n": 3, "overlap@10": 0.5, "overlap@1": 1.0}}}


def test_a_value_for_each_k_is_written_beside_the_others_with_k_in_its_key() -> None:
    """Compared with the JSON the contract asks for, written out by hand."""
    assert json.loads(FOUND.model_dump_json()) == WRITTEN
    assert Conditions.model_validate(WRITTEN) == FOUND


def test_what_is_written_fits_the_schema_and_other_keys_do_not() -> None:
    """Checked by jsonschema-rs, which shares no code with pydantic."""
    schema = jsonschema_rs.validator_for(Conditions.model_json_schema(mode="serialization"))
    assert schema.is_valid(WRITTEN)
    for wrong in ({"n": 3, "recall@10": 0.5}, {"n": 3, "overlap@ten": 0.5}, {"overlap@1": 0.5}):
        assert not schema.is_valid({"conditions": {"fp16_both": wrong}})


@pytest.mark.parametrize("key", ["recall@10", "overlap@ten", "overlap@", "overlap@10@1"])
def test_other_keys_are_refused(key: str) -> None:
    """Closed form: only a declared name with a whole number after it."""
    with pytest.raises(ValidationError):
        Overlap.model_validate({"n": 3, key: 0.5})


def test_a_measure_path_says_where_k_and_names_stand() -> None:
    """Written out by hand; the value under a key is the one that was put in."""
    assert [measure.path for measure in measures(Conditions)] == [
        "conditions.{condition}.overlap@{k}"
    ]
    assert FOUND.conditions["fp16_both"].value("overlap@10") == 0.5
    assert FOUND.conditions["fp16_both"].value("n") == 3
