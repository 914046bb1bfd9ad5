"""Request files and the shorthand of the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from assay_client import requests
from assay_client.problems import Mistake
from assay_client.requests import refuse_missing


def test_unknown_options_are_roles(vectors: Path, labels: Path) -> None:
    body, base = requests.build(
        ["cosine_floor", "--a", "rows.npy", "--fit-b=rows.npy", "--groups", "rows.csv:intent"],
        params=["shared_mean=true", "derangements=9999", "note=plain text", "on-bad-rows=drop"],
        seed=1,
    )

    assert base == Path()
    assert body == {
        "kind": "cosine_floor",
        "inputs": {
            "a": {"path": "rows.npy"},
            "fit_b": {"path": "rows.npy"},
            "groups": {"path": "rows.csv", "column": "intent"},
        },
        "params": {
            "shared_mean": True,
            "derangements": 9999,
            "note": "plain text",
            "on_bad_rows": "drop",
        },
        "seed": 1,
    }


def test_the_kind_may_stand_anywhere(vectors: Path) -> None:
    body, _ = requests.build(["--vectors", "rows.npy", "geometry"])
    assert body == {"kind": "geometry", "inputs": {"vectors": {"path": "rows.npy"}}}


def test_stored_datasets_need_no_file() -> None:
    body, _ = requests.build(["geometry", "--vectors", "ds_1f", "--groups", "ds_2a:intent"])
    assert body["inputs"] == {
        "vectors": {"dataset": "ds_1f"},
        "groups": {"dataset": "ds_2a", "column": "intent"},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9999", 9999),
        ("0.5", 0.5),
        ("null", None),
        ('"9"', "9"),
        ("[1, 2]", [1, 2]),
        ("NaN", "NaN"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_a_parameter_is_json_or_else_a_string(text: str, value: Any) -> None:
    assert requests.parameter(f"name={text}") == ("name", value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the check"),
        (["geometry", "rows.npy"], r"unexpected `rows.npy`: a file needs its role"),
        (["geometry", "-v", "rows.npy"], r"`-v` is neither an option nor a role"),
        (["geometry", "--vectors"], r"`--vectors` needs a value"),
        (["geometry", "--jsn", "--vectors", "rows.npy"], r"needs a value. Did you mean `--json`"),
        (["geometry", "--a", "rows.npy", "--a", "rows.npy"], r"`--a` is given twice"),
        (["geometry", "--vectors", "gone.npy"], r"`--vectors gone.npy`: there is no such file$"),
        (["geometry", "--level", "0.9"], r"a parameter is given as `--param level=0.9`"),
        (["geometry", "--census", "true"], r"a parameter is given as `--param census=true`"),
        (["geometry", "--groups", "gone.csv:id"], r"`--groups gone.csv`: there is no such file"),
    ],
)
def test_a_mistake_says_what_was_meant(
    words: list[str], said: str, vectors: Path, labels: Path
) -> None:
    with pytest.raises(Mistake, match=said):
        requests.build(words, options=["--json", "--seed"])


def test_shorthand_wins_over_the_request_file(tmp_path: Path, vectors: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    written = {
        "kind": "cosine_floor",
        "inputs": {"a": {"path": "a.npy"}, "b": {"path": "b.npy"}},
        "params": {"level": 0.9, "census": True},
        "seed": 7,
        "cache": False,
    }
    (folder / "request.json").write_text(json.dumps(written), encoding="utf-8")

    body, base = requests.build(
        ["--b", "rows.npy"], request=folder / "request.json", params=["level=0.5"]
    )

    assert base == folder
    assert body == {
        "kind": "cosine_floor",
        "inputs": {"a": {"path": "a.npy"}, "b": {"path": str(vectors.resolve())}},
        "params": {"level": 0.5, "census": True},
        "seed": 7,
        "cache": False,
    }


def test_a_request_for_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text('{"kind": "geometry"}', encoding="utf-8")

    with pytest.raises(Mistake, match="asks for `geometry`, the command for `cosine_floor`"):
        requests.build(["cosine_floor"], request=Path("request.json"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object"),
        ('{"seed": NaN}', "NaN is no JSON number"),
        ('{"kind": "geometry", "inputs": []}', "`inputs` must be an object"),
        (b"\xff", "not UTF-8"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_request_file_that_cannot_be_used(
    tmp_path: Path, text: str | bytes | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "request.json").write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(Mistake, match=said):
        requests.build([], request=Path("request.json"))


def test_files_are_relative_to_the_request_and_told_once(tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    inputs = {
        "a": {"path": "one.npy"},
        "b": {"path": "../requests/one.npy"},
        "models": [{"path": "two.npy", "name": "later"}],
    }

    files = requests.files(inputs, folder)

    one, two = requests.File(folder / "one.npy"), requests.File(folder / "two.npy")
    assert files == [one, two]
    stored = requests.resolve(inputs, folder, {one: "ds_1", two: "ds_2"})
    assert stored == {
        "a": {"dataset": "ds_1"},
        "b": {"dataset": "ds_1"},
        "models": [{"dataset": "ds_2", "name": "later"}],
    }


def test_a_column_of_a_table_is_of_the_rows_that_are_read_from_it() -> None:
    """Once for both; a table of two models is two uploads, and its columns are of the first."""
    inputs = {
        "topics": {"path": "rows.parquet", "column": "topic"},
        "models": [
            {"path": "rows.parquet", "vector_column": "old", "id_column": "doc", "name": "old"},
            {"path": "rows.parquet", "vector_column": "new", "name": "new"},
        ],
        "groups": {"path": "other.parquet", "column": "g"},
        "dose": {"path": "rows.parquet", "column": "d", "vector_column": "new"},
    }
    told = requests.spelled_out(inputs, Path())
    files = requests.files(told, Path())
    old, new, other, mixed = (
        requests.File(Path(name).resolve(), *columns)
        for name, *columns in (
            ("rows.parquet", "old", "doc"), ("rows.parquet", "new"), ("other.parquet",),
            ("rows.parquet", "new", "doc"),
        )
    )  # fmt: skip
    assert set(files) == {old, new, other, mixed}
    stored = requests.resolve(
        told, Path(), {old: "ds_1", new: "ds_2", other: "ds_3", mixed: "ds_4"}
    )
    assert stored["topics"] == {"dataset": "ds_1", "column": "topic"}
    assert stored["models"] == [
        {"dataset": "ds_1", "name": "old"},
        {"dataset": "ds_2", "name": "new"},
    ]
    assert stored["groups"] == {"dataset": "ds_3", "column": "g"}


def test_a_path_of_a_store_is_no_file_here() -> None:
    """It is below the address of a connection."""
    inputs = {"vectors": {"source": {"kind": "npy", "connection": "lake", "path": "a.npy"}}}
    assert requests.files(inputs, Path()) == []
    assert requests.resolve(requests.spelled_out(inputs, Path()), Path(), {}) == inputs


def test_a_role_may_name_a_table_rows_of_a_store_or_json(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    words = [
        "geometry", "--vectors", "rows.parquet?vector_column=v%26w&id_column=doc",
        "--groups", "rows.parquet:topic",
    ]  # fmt: skip
    body, _ = requests.build(words)
    table = {"path": "rows.parquet", "vector_column": "v&w", "id_column": "doc"}
    assert body["inputs"] == {"vectors": table, "groups": {**table, "column": "topic"}}
    assert requests.bindings(["a=rows.parquet"]) == {"a": {"path": "rows.parquet"}}
    elsewhere = "a=pgvector:table=docs,connection=prod,page_rows=9,vector=v"
    source = {
        "kind": "pgvector", "table": "docs", "connection": "prod", "page_rows": 9, "vector": "v",
    }  # fmt: skip
    assert requests.bindings([elsewhere]) == {"a": {"source": source}}
    assert requests.bindings(['a={"source": {"kind": "npy"}}']) == {
        "a": {"source": {"kind": "npy"}}
    }
    for words, said in (
        ("a=rows.parquet?vectors=v", "vector_column=NAME and id_column=NAME"),
        ("a=rows.parquet?", "there is no such file"),
        ("a={", "is not JSON"),
        ('a={"level": NaN}', "is not JSON"),
        ("a=pgvector:connection=prod,table", "give name=value"),
    ):
        with pytest.raises(Mistake, match=said):
            requests.bindings([words])


def test_a_policy_is_yaml_or_json(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "version: 1\nrules: [{at_least: 0.5}]\n", encoding="utf-8"
    )
    (tmp_path / "policy.json").write_text('{"version": 1}', encoding="utf-8")

    assert requests.read_policy(tmp_path / "policy.yaml") == {
        "version": 1,
        "rules": [{"at_least": 0.5}],
    }
    assert requests.read_policy(tmp_path / "policy.json") == {"version": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML"),
        ("- a", "must hold a mapping"),
        ("day: 2026-01-01", "a value JSON has not"),
        ("bound: .nan", "a value JSON has not"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_a_policy_that_cannot_be_used(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "policy.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(Mistake, match=said):
        requests.read_policy(tmp_path / "policy.yaml")


def test_gate_inputs_are_bound_by_name(vectors: Path, labels: Path) -> None:
    pairs = ["old=ds_1", "now=baseline:prod", "topics=baseline:prod:intent"]
    assert requests.bindings(["rows=rows.npy", "labels=rows.csv:intent", *pairs]) == {
        "now": {"baseline": "prod"},
        "topics": {"baseline": "prod", "column": "intent"},
        "rows": {"path": "rows.npy"},
        "labels": {"path": "rows.csv", "column": "intent"},
        "old": {"dataset": "ds_1"},
    }


@pytest.mark.parametrize("pairs", [["rows.npy"], ["=rows.npy"], ["rows="], ["a=ds_1", "a=ds_2"]])
def test_a_gate_input_needs_one_name_and_one_value(pairs: list[str]) -> None:
    with pytest.raises(Mistake, match="--input"):
        requests.bindings(pairs)


def test_a_csv_without_a_column_is_a_table_or_a_mistake_that_lists_the_columns(
    labels: Path,
) -> None:
    """By what the role takes; a column of the same file is neither."""
    check = {"roles": [{"name": "runs", "kind": "table"}, {"name": "groups", "kind": "column"}]}
    body, base = requests.build(["any", "--runs", "rows.csv", "--groups", "rows.csv:id"])
    requests.refuse_tables(body, base, check)
    assert body["inputs"]["runs"] == {"path": "rows.csv"}
    body, base = requests.build(["any", "--groups", "rows.csv"])
    with pytest.raises(Mistake, match=r"--groups rows.csv:COLUMN \(it has id, intent\)"):
        requests.refuse_tables(body, base, check)


PARTS = {
    "roles": [{"name": "models", "parts": ["rows", "test"]}, {"name": "labels", "parts": []}],
    "params_schema": {"properties": {"level": {}}},
}


def test_models_of_several_matrices_are_answered_with_the_form_of_a_request() -> None:
    """`--models a=v1.npy` cannot say which matrix a file is."""
    body = {"kind": "linear_probe"}
    for given in ([{"path": "v1.npy", "name": "a"}], [{"dataset": "ds_1", "name": "a"}]):
        with pytest.raises(Mistake) as caught:
            requests.refuse_unknown({**body, "inputs": {"models": given}}, PARTS)
        said = caught.value.detail
        assert "listed in a request, `assay check --request FILE`" in said
        example = said[said.index("{") : said.index("; `assay checks")]
        assert example.startswith('{"kind": "linear_probe", "inputs": {"models": [{"name": NAME, ')
        assert '"rows": {"path": FILE}, "test": {"path": FILE}' in example
        assert said.endswith("by its parts: `--rows FILE`, `--test FILE`")
    listed = [{"name": "a", "rows": {"path": "v1.npy"}}, {"name": "b", "rows": {"path": "v2.npy"}}]
    requests.refuse_unknown({**body, "inputs": {"models": listed}}, PARTS)


def test_a_role_that_is_a_part_of_a_model_elsewhere_is_pointed_to() -> None:
    """`linear_probe --vectors` means `--rows`."""
    with pytest.raises(Mistake, match="one model is given by its parts: `--rows FILE`"):
        requests.refuse_unknown({"kind": "linear_probe", "inputs": {"vectors": {}}}, PARTS)


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
        requests.refuse_unknown(body, check)
    requests.refuse_unknown({"kind": "geometry", "inputs": {"vectors": {}}}, check)


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
