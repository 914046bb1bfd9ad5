"""Which representation a caller would rather have (RFC 9110, 12.5.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastapi import Request

from service.errors import InvalidRequest, NotAcceptable

JSON = "application/json"
MARKDOWN = "text/markdown"
HTML = "text/html"
CSV = "text/csv"
VARY = {"Vary": "Accept"}

LONGEST = 2000
"""Characters of an `Accept` that are looked at."""
NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
QUOTED = r'"(?:[^"\\]|\\.)*"'
ELEMENT = re.compile(rf'(?:[^,"]|{QUOTED})+')
PIECE = re.compile(rf'(?:[^;"]|{QUOTED})+')
TYPE = re.compile(rf"({NAME})/({NAME})")
PARAMETER = re.compile(rf"({NAME})\s*=\s*({NAME}|{QUOTED})")
WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


@dataclass(frozen=True)
class MediaRange:
    """One element of `Accept`."""

    type: str
    subtype: str
    parameters: frozenset[tuple[str, str]]
    weight: float

    def specificity(self, media_type: str) -> int | None:
        """How closely it names this type; None where it does not."""
        kind, subtype, given = _read(media_type) or ("", "", {})
        if self.type not in ("*", kind) or self.subtype not in ("*", subtype):
            return None
        if not self.parameters <= given.items():
            return None
        return (self.type != "*") + (self.subtype != "*") + len(self.parameters)


def media_ranges(header: str) -> Iterator[MediaRange]:
    """What an `Accept` lists; elements that are not well formed are left out."""
    for element in ELEMENT.findall(header):
        if (found := _read(element)) is None or (found[0] == "*" != found[1]):
            continue
        kind, subtype, parameters = found
        weight = parameters.pop("q", "1")
        parameters.pop("charset", None)  # all there is here is UTF-8
        if WEIGHT.fullmatch(weight):
            yield MediaRange(kind, subtype, frozenset(parameters.items()), float(weight))


def _read(element: str) -> tuple[str, str, dict[str, str]] | None:
    """Type, subtype and parameters, names in lower case; None where that is not what it is."""
    first, *pieces = [piece.strip() for piece in PIECE.findall(element)] or [""]
    if (names := TYPE.fullmatch(first)) is None:
        return None
    parameters = {}
    for piece in filter(None, pieces):
        if (found := PARAMETER.fullmatch(piece)) is None:
            return None
        name, value = found.groups()
        quoted = value.startswith('"')
        parameters[name.lower()] = re.sub(r"\\(.)", r"\1", value[1:-1]) if quoted else value
    return names[1].lower(), names[2].lower(), parameters


def weight(media_type: str, ranges: Sequence[MediaRange]) -> float:
    """The weight a type has: that of the range that names it most closely, 0 for none."""
    found = [(one.specificity(media_type), one.weight) for one in ranges]
    return max(((s, q) for s, q in found if s is not None), default=(0, 0.0))[1]


def negotiated(request: Request, *offered: str) -> str:
    """The type that is wanted most, the first of equals; without a wish, the first."""
    header = ",".join(request.headers.getlist("accept"))
    if len(header) > LONGEST:
        raise InvalidRequest(f"`Accept` has {len(header)} characters; {LONGEST} are read.")
    ranges = list(media_ranges(header))
    weights = {one: weight(one, ranges) if ranges else 1.0 for one in offered}
    best = max(offered, key=lambda one: weights[one])
    if weights[best] == 0:
        raise NotAcceptable(f"`Accept` fits none of {', '.join(offered)}.")
    return best
