"""The envelope: bytes that load again, digests that can be recomputed, and nothing but numbers."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import rfc8785
from pydantic import ValidationError

from service.checks import CATALOGUE
from service.report import (
    REPORT_VERSION,
    REPORTS,
    canonical,
    environment,
    load_report,
    result_digest,
)


@pytest.fixture
def stored(ended: Any, services: Any) -> Any:
    """The stored bytes of a real report."""

    def make(seed: int = 0) -> bytes:
        rows = np.random.default_rng(2).normal(size=(12, 3)).tolist()
        body = {"kind": "geometry", "inputs": {"vectors": {"vectors": rows}}, "seed": seed}
        return services.reports.get("default", ended(body).request_digest)

    return make


def test_a_stored_report_loads_as_its_own_type_and_writes_itself_again(stored: Any) -> None:
    """Nothing is lost or added on the way."""
    data = stored()
    found = load_report(data)
    assert type(found) is REPORTS["geometry"]
    assert found.report_version == REPORT_VERSION
    assert json.loads(found.model_dump_json()) == json.loads(data)


def test_the_digest_adds_the_results_to_the_request_digest(stored: Any) -> None:
    """Recomputed from the bytes alone: RFC 8785 of both, by the library that implements it."""
    found = json.loads(stored())
    content = {"request_digest": found["request_digest"], "results": found["results"]}
    assert hashlib.sha256(rfc8785.dumps(content)).hexdigest() == found["digest"]
    loaded = load_report(json.dumps(found).encode())
    assert result_digest(found["request_digest"], loaded.results) == found["digest"]


def test_time_and_environment_stay_outside_the_digest(stored: Any) -> None:
    """Two runs at different times have one digest; another seed has another."""
    found = json.loads(stored())
    changed = {**found, "created_at": "2001-01-01T00:00:00Z"}
    changed["timing"] = {"run_s": 99.0, "stages": {}}
    changed["environment"] = {**found["environment"], "cpu": "other"}
    loaded = load_report(json.dumps(changed).encode())
    assert result_digest(loaded.request_digest, loaded.results) == found["digest"]
    assert json.loads(stored(seed=1))["digest"] != found["digest"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_report_cannot_hold_what_json_cannot(value: float, stored: Any) -> None:
    """Neither in bytes, nor when it is built."""
    text = stored().decode()
    number = json.loads(text)["results"]["norms"]["min"]
    broken = text.replace(json.dumps(number), json.dumps(value), 1)
    assert broken != text
    with pytest.raises(ValidationError):
        load_report(broken.encode())
    loaded = load_report(text.encode())
    with pytest.raises(ValidationError):
        type(loaded.results.norms).model_validate(
            {**loaded.results.norms.model_dump(), "min": value}
        )
    with pytest.raises(rfc8785.FloatDomainError):
        canonical({"x": value})


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "nothing"}, {"results": {}}, {"params": {"max_spectrum": 0}}, {"seed": "x"},
        {"created_at": "yesterday"}, {"more": 1}, {"inputs": {"vectors": {"n": 1}}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_report_does_not_load(change: dict[str, Any], stored: Any) -> None:
    """Typed to the last field."""
    with pytest.raises(ValidationError):
        load_report(json.dumps({**json.loads(stored()), **change}).encode())


def test_every_check_has_a_report_type_of_its_own_name() -> None:
    """With its params and results."""
    assert list(REPORTS) == [check.kind for check in CATALOGUE]
    for check in CATALOGUE:
        fields = REPORTS[check.kind].model_fields
        assert fields["results"].annotation is check.results
        assert fields["params"].annotation is check.params
    names = [report.__name__ for report in REPORTS.values()]
    assert len(set(names)) == len(names)


def test_the_environment_names_what_computed() -> None:
    """Versions of the numeric libraries and of the service; no host name, no path."""
    found = environment().model_dump()
    assert found["numpy"] == np.__version__
    assert all(isinstance(value, str) and value for value in found.values())
    assert not any("/" in value for value in found.values())
