"""What the tests share: real embeddings, their independent readings, and brute force."""

from __future__ import annotations

import functools
import importlib
import io
import json
import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import settings
from numpy.typing import NDArray
from redis import Redis
from scipy import stats

from service.check import Check, Context
from service.dataset import Dataset, Labels
from service.dataset_record import DatasetRecord
from service.formats import Options
from service.job import Job
from service.operations import Services, Upload, perform, submit
from service.request import parse_request
from service.storage.memory import memory_services
from service.storage.redis import connect
from workers import embedded

Array = NDArray[Any]
ROOT = Path(__file__).parent.parent

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, max_examples=30
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def reference() -> dict[str, Any]:
    """Readings made from the same vectors by a script that shares no code with the service."""
    text = (ROOT / "tests/data/reference.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@pytest.fixture(scope="session")
def rows() -> Callable[[str], Array]:
    """Stored rows by folder and name, `clinc150/minilm` say."""

    @functools.cache
    def load(name: str) -> Array:
        folder = "examples" if name.startswith("scifact_halves") else "tests/data"
        found = np.load(ROOT / folder / f"{name}.npy", allow_pickle=False)
        found.flags.writeable = False
        return np.asarray(found)

    return load


@pytest.fixture(scope="session")
def column() -> Callable[[str, str], list[str]]:
    """One column of a folder's table of rows."""

    def load(folder: str, name: str) -> list[str]:
        lines = (ROOT / "tests/data" / folder / "rows.csv").read_text(encoding="utf-8").splitlines()
        place = lines[0].split(",").index(name)
        return [line.split(",")[place] for line in lines[1:]]

    return load


@pytest.fixture(scope="session")
def printed() -> Callable[[Any], Any]:
    """Equal to a value printed with ten digits."""
    return functools.partial(pytest.approx, rel=1e-8, abs=1e-12)


@pytest.fixture(scope="session")
def unit_rows() -> Callable[[Array], Array]:
    """Rows over their length, the plain way."""

    def normalise(x: Array) -> Array:
        x = np.asarray(x, dtype=np.float64)
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    return normalise


@pytest.fixture(scope="session")
def reference_pairings() -> Callable[[int], list[Array]]:
    """The twenty pairings behind the sampled floors of the reference: numpy's, redrawn if fixed."""

    def draw(n: int) -> list[Array]:
        rng = np.random.default_rng(0)
        found: list[Array] = []
        while len(found) < 20:
            candidate = rng.permutation(n)
            if not np.any(candidate == np.arange(n)):
                found.append(candidate)
        return found

    return draw


@pytest.fixture(scope="session")
def t_interval() -> Callable[[Callable[[Array], float], Array, float], tuple[float, float]]:
    """
    Jackknife-t by hand: `statistic(kept)` on a mask of rows, refitted without each unit in turn.

    Around the statistic and around its bias-corrected value, the mean of the pseudo-values.

    `units` holds the unit of each row.
    """

    def interval(
        statistic: Callable[[Array], float], units: Array, level: float = 0.95
    ) -> tuple[float, float]:
        names = np.unique(units)
        without = np.array([statistic(units != name) for name in names])
        count = len(names)
        error = np.sqrt((count - 1) / count * np.sum((without - without.mean()) ** 2))
        middle = statistic(np.ones(len(units), dtype=bool))
        pseudo = count * middle - (count - 1) * without
        places = np.array([middle, pseudo.mean()])
        low, high = stats.t.interval(level, df=count - 1, loc=places, scale=error)
        return float(low.min()), float(high.max())

    return interval


@pytest.fixture(scope="session")
def unrelated() -> Callable[[Array], Array]:
    """The (n, n) mask of pairs from different units."""
    return lambda units: np.asarray(units)[:, None] != np.asarray(units)[None, :]


@pytest.fixture(scope="session")
def run() -> Callable[..., tuple[Any, Context]]:
    """Run a check on arrays and lists of labels; the results, and the context with its warnings."""

    def run_check(
        check: Check, *, seed: int = 0, threads: int = 1, params: Any = None, **inputs: Any
    ) -> tuple[Any, Context]:
        context = Context(seed=seed, threads=threads)
        ready = {
            slot.name: Dataset(inputs[slot.name])
            if slot.kind == "vectors" and not isinstance(inputs[slot.name], Dataset)
            else inputs[slot.name]
            if slot.kind == "vectors"
            else Labels.of(list(inputs[slot.name]))
            for slot in check.slots
            if inputs.get(slot.name) is not None
        }
        results = check.run(context, check.inputs(**ready), check.params(**(params or {})))
        return results, context

    return run_check


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Make blocks and tiles so small that a few rows fill many of them."""

    def shrink(elements: int, tile: int = 1024) -> None:
        for module in ("rows", "moments", "alignment"):
            monkeypatch.setattr(f"service.numerics.{module}.BLOCK_ELEMENTS", elements)
        monkeypatch.setattr("service.numerics.spectrum.QR_ELEMENTS", elements)
        monkeypatch.setattr("service.numerics.partners.TILE", tile)
        monkeypatch.setattr("service.numerics.partners.CHUNK_ELEMENTS", elements)
        stability = importlib.import_module("service.checks.neighbour_stability.part")
        monkeypatch.setattr(stability, "BLOCK", elements)
        ranked = importlib.import_module("service.checks.retrieval.part")
        monkeypatch.setattr(ranked, "BLOCK", elements)
        monkeypatch.setattr(ranked, "BATCH_BYTES", 1000 * elements)
        standings = importlib.import_module("service.numerics.standings")
        monkeypatch.setattr(standings, "QUERIES", elements)
        monkeypatch.setattr(standings, "TILE", 8 * tile)

    return shrink


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log: its default form renders every local of a traceback, which takes seconds."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def services() -> Services:
    """The whole service in memory."""
    return memory_services()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own, as `assay serve` starts it."""
    folder = tmp_path_factory.mktemp("server")
    process = subprocess.Popen(embedded.command(folder))
    try:
        embedded.wait_until_ready(embedded.url(folder))
        yield embedded.url(folder)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def redis(server: str) -> Iterator[Redis]:
    """A client of the server, which is empty."""
    client = connect(server, retries=3)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(scope="session")
def npy() -> Callable[[Array], bytes]:
    """The .npy file numpy writes."""

    def encode(rows: Array) -> bytes:
        file = io.BytesIO()
        np.save(file, rows)
        return file.getvalue()

    return encode


@pytest.fixture(scope="session")
def strict() -> Callable[[str | bytes], Any]:
    """JSON as other languages read it: NaN and Infinity are errors."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} in an answer")

    return functools.partial(json.loads, parse_constant=refuse)


@pytest.fixture
def store(services: Services, npy: Callable[[Array], bytes]) -> Callable[..., DatasetRecord]:
    """Store an array, a JSON body (a dict) or CSV text; the record."""

    def upload(body: Any, project: str = "default", **options: str) -> DatasetRecord:
        if isinstance(body, dict):
            kind, data = "application/json", json.dumps(body).encode()
        elif isinstance(body, str):
            kind, data = "text/csv", body.encode()
        else:
            kind, data = "application/x-npy", npy(np.asarray(body))
        upload = Upload(services, project, kind, Options(**options))
        upload.feed(data)
        return upload.finish()[0]

    return upload


@pytest.fixture
def ended(services: Services) -> Callable[..., Job]:
    """Submit a request body and run it here; the job as it ended."""

    def run(body: dict[str, Any], project: str = "default", on: Services = services) -> Job:
        job = submit(on, project, parse_request(body))
        perform(on, job.id)
        return on.jobs.get(project, job.id)

    return run
