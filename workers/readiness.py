"""Says once when a service that starts takes jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx

EVERY_S = 0.3
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound


def address_of(host: str, port: int) -> str:
    """The URL of an API on this machine."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def tell_when_ready(address: str, workers: int, tell: Callable[[str], None]) -> threading.Thread:
    """In a thread, ask until the service is ready with all its workers, and say so."""

    def ask() -> None:
        url = httpx.URL(address)
        url = url.copy_with(host=ANYWHERE.get(url.host, url.host), path="/readyz")
        with httpx.Client(trust_env=False, timeout=5) as client:
            while (live := _live(client, url)) < workers:
                time.sleep(EVERY_S)
        tell(f"Assay is ready ({live} worker{'s' if live > 1 else ''}).")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


def _live(client: httpx.Client, url: httpx.URL) -> int:
    """Workers of a service that is ready; none of one that is not, or does not answer yet."""
    try:
        answer = client.get(url)
    except httpx.TransportError:
        return 0
    return int(answer.json()["workers"]["jobs"]) if answer.is_success else 0
