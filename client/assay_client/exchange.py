"""One request until it is answered: what is repeated, how soon, and what an answer means."""

from __future__ import annotations

import email.utils
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import httpx

from assay_client.problems import AssayError
from assay_client.steps import Flow, Pause, Send

FIRST_CONTACT_S = 2.0
"""How long a server that never answered may be out of reach before that is an error."""
OUTAGE_S = 60.0
"""The same for one that has answered: it is being restarted."""
BUSY_S = 60.0
"""How long to go on while the server answers that it cannot now."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 8.0

AGAIN = {429, 502, 503, 504}
IN_FLIGHT = "idempotency-in-flight"
HOPELESS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError)
"""Faults of this side: they stay."""

T = TypeVar("T")
_random = secrets.SystemRandom()


class Exchange:
    """Sends requests to one server; every one of them may be repeated."""

    def __init__(
        self,
        server: str,
        tell: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.server, self.tell, self.clock = server, tell, clock
        self._met = False

    def __call__(self, send: Send, patience_s: float = 0.0) -> Flow[httpx.Response]:
        """A 2xx or 304 answer; anything else is raised as `AssayError`."""
        started, attempt, told = self.clock(), 0, False
        while True:
            try:
                answer: httpx.Response = yield send
            except httpx.TransportError as error:
                problem = self._unreachable(error)
                if isinstance(error, HOPELESS):
                    raise problem from None
                patience = OUTAGE_S if self._met else FIRST_CONTACT_S
            else:
                self._met = True
                if answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
                    return answer
                problem, patience = problem_of(answer), BUSY_S
                if answer.status_code not in AGAIN and problem.code != IN_FLIGHT:
                    raise problem
            pause = max(pause_before(attempt), problem.retry_after or 0.0)
            patience = max(patience, patience_s)
            if self.clock() + pause - started > patience:
                raise problem from None
            if self.tell is not None and not told and pause >= 1:
                told = True
                self.tell(f"{problem.title}; trying for {patience:.0f} s")
            yield Pause(pause)
            attempt += 1

    def _unreachable(self, error: httpx.TransportError) -> AssayError:
        # a protocol error of this side quotes the header it refuses, which may be the key
        why = type(error).__name__ if isinstance(error, HOPELESS) else str(error)
        return AssayError(
            "server-unreachable",
            f"no answer from {self.server}: {why or type(error).__name__}.",
            title="The server cannot be reached",
        )


def pause_before(attempt: int) -> float:
    """Seconds before a request is repeated: doubling, and different for each client."""
    full = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**attempt)
    return full * _random.uniform(0.5, 1.0)


def problem_of(answer: httpx.Response) -> AssayError:
    """The problem an answer carries; an answer without one is a problem itself."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("code"), str):
        problem = AssayError.of(body, status=answer.status_code)
    else:
        problem = unexpected(answer)
    problem.retry_after = retry_after(answer)
    return problem


def unexpected(answer: httpx.Response) -> AssayError:
    """For what no Assay server would say."""
    said = " ".join(answer.text[:200].split())
    url = without_credentials(answer.request.url)
    return AssayError(
        "unexpected-answer",
        f"{url} answered {answer.status_code} {answer.reason_phrase}: {said}",
        title="This is not the answer of an Assay server",
        status=answer.status_code,
    )


def is_stream(answer: httpx.Response) -> bool:
    """Whether an answer is a stream of events."""
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
    return bool(answer.is_success and kind == "text/event-stream")


def without_credentials(url: httpx.URL) -> httpx.URL:
    """An address that may be shown."""
    return url.copy_with(userinfo=b"")


def retry_after(answer: httpx.Response) -> float | None:
    """Seconds the server asks to wait, given as a number or as a date."""
    value = answer.headers.get("Retry-After")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds)


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise unexpected(answer) from None


def object_of(answer: httpx.Response, record: type[T]) -> T:
    """The JSON object of an answer, which the server says is such a record."""
    body = _json(answer)
    if not isinstance(body, dict):
        raise unexpected(answer)
    return cast("T", body)


def items_of(answer: httpx.Response, record: type[T]) -> list[T]:
    """The items of a page, or of a bare list."""
    body = _json(answer)
    items = body.get("items") if isinstance(body, dict) else body
    if not isinstance(items, list):
        raise unexpected(answer)
    return items
