"""Progress on standard error: a bar on a terminal, else one line for each stage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from assay_client.located import Json

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Display:
    """Shows one stage at a time."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._task: TaskID | None = None
        self._stage: str | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[count]}", markup=False),
                TextColumn("{task.fields[left]}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def stage(
        self,
        name: str,
        done: int,
        total: int,
        eta_s: float | None = None,
        shown: Callable[[float], str] = "{:,}".format,
    ) -> None:
        """How far a stage is; `total` 0 where nobody knows. Without `eta_s` the pace tells."""
        new, self._stage = name != self._stage, name
        if self._bars is None:
            if new:
                print(name, file=sys.stderr, flush=True)  # noqa: T201
            return
        if new:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(name, total=None, count="", left="")
        if self._task is not None:
            self._bars.update(
                self._task,
                total=total or None,
                completed=done,
                count=f"{shown(done)}/{shown(total)}" if total > 1 else "",
            )
            left = self._bars.tasks[0].time_remaining if eta_s is None else eta_s
            self._bars.update(self._task, left=f"{duration(left)} left" if left else "")

    def upload(self, name: str, sent: int, total: int) -> None:
        """How much of a file has left."""
        self.stage(f"uploading {name} ({size(total)})", sent, total, shown=size)

    def job(self, job: Json) -> None:
        """How far a job is."""
        now = job.get("progress")
        if job["state"] == "running" and isinstance(now, dict):
            self.stage(now["stage"], now["done"], now["total"], now.get("eta_s"))
        elif job["state"] in ("queued", "running"):
            self.stage(job["state"], 0, 0)

    def gate(self, run: Json) -> None:
        """How many checks of a gate have ended, and how far one of the others is."""
        if run["state"] != "running":
            return
        left, count = run.get("unfinished"), len(run.get("jobs", {}))
        imports = len(set(run.get("imports", {}).values()))
        told = f" on rows of {imports} import{'s' if imports > 1 else ''}" if imports else ""
        if left is None:  # a server that does not say
            self.stage(f"running {count} checks{told}", 0, 0)
            return
        head = f"{count - len(left)} of {count} checks{told}"
        for check, one in left.items():
            if now := one.get("progress"):
                name = f"{head}; {check}: {now['stage']}"
                self.stage(name, now["done"], now["total"], now.get("eta_s"))
                return
        self.stage(f"{head}; {'queued' if queued(run) else 'running'}", 0, 0)


def queued(record: Json) -> bool:
    """Whether nobody works on a job, or on any job of a gate."""
    left = record.get("unfinished") or {}
    return record["state"] == "queued" or (
        bool(left) and all(one["state"] == "queued" for one in left.values())
    )


def how_far(now: Json) -> str:
    """A stage in one line."""
    left = now.get("eta_s")
    return f"{now['stage']} {now['done']:,}/{now['total']:,}" + (
        f", {duration(left)} left" if left else ""
    )


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
