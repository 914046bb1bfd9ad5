"""Transport: one request, repeated while that can help, ending in an answer or a problem."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from assay_client.problems import AssayError, Mistake
from assay_client.requests import Json

TIMEOUT = httpx.Timeout(connect=10, read=150, write=150, pool=10)
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
PATIENCE_S = 2.0
"""How long a server may be out of reach before that is an error."""
BUSY_PATIENCE_S = 60.0
"""How long to go on while the server answers 429 or 503."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 8.0


class Transport:
    """Talks to one server with one key."""

    def __init__(
        self,
        server: str,
        api_key: str | None,
        transport: httpx.BaseTransport | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        try:
            url = httpx.URL(server)
        except httpx.InvalidURL as error:
            raise Mistake(f"`{server}` is no address of a server: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise Mistake(
                f"`{server}` is no address of a server: give http:// or https:// and a host"
            )
        self.server = server.rstrip("/")
        self._tell = tell
        self._client = httpx.Client(
            base_url=self.server,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=TIMEOUT,
            transport=transport,
            trust_env=url.host not in LOOPBACK,
        )

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | int] | None = None,
        json: Any = None,
        body: Callable[[], Iterator[bytes]] | None = None,
        repeatable: bool = True,
        patience_s: float | None = None,
    ) -> httpx.Response:
        """
        A 2xx or 304 answer; anything else is raised as `AssayError`.

        Without `repeatable` the request is sent again only if nothing of it has left. `body` is
        called for every attempt.
        """
        patience_s = PATIENCE_S if patience_s is None else patience_s
        started, pause = time.monotonic(), FIRST_PAUSE_S
        told = False
        while True:
            content = body() if body is not None else None
            try:
                answer = self._client.request(
                    method, path, headers=headers, params=params, json=json, content=content
                )
            except httpx.TransportError as error:
                unsent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                problem, again, patience = self._unreachable(error, unsent), unsent, patience_s
            else:
                if answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
                    return answer
                problem = problem_of(answer)
                again, patience = False, max(patience_s, BUSY_PATIENCE_S)
                if answer.status_code not in (429, 503):
                    raise problem
            wait = max(pause, problem.retry_after or 0)
            if not (again or repeatable) or time.monotonic() + wait - started > patience:
                raise problem from None
            if self._tell is not None and not told and wait >= 1:
                told = True
                self._tell(f"{problem.title}; trying for {patience:.0f} s")
            time.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _unreachable(self, error: httpx.TransportError, unsent: bool) -> AssayError:
        why = str(error) or type(error).__name__
        lost = "" if unsent else " The request may have arrived: `assay jobs` shows what runs."
        return AssayError(
            "server-unreachable",
            f"no answer from {self.server}: {why}.{lost}",
            title="The server cannot be reached",
        )


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
    return AssayError(
        "unexpected-answer",
        f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}: {said}",
        title="This is not the answer of an Assay server",
        status=answer.status_code,
    )


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


def object_of(answer: httpx.Response) -> Json:
    """The JSON object of an answer."""
    body = _json(answer)
    if not isinstance(body, dict):
        raise unexpected(answer)
    return body


def items_of(answer: httpx.Response) -> list[Json]:
    """The items of a page, or of a bare list."""
    body = _json(answer)
    items = body.get("items") if isinstance(body, dict) else body
    if not isinstance(items, list):
        raise unexpected(answer)
    return items
