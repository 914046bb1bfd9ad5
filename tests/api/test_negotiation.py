"""Which representation is given, by the rules and examples of RFC 9110."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from api.negotiation import HTML, JSON, MARKDOWN, media_ranges, negotiated, weight
from service.errors import InvalidRequest, NotAcceptable


def asking(*accept: str) -> Request:
    """A request with these header lines."""
    headers = [(b"accept", line.encode()) for line in accept]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        ("text/plain;format=flowed", 1),
        ("text/plain", 0.7),
        ("text/html", 0.3),
        ("image/jpeg", 0.5),
        ("text/plain;format=fixed", 0.4),
        ("text/html;level=3", 0.7),
    ],
)
def test_weights_are_those_of_the_table_in_the_rfc(media_type: str, expected: float) -> None:
    """RFC 9110, 12.5.1; its last row was left there from the example of RFC 7231."""
    table = (
        "text/*;q=0.3, text/plain;q=0.7, text/plain;format=flowed, text/plain;format=fixed;q=0.4, "
        "*/*;q=0.5"
    )
    if media_type.startswith("text/html;"):
        table = (
            "text/*;q=0.3, text/html;q=0.7, text/html;level=1, text/html;level=2;q=0.4, */*;q=0.5"
        )
    assert weight(media_type, list(media_ranges(table))) == expected


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ([], JSON),
        ([""], JSON),
        (["*/*"], JSON),
        (["application/*"], JSON),
        (["text/html"], HTML),
        (["TEXT/HTML"], HTML),
        (["text/html; charset=utf-8"], HTML),
        (["text/markdown"], MARKDOWN),
        (["text/*"], MARKDOWN),
        (["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"], HTML),
        (["application/json, text/markdown"], JSON),
        (["text/markdown, application/json;q=0.9"], MARKDOWN),
        (["text/markdown;q=0.1, application/json;q=0.2, text/html;q=0.15"], JSON),
        (["*/*, application/json;q=0"], MARKDOWN),
        (["*/*;q=0.1, text/*;q=0"], JSON),
        (["text/markdown;q=0.5", "text/html;q=0.6"], HTML),
        (["text/html;level=1, application/json;q=0.1"], JSON),
        (['text/html;q="0.2", text/markdown;q=0.1'], HTML),
        (['text/html;title="a, b; c", text/markdown'], MARKDOWN),
        (["nonsense, text/html"], HTML),
        (["text/html;q=2, text/markdown"], MARKDOWN),
        (["nonsense"], JSON),
        (["*/html, text/markdown"], MARKDOWN),
        (["text/html;;q=0.5;, text/markdown;q=0.1"], HTML),
    ],
)
def test_the_closest_range_decides_and_json_wins_ties(accept: list[str], expected: str) -> None:
    """Whatever is no media range asks for nothing."""
    assert negotiated(asking(*accept), JSON, MARKDOWN, HTML) == expected


@pytest.mark.parametrize(
    "accept",
    ["image/png", "*/*;q=0", "application/json;q=0", "text/html;q=0.000", "application/xml"],
)
def test_where_nothing_fits_it_says_what_there_is(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="text/markdown, text/html"):
        negotiated(asking(accept), JSON, MARKDOWN, HTML)


def test_a_header_without_end_is_refused_before_it_is_read() -> None:
    """Quotes that never close would be looked at again from every place."""
    with pytest.raises(InvalidRequest, match="characters"):
        negotiated(asking('"' + r"\"" * 20_000), JSON)
    assert negotiated(asking('"' + r"\"" * 900), JSON) == JSON
