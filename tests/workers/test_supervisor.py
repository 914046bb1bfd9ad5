"""What ends is started again; what cannot start is given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workers import supervisor
from workers.supervisor import Child, Supervisor


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_BACKOFF_S", 0.01)
    monkeypatch.setattr(supervisor, "PAUSE_S", 0.01)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_: None)


def looked_at(watched: Supervisor, seconds: float, until: Callable[[], bool]) -> bool:
    """Whether `until` holds before the time is up, while the supervisor runs."""
    thread = threading.Thread(target=watched.run)
    thread.start()
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.01)
    held = until()
    watched.stopping = True
    thread.join(20)
    return held


def test_what_fails_at_every_start_is_given_up_and_all_is_stopped() -> None:
    lasting = Child("lasting", ["sleep", "60"], {})
    watched = Supervisor([lasting, Child("jobs-worker-1", ["sh", "-c", "exit 3"], {})])

    assert looked_at(watched, 10, lambda: watched.gave_up is not None)

    assert watched.gave_up == (
        "jobs-worker-1 cannot start: it has ended 4 times in a row with code 3, each time within "
        "30 s. What it said is above."
    )
    assert not lasting.alive


@pytest.mark.parametrize(
    "script", ["kill -9 $$", "test -e worked || { touch worked; sleep 0.5; }; exit 3"]
)
def test_what_is_killed_or_has_once_worked_is_started_again(
    script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A signal comes from somebody else; a fault that comes late may go as it came."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "STARTED_S", 0.4)
    starts: list[float] = []

    class Counted(Child):
        def start(self) -> None:
            starts.append(time.monotonic())
            super().start()

    watched = Supervisor([Counted("worker", ["sh", "-c", script], {})])
    assert looked_at(watched, 20, lambda: len(starts) > 2 * supervisor.MOST_FAILED_STARTS)
    assert watched.gave_up is None
