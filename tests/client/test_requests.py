"""Request files and the shorthand of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from assay_client import requests
from assay_client.problems import Mistake
from pydantic import TypeAdapter

from service.source_reference import SourceReference


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


NAMES = r"`--models BERT=.*`: the name of a model is 1 to 32 of a-z, 0-9 and _: --models bert="


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the check"),
        (["geometry", "rows.npy"], r"unexpected `rows.npy`: a file needs its role"),
        (["geometry", "-v", "rows.npy"], r"`-v` is neither an option nor a role"),
        (["geometry", "--vectors"], r"`--vectors` needs a value"),
        (["geometry", "--jsn", "--vectors", "rows.npy"], r"needs a value. Did you mean `--json`"),
        (["geometry", "--a", "rows.npy", "--a", "rows.npy"], r"`--a` is given twice"),
        (["geometry", "--models", "BERT=rows.npy"], NAMES),
        (["geometry", "--models", "BERT=rows.npy", "--models", "b=rows.npy"], NAMES),
        (["geometry", "--models", "b=rows.npy", "--models", "BERT=ds_1"], NAMES),
        (["geometry", "--models", "mini.lm v3=rows.npy"], "--models mini_lm_v3=rows.npy$"),
        (["geometry", "--vectors", "LR=1/gone.npy"], r"`--vectors LR=1/gone.npy`: there is no"),
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


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("chroma:connection=c,collection=20240", {"connection": "c", "collection": "20240"}),
        ("chroma:connection=c,collection=true", {"connection": "c", "collection": "true"}),
        ('chroma:connection=c,collection="20240"', {"connection": "c", "collection": "20240"}),
        (
            "pgvector:connection=prod,table=a,b=c,vector=e,id=id",
            {"connection": "prod", "table": "a,b=c", "vector": "e", "id": "id"},
        ),
        (
            'pgvector:connection=prod,table=t,columns=["a","b"],page_rows=7',
            {"connection": "prod", "table": "t", "columns": ["a", "b"], "page_rows": 7},
        ),
        (
            'pgvector:connection=prod,table=t,where=[{"column":"n","op":"in","value":[1,2]}]',
            {
                "connection": "prod",
                "table": "t",
                "where": [{"column": "n", "op": "in", "value": [1, 2]}],
            },
        ),
        (
            "lancedb:connection=lake,table=1e3,version=4",
            {"connection": "lake", "table": "1e3", "version": 4},
        ),
    ],
)
def test_fields_of_a_source_that_are_text_stay_text(word: str, found: dict[str, Any]) -> None:
    bound = requests.bindings([f"rows={word}"])
    assert bound == {"rows": {"source": {"kind": word.partition(":")[0], **found}}}


def test_every_field_of_a_source_is_known_as_text_or_json() -> None:
    """As the service declares them."""
    text: set[str] = set()
    other: set[str] = set()
    for model in TypeAdapter(SourceReference).json_schema()["$defs"].values():
        if "kind" not in model["properties"]:
            continue
        for name, field in model["properties"].items():
            if name == "kind":
                continue
            kinds = {one.get("type") for one in field.get("anyOf", [field])} - {"null"}
            (text if kinds == {"string"} else other).add(name)
    assert text == set(requests.TEXT_FIELDS)
    assert other == set(requests.JSON_FIELDS)


def test_a_misspelt_field_of_a_source_is_named() -> None:
    with pytest.raises(Mistake, match="did you mean `collection`"):
        requests.bindings(["rows=chroma:connection=c,colection=docs"])
