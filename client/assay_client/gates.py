"""What the gate commands ask of a server besides starting a run and waiting for it."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from assay_client.http import items_of, object_of
from assay_client.problems import AssayError, Mistake
from assay_client.requests import Json

if TYPE_CHECKING:
    import httpx

    from assay_client.api import Assay

POLICY_FAULTS = ("invalid-request", "unknown-check", "malformed-payload")
PAGE = 100


def refuse_misfits(assay: Assay, policy: Mapping[str, Any], inputs: Mapping[str, Json]) -> None:
    """Refuse a policy with faults, and inputs that do not fit it, before anything is uploaded."""
    try:
        known = object_of(_send(assay, "POST", "/v1/gates/validate", json={"policy": policy}))
    except AssayError as error:
        if error.code not in POLICY_FAULTS:
            raise
        mistake = Mistake(error.detail, error.code)
        mistake.errors = error.errors
        raise mistake from None
    wanted: dict[str, str] = known["inputs"]
    for name in inputs:
        if name not in wanted:
            close = get_close_matches(name, wanted, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(wanted)}"
            raise Mistake(f"the policy has no input `{name}`; {hint}")
    if missing := [name for name in wanted if name not in inputs]:
        told = ", ".join(
            f"--input {name}={'FILE.csv:COLUMN' if wanted[name] == 'column' else 'FILE.npy'}"
            for name in missing
        )
        raise Mistake(f"the policy wants more data: {told}")
    for name, value in inputs.items():
        if ("column" in value) != (wanted[name] == "column"):
            asks = "a column, FILE.csv:COLUMN" if wanted[name] == "column" else "vectors, FILE.npy"
            raise Mistake(f"`--input {name}`: the policy wants {asks}")


def runs(assay: Assay, tag: str | None = None, limit: int = 20) -> list[Json]:
    """The newest gate runs."""
    query: dict[str, str | int] = {"limit": min(limit, PAGE)}
    if tag is not None:
        query["tag"] = tag
    found: list[Json] = []
    while True:
        page = _send(assay, "GET", "/v1/gates", params=query)
        found += items_of(page)
        cursor = object_of(page).get("next_cursor")
        if len(found) >= limit or not cursor:
            return found[:limit]
        query["cursor"] = cursor


def run_of(assay: Assay, run: str) -> Json:
    """A gate run as it is now."""
    return object_of(_send(assay, "GET", _place(run)))


def cancel(assay: Assay, run: str) -> Json:
    """Stop a gate run and its jobs; one that is judged stays as it is."""
    return object_of(_send(assay, "DELETE", _place(run)))


def markdown(assay: Assay, run: str) -> bytes:
    """A gate run as a comment for a pull request."""
    return _send(assay, "GET", _place(run), headers={"Accept": "text/markdown"}).content


def _place(run: str) -> str:
    return f"/v1/gates/{quote(run, safe='')}"


def _send(assay: Assay, method: str, path: str, **options: Any) -> httpx.Response:
    return assay._http.send(method, path, **options)
