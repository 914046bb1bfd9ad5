"""When a request is repeated, and how soon: the flow alone, with a clock that jumps."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from assay_client import AssayError
from assay_client.exchange import Exchange, pause_before
from assay_client.steps import Pause, Send

ASK = Send("GET", "/v1/jobs")
REQUEST = httpx.Request("GET", "http://x/v1/jobs")


def answer(status: int, retry_after: str | None = None, code: str = "some-code") -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status, headers=headers, json={"code": code}, request=REQUEST)


class Played:
    """Plays a server: gives outcomes in turn, the last for ever, and keeps the pauses."""

    def __init__(self, *outcomes: Any) -> None:
        self.now, self.pauses, self.sent, self.told = 0.0, [], 0, []
        self._outcomes = list(outcomes)
        self.exchange = Exchange("http://x", self.told.append, lambda: self.now)

    def play(self, patience_s: float = 0.0) -> Any:
        flow = self.exchange(ASK, patience_s)
        step = next(flow)
        try:
            while True:
                if isinstance(step, Pause):
                    self.pauses.append(step.seconds)
                    self.now += step.seconds
                    step = flow.send(None)
                    continue
                self.sent += 1
                outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
                act = flow.throw if isinstance(outcome, Exception) else flow.send
                step = act(outcome)
        except StopIteration as end:
            return end.value


def test_pauses_double_up_to_a_bound_and_differ_between_clients() -> None:
    """Between half and all of 0.2 s, 0.4 s, ... 8 s."""
    for attempt in range(12):
        full = min(8.0, 0.2 * 2**attempt)
        drawn = [pause_before(attempt) for _ in range(200)]
        assert full / 2 <= min(drawn) < 0.6 * full
        assert 0.9 * full < max(drawn) <= full


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_asked_for_a_minute(status: int) -> None:
    """Then its own problem is raised."""
    played = Played(answer(status))
    with pytest.raises(AssayError) as raised:
        played.play()
    assert raised.value.status == status
    assert 52 <= played.now <= 60
    assert 10 <= played.sent <= 25
    assert len(played.told) == 1


def test_retry_after_is_the_shortest_pause() -> None:
    """As seconds, where it is longer than the pause would be."""
    played = Played(answer(429, "7"), answer(503, "0"), answer(200))
    assert played.play().status_code == 200
    assert played.pauses[0] == 7
    assert 0.2 <= played.pauses[1] <= 0.4


def test_a_retry_after_beyond_patience_is_raised_at_once() -> None:
    """Nobody waits an hour unasked."""
    played = Played(answer(429, "3600"))
    with pytest.raises(AssayError):
        played.play()
    assert (played.sent, played.pauses) == (1, [])


def test_a_server_that_never_answered_is_given_up_soon() -> None:
    """It is probably not there; one that has answered is being restarted."""
    played = Played(httpx.ConnectError("refused"))
    with pytest.raises(AssayError, match="refused"):
        played.play()
    assert played.now <= 2

    played = Played(answer(200), httpx.ReadError("reset"))
    played.play()
    with pytest.raises(AssayError, match="reset"):
        played.play()
    assert 52 <= played.now <= 60


def test_whoever_waits_for_a_job_is_more_patient() -> None:
    """The job is safe meanwhile."""
    played = Played(httpx.ConnectError("refused"))
    with pytest.raises(AssayError):
        played.play(patience_s=120)
    assert 110 <= played.now <= 120


@pytest.mark.parametrize("error", [httpx.LocalProtocolError, httpx.UnsupportedProtocol])
def test_a_fault_of_this_side_is_not_repeated_and_quotes_nothing(error: Any) -> None:
    """The message of such an error may quote the header it refuses."""
    played = Played(error("Illegal header value b'Bearer assay_secret'"))
    with pytest.raises(AssayError) as raised:
        played.play()
    assert played.sent == 1
    assert "secret" not in str(raised.value)


def test_other_conflicts_than_a_request_in_flight_are_final() -> None:
    """409 has several codes; one of them passes."""
    played = Played(answer(409, "1", "idempotency-in-flight"), answer(202))
    assert played.play().status_code == 202
    assert played.pauses[0] >= 1
    with pytest.raises(AssayError):
        Played(answer(409, "1", "report-not-ready"), answer(200)).play()
