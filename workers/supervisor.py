"""Keeps processes running: starts them, restarts those that die, stops them together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType

import structlog

from workers.processes import die_with_parent

PAUSE_S = 0.2
QUICK_S = 5.0
LONGEST_BACKOFF_S = 10.0
STARTED_S = 30.0
"""What has lived for so long has started."""
MOST_FAILED_STARTS = 4
ASKED_S = 2.0
PATIENCE_S = 8.0

log = structlog.get_logger()


@dataclass
class Child:
    """One process that should be running."""

    name: str
    command: list[str]
    env: Mapping[str, str]
    once: bool = False
    """It has something to do and ends."""
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    quick_deaths: int = 0
    failed_starts: int = 0
    """Times in a row that it ended by itself, with an error, and has never started."""
    has_started: bool = False
    not_before: float = 0.0

    def start(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603 - our own command line
            self.command,
            env={**os.environ, **self.env},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self.started = time.monotonic()

    def count_end(self, code: int) -> None:
        """Note how it ended; a signal comes from somebody else."""
        lived = time.monotonic() - self.started
        self.quick_deaths = self.quick_deaths + 1 if lived < QUICK_S else 0
        self.has_started = self.has_started or lived >= STARTED_S
        failed = code > 0 and not self.has_started
        self.failed_starts = self.failed_starts + 1 if failed else 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass
class Supervisor:
    """
    Children in starting order, stopped in reverse.

    `tick` is called between looks at the children, at most every `tick_s` seconds.
    """

    children: list[Child] = field(default_factory=list)
    tick: Callable[[], None] = lambda: None
    tick_s: float = 2.0
    stopped: Callable[[], None] = lambda: None
    """Called once it is told to stop."""
    stopping: bool = False
    gave_up: str | None = None
    """Why it stopped by itself."""

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT, or until a child fails at every start."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        next_tick = 0.0
        try:
            while not self.stopping:
                self.look()
                if time.monotonic() >= next_tick:
                    self.tick()
                    next_tick = time.monotonic() + self.tick_s
                time.sleep(PAUSE_S)
            if self.gave_up is None:
                self.stopped()
        finally:
            self.stop()

    def look(self) -> None:
        """Start what is not running, with a growing pause for what dies at once."""
        for child in self.children:
            done = child.once and child.process is not None
            if done or child.alive or time.monotonic() < child.not_before:
                continue
            if child.process is not None:
                code = child.process.returncode
                child.count_end(code)
                log.warning("process ended", name=child.name, code=code)
                if child.failed_starts >= MOST_FAILED_STARTS:
                    self.gave_up = (
                        f"{child.name} cannot start: it has ended {child.failed_starts} times in a "
                        f"row with code {code}, each time within {STARTED_S:.0f} s. What it said is "
                        "above."
                    )
                    self.stopping = True
                    return
                if child.quick_deaths > 1:
                    pause = min(0.5 * 2**child.quick_deaths, LONGEST_BACKOFF_S)
                    child.not_before = time.monotonic() + pause
                    child.process = None
                    continue
            child.start()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def stop(self) -> None:
        """Ask each child to end, last one first; kill what does not, with all it started."""
        for child in reversed(self.children):
            process = child.process
            if process is None or process.poll() is not None:
                continue
            if not (_ends(process, ASKED_S) or _ends(process, PATIENCE_S)):
                log.warning("process killed", name=child.name)
            _kill_group(process.pid)
            process.wait()


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Ask a process to end; a worker asked twice gives up its job, which another will run again."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
