"""Imports of whole stores: the dataset an upload of the same rows would have made, or nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.importing import fetch
from service.job import Job, State
from service.operations import Services, import_dataset
from service.references import SourceRef
from service.sources import NamedSources, pgvector
from service.sources.connection import Connection
from tests.stores import servers
from tests.stores.loading import SECRET, Pgvector, Table

KINDS = ["pgvector", "qdrant", "chroma", "milvus", "lancedb", "redis"]


@pytest.fixture
def imported(services: Services) -> Callable[..., tuple[Services, Job]]:
    """Services, and the job that imported a reference as it ended."""

    def run(connection: Connection, reference: Mapping[str, Any]) -> tuple[Services, Job]:
        on = replace(services, sources=NamedSources({"prod": connection}, Path("/nonexistent")))
        value = SourceRef.model_validate({"source": {"connection": "prod", **reference}})
        job = import_dataset(on, "default", value, "docs")
        fetch(on, job.id)
        return on, on.jobs.get("default", job.id)

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_an_import_has_the_hash_of_the_upload_of_the_same_rows(
    kind: str, loaded: Any, imported: Any, rows: Any, store: Any
) -> None:
    running, ids = loaded[kind]
    reference = {**running.reference("docs"), "columns": ["section"], "page_rows": 300}
    on, job = imported(running.connection, reference)
    assert job.state is State.succeeded, job.problem
    dataset = job.inputs["dataset"].dataset
    record = on.datasets.record("default", dataset)
    uploaded = store(np.array(rows("debian_pairs/minilm_doc")))
    assert record.vectors_sha256 == uploaded.vectors_sha256
    assert on.datasets.load("default", dataset).ids == tuple(ids)
    assert record.columns["section"].missing == 399
    about = record.spec.source
    assert (about.rows, about.count_before, about.count_after) == (1996, 1996, 1996)
    assert SECRET not in record.model_dump_json() + job.model_dump_json()
    again = imported(running.connection, reference)[1]
    assert again.inputs["dataset"].dataset == dataset


@pytest.mark.parametrize("kind", ["pgvector", "qdrant", "lancedb", "redis"])
def test_pages_without_any_vector_do_not_stop_an_import(
    kind: str, stores: Any, imported: Any, table: Table
) -> None:
    vectors = [None if i < 4 else vector for i, vector in enumerate(table.vectors[:8])]
    stores[kind].load("late", Table(vectors, {"n": list(range(8))}))
    on, job = imported(stores[kind].connection, {**stores[kind].reference("late"), "page_rows": 2})
    assert job.state is State.succeeded, job.problem
    record = on.datasets.record("default", job.inputs["dataset"].dataset)
    assert (record.n, record.spec.source.missing_vectors) == (4, 4)


def test_a_server_killed_meanwhile_leaves_no_dataset_and_tells_no_secret(
    imported: Any, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with servers.postgres(SECRET) as server:
        running = Pgvector(server.port)
        running.load("docs", Table(list(table.vectors) * 15))
        read_page, pages = pgvector._page, []

        def killing(*arguments: Any) -> Any:
            pages.append(read_page(*arguments))
            if len(pages) == 2:
                server.kill(signal.SIGQUIT)
            return pages[-1]

        monkeypatch.setattr(pgvector, "_page", killing)
        on, job = imported(running.connection, {**running.reference("docs"), "page_rows": 100})
    assert len(pages) >= 2
    assert job.state is State.failed
    assert job.problem.code == "source-unreachable"
    assert on.datasets.page("default", 10, None).items == []
    assert SECRET not in job.model_dump_json()


def test_ids_that_repeat_are_refused_by_name(stores: Any, imported: Any) -> None:
    running = stores["pgvector"]
    with running.client() as client:
        client.execute("CREATE TABLE repeated (id int, embedding vector(2))")
        client.execute("INSERT INTO repeated VALUES (7, '[1,2]'), (7, '[3,4]'), (2, '[5,6]')")
    on, job = imported(running.connection, running.reference("repeated"))
    assert job.state is State.failed
    assert job.problem.code == "duplicate-ids"
    assert "fetched 3, distinct 2, repeated 1" in job.problem.detail
    assert job.problem.errors[0].rows == ["7"]
    assert on.datasets.page("default", 10, None).items == []
