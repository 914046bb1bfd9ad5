"""Reports that are doubted: recomputed, compared, and caught where somebody changed them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rfc8785

from service.dataset_record import DatasetRecord
from service.errors import InvalidRequest, MalformedPayload, UnknownDataset
from service.job import Job
from service.operations import Services, remove_dataset, report_bytes
from service.report import load_report
from service.storage.memory import memory_services
from service.verifying import Verification, compare, verify

RNG = np.random.default_rng(8)
ROWS = RNG.normal(size=(40, 6)).tolist()
OTHERS = RNG.normal(size=(40, 6)).tolist()
LABELS = [f"g{i % 8}" for i in range(40)]
TABLE = {"condition": [*"aaabbb"], "seed": [0, 1, 2] * 2, "score": [0.4, 0.1, 0.2, 0.3, 0.5, 0.9]}
WHY = {"code": "none", "message": "None."}
Edit = Callable[[dict[str, Any]], object]
REQUESTS: dict[str, dict[str, Any]] = {
    "one matrix and a column": {
        "kind": "geometry",
        "inputs": {"vectors": {"vectors": ROWS}, "groups": {"values": LABELS}},
    },
    "two models by name": {
        "kind": "group_structure",
        "inputs": {
            "models": [{"name": "old", "vectors": ROWS}, {"name": "new", "vectors": OTHERS}],
            "groups": {"values": LABELS},
        },
        "params": {"permutations": 99},
        "seed": 3,
    },
    "models of several matrices": {
        "kind": "retrieval",
        "inputs": {
            "queries": {"vectors": ROWS},
            "documents": {"vectors": OTHERS},
            "relevance": {"values": [[i] for i in range(40)]},
        },
        "params": {"ks": [1, 5]},
    },
    "a table": {
        "kind": "seed_contrasts",
        "inputs": {"runs": {"columns": TABLE}},
        "params": {"contrasts": [{"a": "a", "b": "b"}], "metrics": ["score"]},
    },
    "no data": {
        "kind": "power",
        "params": {"correlation": 0.3, "groups": 20, "perfect_share": 0.97},
    },
}


@pytest.fixture
def reported(services: Services, ended: Callable[..., Job]) -> Callable[..., bytes]:
    """The report of a request."""

    def run(body: dict[str, Any] | str) -> bytes:
        job = ended(REQUESTS[body] if isinstance(body, str) else body)
        return report_bytes(services, job.project, job.id)

    return run


@pytest.fixture
def check_again(services: Services) -> Callable[[bytes], Verification]:
    """Verify on the same datasets, with nothing else kept."""
    return lambda data: verify(memory_services(datasets=services.datasets), "default", data)


def edited(data: bytes, edit: Edit, *, hide: bool = False) -> bytes:
    """The same report after an edit; one who hides it gives it the digest that belongs to it."""
    body = json.loads(data)
    edit(body)
    if hide:
        content = {"request_digest": body["request_digest"], "results": body["results"]}
        body["digest"] = hashlib.sha256(rfc8785.dumps(content)).hexdigest()
    return json.dumps(body).encode()


def elsewhere(body: dict[str, Any]) -> None:
    body["environment"]["cpu"] = "another machine"


@pytest.mark.parametrize("name", REQUESTS)
def test_a_report_nobody_changed_is_equal(
    name: str, reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """To the last bit, by its digest."""
    data = reported(name)
    found = check_again(data)
    assert found.equal
    assert found.same_place
    assert found.digest == json.loads(data)["digest"]
    assert found.added == []


@pytest.mark.parametrize("hide", [False, True], ids=["clumsy", "with a digest that fits"])
@pytest.mark.parametrize(
    ("pointer", "edit"),
    [
        ("/results/rankme", lambda b: b["results"].update(rankme=b["results"]["rankme"] + 1e-13)),
        ("/results/n", lambda b: b["results"].update(n=41)),
        ("/readings/0", lambda b: b["readings"].__setitem__(0, "All is well.")),
        ("/readings", lambda b: b.update(readings=[])),
        ("/scope/0", lambda b: b["scope"].clear()),
        (
            "/warnings/0",
            lambda b: b["warnings"].append({"code": "a", "message": "b", "where": "c"}),
        ),
        ("/inputs/vectors/n", lambda b: b["inputs"]["vectors"].update(n=4000)),
        ("/inputs/vectors/spec/model", lambda b: b["inputs"]["vectors"]["spec"].update(model="x")),
        ("/request_digest", lambda b: b.update(request_digest="0" * 64)),
    ],
)
def test_a_tampered_place_is_found(
    pointer: str,
    edit: Edit,
    hide: bool,
    reported: Callable[..., bytes],
    check_again: Callable[[bytes], Verification],
) -> None:
    """By its JSON pointer, however small the change, and whoever computed a new digest."""
    found = check_again(edited(reported("one matrix and a column"), edit, hide=hide))
    assert not found.equal
    assert any(one.pointer.startswith(pointer) for one in found.differences)


def test_params_that_were_changed_give_other_results_and_another_request(
    reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """The report says level .9 over intervals of .95."""

    def edit(body: dict[str, Any]) -> None:
        body["params"]["level"] = 0.9

    found = check_again(edited(reported("two models by name"), edit, hide=True))
    places = [one.pointer for one in found.differences]
    assert "/request_digest" in places
    assert any(place.endswith("/interval/level") for place in places)


def test_a_digest_alone_that_was_changed_is_found(
    reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    found = check_again(edited(reported("no data"), lambda body: body.update(digest="0" * 64)))
    assert [one.pointer for one in found.differences] == ["/digest"]


def test_an_entry_of_a_map_that_was_taken_out_is_found(
    reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """It is no field an older service did not have."""

    def edit(body: dict[str, Any]) -> None:
        del body["results"]["models"]["new"]

    found = check_again(edited(reported("two models by name"), edit, hide=True))
    assert "/results/models/new" in [one.pointer for one in found.differences]


def test_numbers_are_the_same_however_json_spells_them(
    reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """JavaScript writes 1.0 as 1, and keys in any order."""

    def whole(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: whole(node[key]) for key in sorted(node)}
        if isinstance(node, list):
            return [whole(one) for one in node]
        return int(node) if isinstance(node, float) and node.is_integer() else node

    data = json.dumps(whole(json.loads(reported("one matrix and a column")))).encode()
    assert check_again(data).equal


@pytest.mark.parametrize(
    ("change", "equal"), [(9e-10, True), (-9e-10, True), (1.2e-9, False), (-1.2e-9, False)]
)
def test_in_another_environment_floats_may_differ_by_a_billionth(
    change: float,
    equal: bool,
    reported: Callable[..., bytes],
    check_again: Callable[[bytes], Verification],
) -> None:
    """In the same one by nothing."""

    def edit(body: dict[str, Any]) -> None:
        body["results"]["rankme"] *= 1 + change

    data = edited(reported("one matrix and a column"), edit, hide=True)
    assert not check_again(data).equal
    found = check_again(edited(data, elsewhere))
    assert not found.same_place
    assert found.equal == equal


@pytest.mark.parametrize(
    "edit",
    [
        lambda b: b["results"].update(n=b["results"]["n"] + 1),
        lambda b: b["readings"].__setitem__(0, b["readings"][0] + " "),
        lambda b: b["results"].update(rankme=None, undefined={"rankme": WHY}),
        lambda b: b["results"].update(rankme=0.0),
    ],
    ids=["an integer", "a text", "a null", "zero"],
)
def test_in_another_environment_all_else_is_equal(
    edit: Edit, reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """Integers, texts, nulls, and zero, of which nothing is a billionth."""
    data = reported("one matrix and a column")
    assert check_again(edited(data, elsewhere)).equal

    def both(body: dict[str, Any]) -> None:
        elsewhere(body)
        edit(body)

    assert not check_again(edited(data, both, hide=True)).equal


def test_how_an_optimiser_ended_may_differ_between_machines_and_only_there(
    services: Services, reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """On clinc150 another BLAS kernel took 100 iterations of 101, to the same accuracy."""
    body = {
        "kind": "linear_probe",
        "inputs": {
            "models": [{"rows": {"vectors": ROWS}}],
            "labels": {"values": [f"l{i % 2}" for i in range(40)]},
        },
    }

    def edit(body: dict[str, Any]) -> None:
        body["results"]["models"]["model_1"]["n_iter"] += 1

    data = edited(reported(body), edit, hide=True)
    assert [one.pointer for one in check_again(data).differences] == [
        "/results/models/model_1/n_iter"
    ]
    found = check_again(edited(data, elsewhere))
    assert found.equal
    assert found.exempt == 1


def test_data_are_found_by_content_when_their_ids_are_gone(
    services: Services,
    store: Callable[..., DatasetRecord],
    reported: Callable[..., bytes],
    check_again: Callable[[bytes], Verification],
) -> None:
    """Deleted and uploaded again, under other ids and other names."""
    body = {"columns": {"topic": LABELS}, "vectors": ROWS}
    old = store(body).id
    request = {
        "kind": "geometry",
        "inputs": {"vectors": {"dataset": old}, "groups": {"dataset": old, "column": "topic"}},
    }
    data = reported(request)
    remove_dataset(services, "default", old)
    with pytest.raises(UnknownDataset, match=old):
        check_again(data)
    assert store({**body, "name": "again"}).id != old
    assert check_again(data).equal


def test_an_id_that_leads_to_other_data_does_not_stand_for_them(
    store: Callable[..., DatasetRecord],
    reported: Callable[..., bytes],
    check_again: Callable[[bytes], Verification],
) -> None:
    """Somebody puts the id of another dataset into the report: the content decides."""
    other = store(np.asarray(OTHERS)).id
    data = reported("one matrix and a column")

    def edit(body: dict[str, Any]) -> None:
        body["inputs"]["vectors"]["dataset"] = other

    assert check_again(edited(data, edit)).equal

    def forge(body: dict[str, Any]) -> None:
        body["inputs"]["vectors"].update(dataset=other, sha256="0" * 64)

    with pytest.raises(UnknownDataset, match="0000"):
        check_again(edited(data, forge))


def test_data_of_another_project_are_not_found(
    services: Services, reported: Callable[..., bytes]
) -> None:
    data = reported("one matrix and a column")
    with pytest.raises(UnknownDataset, match="inputs/vectors"):
        verify(memory_services(datasets=services.datasets), "other", data)


@pytest.mark.parametrize("version", [0, 99, None, "1"])
def test_a_report_of_another_version_is_refused_in_words(
    version: Any, reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """Its numbers mean something else; what made it is named."""
    data = edited(reported("no data"), lambda body: body.update(kind_version=version))
    with pytest.raises(InvalidRequest, match=r"of version .* computes version 1.*0\.1\.0"):
        check_again(data)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b'{"kind": 3}', b"[" * 10_000])
def test_what_is_no_report_is_refused(
    data: bytes, check_again: Callable[[bytes], Verification]
) -> None:
    with pytest.raises((InvalidRequest, MalformedPayload)):
        check_again(data)


def test_a_key_that_comes_twice_is_refused(
    reported: Callable[..., bytes], check_again: Callable[[bytes], Verification]
) -> None:
    """One reader would see the first number and another the second."""
    data = reported("no data").replace(b'"seed":0', b'"seed":7,"seed":0')
    assert json.loads(data)["seed"] == 0
    with pytest.raises(MalformedPayload, match="twice"):
        check_again(data)


def test_what_the_service_states_since_then_is_no_difference(
    reported: Callable[..., bytes],
) -> None:
    """A field with a default that the report has not; one it must have is another matter."""
    data = reported("two models by name")
    body = json.loads(data)
    older = copy.deepcopy(body)
    del older["timing"]["effort"]
    del older["params"]["census"]
    older["request_digest"] = "of fewer parameters"
    content = {"request_digest": older["request_digest"], "results": older["results"]}
    older["digest"] = hashlib.sha256(rfc8785.dumps(content)).hexdigest()
    report, again = load_report(json.dumps(older).encode()), load_report(data)
    found = compare(older, report, body, again)
    assert found.equal
    assert found.added == ["/params/census"]
    older["params"]["level"] = 0.5
    assert not compare(older, report, body, again).equal
