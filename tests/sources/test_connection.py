"""Connections: read once, their secrets shown nowhere."""

from __future__ import annotations

import json

import pytest

from service.errors import InvalidRequest
from service.sources.connection import Connection, read_connections

SECRET = "s3cr3t-of-the-operator"


def test_credentials_leave_the_address() -> None:
    found = read_connections(
        json.dumps(
            {"prod": {"url": f"postgresql://reader:{SECRET}%40@db.example.org:5433/app?a=1"}}
        )
    )["prod"]
    assert found.url == "postgresql://db.example.org:5433/app?a=1"
    assert (found.user, found.password) == ("reader", SECRET + "@")
    assert (found.host, found.port(5432)) == ("db.example.org", 5433)


def test_no_secret_is_shown_by_a_connection() -> None:
    text = json.dumps(
        {
            "lake": {
                "url": f"https://u:{SECRET}@example.org/x",
                "password": SECRET,
                "options": {"token": SECRET},
                "projects": ["search"],
            }
        }
    )
    found = read_connections(text)["lake"]
    assert SECRET not in repr(found) + str(found) + repr(found.to("https://example.org"))
    assert found.open_to("search")
    assert not found.open_to("ads")


@pytest.mark.parametrize(
    "text",
    [
        f'{{"lake": {{"url": "{SECRET}"}}}}',
        f'{{"lake": {{"url": "https://x:{SECRET}@host:nan/"}}}}',
        f'{{"lake": {{"password": "{SECRET}"}}}}',
        f'{{"lake": {{"url": "https://host", "passwrod": "{SECRET}"}}}}',
        f'{{"lake": {{"url": "https://host", "options": {{"token": ["{SECRET}"]}}}}}}',
        f'{{"LAKE {SECRET}": {{"url": "https://host"}}}}',
        f'{{"lake": "{SECRET}"',
        f'["{SECRET}"]',
    ],
)
def test_no_secret_is_shown_by_an_error(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_connections(text)
    shown = caught.value.detail + repr(caught.value.faults) + repr(caught.value)
    assert SECRET not in shown
    assert caught.value.__cause__ is None


def test_an_unknown_key_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        InvalidRequest, match=r"not valid at: prod\.passwort; a connection has url, u"
    ):
        read_connections('{"prod": {"url": "postgresql://db/app", "passwort": "x"}}')


def test_a_connection_without_projects_is_for_all() -> None:
    assert Connection("lake", "https://host").open_to("any")
