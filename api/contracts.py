"""The OpenAPI document: bodies that routes read as streams, and examples that are real answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.catalogue_page import catalogue_page
from api.problems import MEDIA_TYPE
from api.routes.events import DATA, event_schema
from api.routes.gates import Promotion
from service.formats.json_body import DatasetBody, ImportBody
from service.gate import Policy
from service.references import (
    BaselineColumn,
    BaselineRef,
    ColumnRef,
    DatasetRef,
    InlineColumn,
    InlineTable,
    InlineVectors,
)
from service.report import REPORTS
from service.request import REQUESTS
from service.storage.memory import memory_services

EXAMPLES = Path(__file__).parent.parent / "openapi" / "examples"
BOUND = (
    DatasetRef, BaselineRef, InlineVectors, InlineTable, ColumnRef, BaselineColumn, InlineColumn,
)  # fmt: skip
"""What an input of a policy may be bound to."""
REF = "#/components/schemas/{model}"


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` return the full document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def openapi(app: FastAPI) -> dict[str, Any]:
    """OpenAPI 3.1 of the application."""
    found = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    models: list[type[BaseModel]] = [
        *REQUESTS.values(), DatasetBody, ImportBody, Policy, *BOUND, Promotion,
        *DATA.values(),
    ]  # fmt: skip
    refs, schemas = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF
    )
    components = found["components"]["schemas"]
    for name, schema in schemas["$defs"].items():
        components.setdefault(name, schema)

    components["JobEvent"] = event_schema()

    def ref(model: Any) -> Any:
        return refs[model, "validation"]

    kinds = [ref(model) for model in REQUESTS.values()]
    bound = {"anyOf": [ref(model) for model in BOUND]}
    gate = {
        "type": "object",
        "required": ["policy"],
        "additionalProperties": False,
        "properties": {
            "policy": ref(Policy),
            "inputs": {"type": "object", "additionalProperties": bound},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
    only_policy = {**gate, "properties": {"policy": ref(Policy)}}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/datasets": {
            "application/x-npy": {"schema": {"type": "string", "format": "binary"}},
            "text/csv": {"schema": {"type": "string"}},
            "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
            "application/vnd.apache.arrow.stream": {
                "schema": {"type": "string", "format": "binary"}
            },
            "application/json": {"schema": {"anyOf": [ref(DatasetBody), ref(ImportBody)]}},
        },
        "/v1/jobs": {"application/json": {"schema": {"oneOf": kinds}}},
        "/v1/gates": {"application/json": {"schema": gate}},
        "/v1/gates/validate": {"application/json": {"schema": only_policy}},
        "/v1/gates/{gate_id}/promote": {"application/json": {"schema": ref(Promotion)}},
        "/v1/baselines/{name}": {"application/json": {"schema": ref(DatasetRef)}},
    }
    for path, content in bodies.items():
        method = "post" if "post" in found["paths"][path] else "put"
        found["paths"][path][method]["requestBody"] = {"required": True, "content": content}
    found["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "A key of `assay keys create`."}
    }
    found["security"] = [{"key": []}, {}]
    _keep_problem_media_type(found)
    _add_examples(found)
    return found


def _keep_problem_media_type(document: dict[str, Any]) -> None:
    """Errors have one media type; FastAPI documents its own beside it, and its 422 everywhere."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                content = response.get("content", {})
                if int(status) >= 400:
                    ref = {"$ref": REF.format(model="Problem")}
                    response["content"] = {MEDIA_TYPE: {"schema": ref}}
                elif MEDIA_TYPE in content:
                    del content[MEDIA_TYPE]
    for unused in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(unused, None)


def _add_examples(document: dict[str, Any]) -> None:
    """Put recorded requests and answers where they belong; see `openapi/examples/`."""
    for file in sorted(EXAMPLES.glob("*.json")):
        recorded = json.loads(file.read_text())
        operation = document["paths"][recorded["path"]][recorded["method"]]
        if "request" in recorded:
            body = operation["requestBody"]["content"]["application/json"]
            body.setdefault("examples", {})[file.stem] = {"value": recorded["request"]}
        response = operation["responses"][str(recorded["status"])]["content"]
        media = (
            response[recorded["media"]] if "media" in recorded else next(iter(response.values()))
        )
        media.setdefault("examples", {})[file.stem] = {"value": recorded["answer"]}


def contract_files(app: FastAPI) -> dict[str, str]:
    """Every generated file of `openapi/`, by its path there."""
    schemas = {
        "openapi.json": openapi(app),
        "policy.schema.json": Policy.model_json_schema(),
        **{
            f"reports/{kind}.schema.json": model.model_json_schema(mode="serialization")
            for kind, model in REPORTS.items()
        },
    }
    files = {name: json.dumps(schema, indent=1) + "\n" for name, schema in schemas.items()}
    return {**files, "catalogue.md": catalogue_page()}


def write_contract(folder: Path) -> list[Path]:
    """Write the generated files; their order is the order of `contract_files`."""
    from api.main import create_app

    written = []
    for name, text in contract_files(create_app(memory_services())).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written
