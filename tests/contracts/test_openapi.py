"""The OpenAPI document against the application: requests generated from it by Schemathesis."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import schemathesis
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.main import create_app
from api.problems import STATUS
from api.streams import Pace
from service.operations import Upload, perform, submit
from service.request import parse_request
from service.storage.memory import memory_services

HERE = "http://localhost"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def written(rows: Any) -> bytes:
    """The .npy file numpy writes."""
    file = io.BytesIO()
    np.save(file, rows)
    return file.getvalue()


matrices = st.builds(
    lambda dtype, shape, fill: written(np.full(shape, fill).astype(dtype)),
    st.sampled_from(["f2", ">f4", "f8", "i1", "i4", "u2"]),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([0, 1, -1, 0.5]),
)
schemathesis.openapi.media_type("application/x-npy", st.binary(max_size=200) | matrices)


for table in ("parquet", "arrow.stream"):
    schemathesis.openapi.media_type(f"application/vnd.apache.{table}", st.binary(max_size=200))


def as_they_are(context: Any, value: Any) -> bytes:
    """Bytes of a generated body; what is generated to be wrong may be anything."""
    return value if isinstance(value, bytes) else str(value).encode()


for binary in ("x-npy", "vnd.apache.parquet", "vnd.apache.arrow.stream"):
    schemathesis.serializer(f"application/{binary}")(as_they_are)


SERVICES = memory_services()
APP = create_app(SERVICES, pace=Pace(look_s=0.01, longest_s=0.02))
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)


def filled() -> dict[str, list[str]]:
    """Ids of what is there: two datasets, jobs in several states, a gate."""
    file = io.BytesIO()
    np.save(file, np.random.default_rng(1).normal(size=(12, 3)))
    upload = Upload(SERVICES, "default", "application/x-npy", name="rows")
    upload.feed(file.getvalue())
    rows = upload.finish()[0].id
    upload = Upload(SERVICES, "default", "text/csv")
    upload.feed(b"g\n" + b"a\nb\n" * 6)
    columns = upload.finish()[0].id

    def job(kind: str, **more: Any) -> str:
        names = {"geometry": ["vectors"], "cosine_floor": ["a", "b"]}[kind]
        body = {"kind": kind, "inputs": {name: {"dataset": rows} for name in names}, **more}
        return submit(SERVICES, "default", parse_request(body)).id

    done = [job("geometry"), job("cosine_floor")]
    for one in done:
        perform(SERVICES, one)
    cancelled = job("geometry", seed=1)
    from service.gating import run_gate
    from service.operations import cancel

    cancel(SERVICES, "default", cancelled)
    policy = {
        "version": 1, "name": "p", "inputs": {"x": "vectors"},
        "checks": {"c": {"kind": "geometry", "inputs": {"vectors": "x"}}},
        "rules": [
            {"measure": "c.rankme", "at_least": 1.5}, {"measure": "c.anisotropy", "at_most": 0.9}
        ],
    }  # fmt: skip
    gate = run_gate(SERVICES, "default", policy, {"x": {"dataset": rows}}, {})
    return {
        "dataset_id": [rows, columns],
        "job_id": [*done, cancelled, job("geometry", seed=2)],
        "gate_id": [gate.id],
        "kind": ["geometry", "cosine_floor"],
    }


KNOWN = filled()


@SCHEMA.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Most generated ids are of things that are there; the rest stay as they were generated."""
    for name, value in (path_parameters or {}).items():
        place = len(str(value)) % 8
        if name in KNOWN and place < 6:
            path_parameters[name] = KNOWN[name][place % len(KNOWN[name])]
    return path_parameters


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Thousands of requests without a log."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@SCHEMA.parametrize()
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_the_document_describes(case: schemathesis.Case, strict: Any) -> None:
    """Status, media type and schema; an error is a problem with a known code; JSON is strict."""
    case.headers = {**(case.headers or {}), "Host": "localhost"}
    case.headers.pop("Prefer", None)
    answer = case.call_and_validate(base_url=HERE, checks=CHECKS)

    kind = answer.headers["content-type"][0].partition(";")[0] if answer.content else ""
    if answer.status_code >= 400:
        assert kind == "application/problem+json"
        found = strict(answer.content)
        assert STATUS.keys() >= {found["code"]}
        assert found["status"] == answer.status_code
        assert found["type"] == f"/problems/{found['code']}"
        assert found["code"] != "forbidden", "the request was not seen as local"
    elif kind == "application/json":
        strict(answer.content)


def test_the_document_names_every_route() -> None:
    """Those that answer, but the pages of the documentation itself."""
    document = APP.openapi()
    served = {
        (route.path, method.lower())
        for router in APP.routes
        for route in getattr(getattr(router, "original_router", router), "routes", [router])
        for method in getattr(route, "methods", None) or ()
        if method != "HEAD" and getattr(route, "include_in_schema", False)
    }
    described = {(path, method) for path, item in document["paths"].items() for method in item}
    assert described == served
    assert len(described) >= 15
    assert document["openapi"].startswith("3.1")


def test_every_example_in_the_document_fits_its_schema() -> None:
    """By an independent validator; the request of a recorded refusal is wrong, as it should be."""
    from jsonschema_rs import Draft202012Validator

    document = json.loads(json.dumps(APP.openapi()))
    seen = 0
    for item in document["paths"].values():
        for operation in item.values():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            refused = {
                name
                for status, answer in operation["responses"].items()
                for media in answer.get("content", {}).values()
                for name in media.get("examples", {})
                if int(status) >= 400
            }
            for i, body in enumerate(bodies):
                for media in body.get("content", {}).values():
                    schema = {"components": document["components"], **media["schema"]}
                    validator = Draft202012Validator(schema)
                    for name, example in media.get("examples", {}).items():
                        wrong = i == 0 and name in refused
                        assert validator.is_valid(example["value"]) != wrong, name
                        seen += 1
    assert seen > 5


def test_every_error_is_described_as_a_problem() -> None:
    """No answer of 4xx or 5xx has another media type, and every code stands in some description."""
    document = APP.openapi()
    described = ""
    for item in document["paths"].values():
        for operation in item.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"]
                    described += answer["description"]
    inside_jobs = {
        "cancelled", "timed-out", "out-of-memory", "worker-lost", "internal",
        "source-unreachable", "source-inconsistent",
    }  # fmt: skip
    anywhere = {"unknown-path", "method-not-allowed"}
    assert {code for code in STATUS if f"`{code}`" not in described} <= inside_jobs | anywhere
