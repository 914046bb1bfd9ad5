"""Reports over time: what is listed, in which order, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from service.errors import InvalidRequest, UnknownCheck
from service.history import history
from service.job import Job
from service.operations import Services, cancel, report_bytes, submit
from service.report import load_report
from service.request import parse_request
from service.storage.memory import memory_services
from service.storage.memory_objects import MemoryReports

RNG = np.random.default_rng(9)
ROWS = RNG.normal(size=(30, 4)).tolist()


def geometry(seed: int, **more: Any) -> dict[str, Any]:
    """A request; its seed makes it a report of its own."""
    return {"kind": "geometry", "inputs": {"vectors": {"vectors": ROWS}}, "seed": seed, **more}


def floor() -> dict[str, Any]:
    return {"kind": "cosine_floor", "inputs": {"a": {"vectors": ROWS}, "b": {"vectors": ROWS}}}


def test_reports_are_listed_newest_first_with_the_numbers_they_hold(
    services: Services, ended: Callable[..., Job]
) -> None:
    """Each value is that of the stored report."""
    jobs = [ended(geometry(seed)) for seed in range(3)] + [ended(floor())]
    page = history(services, "default", 10)
    assert [one.job for one in page.items] == [job.id for job in reversed(jobs)]
    for point, job in zip(page.items, reversed(jobs), strict=True):
        report = load_report(report_bytes(services, "default", job.id))
        assert point.digest == report.digest
        assert point.created_at == job.created_at
        for one in point.measures:
            node: Any = report.results
            for key in one.measure.split("."):
                node = node.value(key)
            assert one.estimate == getattr(node, "estimate", node)
            assert one.interval == getattr(node, "interval", None)
    assert {one.measure for one in page.items[1].measures} >= {"rankme", "anisotropy"}


def test_only_what_was_asked_for_is_listed(services: Services, ended: Callable[..., Job]) -> None:
    """By kind, tag, dataset and measure, alone and together."""
    old = ended(geometry(0, tags={"env": "prod"}))
    new = ended(geometry(1, tags={"env": "test"}))
    other = ended(floor())

    def listed(**filters: Any) -> list[str]:
        return [one.job for one in history(services, "default", 10, **filters).items]

    assert listed(kind="geometry") == [new.id, old.id]
    assert listed(tag=("env", "prod")) == [old.id]
    used: Any = old.inputs["vectors"]
    assert set(listed(dataset=used.dataset)) == {old.id, new.id, other.id}
    assert listed(dataset="ds_" + "0" * 24) == []
    assert listed(measures=["raw.gap"]) == [other.id]
    assert listed(measures=["raw.gap"], tag=("env", "prod")) == []
    (point,) = history(services, "default", 10, measures=["raw.gap", "raw.floor"]).items
    assert sorted(one.measure for one in point.measures) == ["raw.floor", "raw.gap"]


def test_what_has_no_report_is_not_listed(services: Services, ended: Callable[..., Job]) -> None:
    """Jobs that wait, failed or were cancelled; those of another project."""
    submit(services, "default", parse_request(geometry(1)))
    stopped = submit(services, "default", parse_request(geometry(2)))
    cancel(services, "default", stopped.id)
    ended(geometry(3), project="other")
    assert history(services, "default", 10).items == []


def test_pages_are_stable_while_new_reports_come_in(
    services: Services, ended: Callable[..., Job]
) -> None:
    """Nothing comes twice and nothing is left out of those that were there."""
    jobs = [ended(geometry(seed)).id for seed in range(7)]
    found: list[str] = []
    cursor = None
    for seed in range(10, 20):
        page = history(services, "default", 2, cursor, kind="geometry")
        found += [one.job for one in page.items]
        ended(geometry(seed))
        if (cursor := page.next_cursor) is None:
            break
    assert found == jobs[::-1]


def test_a_job_that_was_answered_by_a_report_of_another_says_so(
    services: Services, ended: Callable[..., Job]
) -> None:
    first, second = ended(geometry(0)), ended(geometry(0))
    new, old = history(services, "default", 10).items
    assert (new.job, new.cached) == (second.id, True)
    assert (old.job, old.cached) == (first.id, False)
    assert new.digest == old.digest


def test_an_unknown_measure_or_kind_says_what_may_have_been_meant(services: Services) -> None:
    """A typing error gives no empty list."""
    with pytest.raises(InvalidRequest) as refused:
        history(services, "default", 10, kind="geometry", measures=["rankmee"])
    assert "did you mean `rankme`?" in refused.value.faults[0].message
    with pytest.raises(InvalidRequest):
        history(services, "default", 10, kind="geometry", measures=["raw.gap"])
    with pytest.raises(UnknownCheck, match="did you mean `geometry`"):
        history(services, "default", 10, kind="geometri")
    names = "conditions.{condition}.overlapp@{k}"
    with pytest.raises(InvalidRequest) as refused:
        history(services, "default", 10, measures=[names])
    assert "`conditions.{condition}.overlap@{k}`" in refused.value.faults[0].message


def test_a_report_that_was_deleted_is_listed_without_numbers(ended: Callable[..., Job]) -> None:
    """Somebody emptied that folder of the store: the job was there."""
    services = memory_services()
    job = ended(geometry(0), on=services)
    emptied = memory_services(jobs=services.jobs, reports=MemoryReports())
    (point,) = history(emptied, "default", 10).items
    assert (point.job, point.digest, point.measures) == (job.id, None, [])
