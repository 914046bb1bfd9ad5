"""Pages of other origins: none may ask, or those an operator has named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from api.keys import Keys, Scope, create_key
from api.main import create_app
from service.operations import Services

ORIGIN = "https://dash.example"
ASKS = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "GET",
    "Access-Control-Request-Headers": "authorization,if-none-match",
}


def asked(app: Any, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(ask())


def test_no_other_origin_may_ask_unless_it_is_named(services: Services) -> None:
    app = create_app(services)
    assert "access-control-allow-origin" not in asked(app, "OPTIONS", "/v1/jobs", ASKS).headers
    assert "access-control-allow-origin" not in asked(app, "GET", "/v1/jobs", ASKS).headers


def test_a_named_origin_may_poll_with_a_key_and_an_etag(services: Services, tmp_path: Path) -> None:
    """Also what it is refused can be read."""
    key = create_key(tmp_path / "keys", "default", [Scope.read])
    app = create_app(services, Keys(tmp_path / "keys"), cors_origins=[ORIGIN])
    before = asked(app, "OPTIONS", "/v1/jobs/x", ASKS)
    assert before.status_code == 200
    assert before.headers["access-control-allow-origin"] == ORIGIN
    allowed = before.headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed
    assert "if-none-match" in allowed
    for path, status in (("/v1/jobs", 200), ("/v1/jobs/x", 404), ("/v1/jobs?stat=x", 422)):
        answer = asked(app, "GET", path, {"Origin": ORIGIN, "Authorization": f"Bearer {key}"})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "ETag" in answer.headers["access-control-expose-headers"]
    assert asked(app, "GET", "/v1/jobs", {"Origin": ORIGIN}).status_code == 401
    other = asked(app, "OPTIONS", "/v1/jobs/x", {**ASKS, "Origin": "https://other.example"})
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers
