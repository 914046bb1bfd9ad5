"""What is told before anything is uploaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from assay_client import refusing, requests
from assay_client.problems import Mistake
from assay_client.refusing import refuse_missing


def test_a_csv_without_a_column_is_a_table_or_a_mistake_that_lists_the_columns(
    labels: Path,
) -> None:
    """By what the role takes; a column of the same file is neither."""
    check = {"roles": [{"name": "runs", "kind": "table"}, {"name": "groups", "kind": "column"}]}
    body, base = requests.build(["any", "--runs", "rows.csv", "--groups", "rows.csv:id"])
    refusing.refuse_misplaced(body, base, check)
    assert body["inputs"]["runs"] == {"path": "rows.csv"}
    body, base = requests.build(["any", "--groups", "rows.csv"])
    with pytest.raises(Mistake, match=r"--groups rows.csv:COLUMN \(it has id, intent\)"):
        refusing.refuse_misplaced(body, base, check)


PARTS = {
    "roles": [{"name": "models", "parts": ["rows", "test"]}, {"name": "labels", "parts": []}],
    "params_schema": {"properties": {"level": {}}},
}


def test_models_of_several_matrices_are_answered_with_the_form_of_a_request() -> None:
    """`--models a=v1.npy` cannot say which matrix a file is."""
    body = {"kind": "linear_probe"}
    for given in ([{"path": "v1.npy", "name": "a"}], [{"dataset": "ds_1", "name": "a"}]):
        with pytest.raises(Mistake) as caught:
            refusing.refuse_unknown({**body, "inputs": {"models": given}}, PARTS)
        said = caught.value.detail
        assert "listed in a request, `assay check --request FILE`" in said
        example = said[said.index("{") : said.index("; `assay checks")]
        assert example.startswith('{"kind": "linear_probe", "inputs": {"models": [{"name": NAME, ')
        assert '"rows": {"path": FILE}, "test": {"path": FILE}' in example
        assert said.endswith("by its parts: `--rows FILE`, `--test FILE`")
    listed = [{"name": "a", "rows": {"path": "v1.npy"}}, {"name": "b", "rows": {"path": "v2.npy"}}]
    refusing.refuse_unknown({**body, "inputs": {"models": listed}}, PARTS)


def test_a_role_that_is_a_part_of_a_model_elsewhere_is_pointed_to() -> None:
    """`linear_probe --vectors` means `--rows`."""
    with pytest.raises(Mistake, match="one model is given by its parts: `--rows FILE`"):
        refusing.refuse_unknown({"kind": "linear_probe", "inputs": {"vectors": {}}}, PARTS)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"kind": "geometry", "inputs": {"vector": {}}},
            "no role `vector`; did you mean `vectors`",
        ),
        ({"kind": "geometry", "params": {"levl": 0.9}}, "no param `levl`; did you mean `level`"),
        ({"kind": "geometry", "params": {"zzz": 1}}, "it has level"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_uploaded(
    body: dict[str, Any], said: str
) -> None:
    """Against the catalogue's own description of a check."""
    check = {"roles": [{"name": "vectors"}], "params_schema": {"properties": {"level": {}}}}
    with pytest.raises(Mistake, match=said):
        refusing.refuse_unknown(body, check)
    refusing.refuse_unknown({"kind": "geometry", "inputs": {"vectors": {}}}, check)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"rows": {"path": "a.npy"}}, "`probe` needs `labels`: --labels FILE.csv:COLUMN"),
        ({"labels": {"path": "a.csv"}}, "`probe` needs `models`: --rows FILE.npy"),
        ({"models": [], "labels": {}}, None),
    ],
)
def test_a_missing_role_is_told_by_an_example(inputs: Any, said: str | None) -> None:
    """Before anything is uploaded; one model may be given by its parts."""
    roles = [
        {"name": "models", "kind": "vectors", "required": True, "parts": ["rows", "test"]},
        {"name": "labels", "kind": "column", "required": True, "parts": []},
        {"name": "groups", "kind": "column", "required": False, "parts": []},
    ]
    body = {"kind": "probe", "inputs": inputs}
    if said is None:
        refuse_missing(body, {"roles": roles})
    else:
        with pytest.raises(Mistake, match=re.escape(said)):
            refuse_missing(body, {"roles": roles})
