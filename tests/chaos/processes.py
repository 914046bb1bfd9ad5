"""Processes seen through /proc: who started whom, what is alive, and how large it is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], seconds: float, what: str) -> T:
    """The first true answer of `look`, which has to come within `seconds`."""
    end = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.03)


def process_parents() -> dict[int, int]:
    """Every live process and its parent."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)
    return parents


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    return pid in process_parents()


def children(pid: int) -> list[int]:
    """Processes started by `pid`."""
    return [child for child, parent in process_parents().items() if parent == pid]


def descendants(pid: int) -> list[int]:
    """Processes started by `pid` and by those."""
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


def words(pid: int) -> str:
    """Command line of a process; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def memory(pid: int) -> dict[str, int]:
    """Sizes of a process by their names in /proc, in bytes; empty if it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        pairs = [line.split(":") for line in lines if line.endswith("kB")]
        return {name: int(size.split()[0]) << 10 for name, size in pairs}
    return {}


def forget_peak(pid: int) -> int:
    """Make VmHWM start anew; returns what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory(pid)["VmRSS"]


def kill(*pids: int) -> None:
    """`kill -9`, where there is still something to kill."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
