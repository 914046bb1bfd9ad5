"""What a server answers, as types. Servers may add fields; these stay."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

CHART_FORMATS = {"svg": "image/svg+xml", "png": "image/png", "vl.json": "application/json"}
"""What charts come as, and the media type of each."""


class Fault(TypedDict):
    """What is wrong, and where."""

    pointer: str
    message: str
    count: int | None
    rows: list[str] | None


class Problem(TypedDict):
    """Why a request was refused, or a job failed."""

    code: str
    title: str
    detail: str
    errors: list[Fault]


class Dataset(TypedDict):
    """An immutable embedding set, or columns to go with one."""

    id: str
    name: str | None
    n: int
    d: int | None
    dtype: str | None
    bytes: int
    sha256: str
    vectors_sha256: str | None
    columns: dict[str, dict[str, Any]]
    spec: dict[str, Any]
    facts: dict[str, Any] | None
    created_at: str


class Progress(TypedDict):
    """How far a running job is."""

    stage: str
    done: int
    total: int
    eta_s: float | None


class Job(TypedDict):
    """A job and its state."""

    id: str
    kind: str
    kind_version: int
    project: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    inputs: dict[str, Any]
    params: dict[str, Any]
    seed: int
    tags: dict[str, str]
    created_at: str
    started_at: str | None
    finished_at: str | None
    deadline_s: int
    progress: Progress | None
    attempts: int
    cached: bool
    result: dict[str, str] | None
    problem: Problem | None
    links: dict[str, str]


class Event(TypedDict):
    """What has happened to a job: its data are of a state, a `Progress`, a warning or a `Job`."""

    id: str
    event: Literal["state", "progress", "warning", "done"]
    data: dict[str, Any]


class Report(TypedDict):
    """What a check found. `results` depends on the kind; the catalogue has its schema."""

    report_version: str
    kind: str
    kind_version: int
    request_digest: str
    digest: str
    created_at: str
    inputs: dict[str, Any]
    params: dict[str, Any]
    seed: int
    results: dict[str, Any]
    readings: list[str]
    warnings: list[dict[str, Any]]
    scope: list[str]
    environment: dict[str, str]
    timing: dict[str, Any]


class CheckState(TypedDict):
    """How far the job of a check is."""

    state: str
    progress: Progress | None


class ReportPoint(TypedDict):
    """What one job reported: measures by path, each with its estimate and interval."""

    job: str
    kind: str
    kind_version: int
    created_at: str
    tags: dict[str, str]
    inputs: dict[str, Any]
    cached: bool
    digest: str | None
    measures: list[dict[str, Any]]


class GateRun(TypedDict):
    """A policy bound to data, and its verdict once its jobs have ended."""

    id: str
    policy: str
    state: Literal["running", "done", "cancelled"]
    inputs: dict[str, dict[str, Any]]
    baselines: dict[str, str]
    tags: dict[str, str]
    imports: dict[str, str]
    jobs: dict[str, str]
    fail_jobs: dict[str, str]
    unfinished: dict[str, CheckState]
    verdict: Literal["pass", "fail", "inconclusive", "invalid"] | None
    rules: list[dict[str, Any]]
    warnings: list[dict[str, Any]]
    digest: str | None
    created_at: str
    links: dict[str, Any]


class Baseline(TypedDict):
    """What a baseline stands for, or stood for."""

    name: str
    dataset: str
    version: int
    gate: str | None
    set_at: str


class BaselineHistory(Baseline):
    """The same with all it has stood for, newest first."""

    history: list[Baseline]


class Policy(TypedDict):
    """What a policy wants: a kind of data by input, kind by check, how many rules; what to know."""

    policy: str
    inputs: dict[str, Literal["vectors", "column", "relevance", "table"]]
    checks: dict[str, str]
    rules: int
    warnings: list[dict[str, Any]]
