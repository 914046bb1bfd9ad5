"""What the gate command asks before anything is uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from assay_client.problems import AssayError, Mistake
from assay_client.requests import Json

if TYPE_CHECKING:
    from assay_client.api import Assay

FILES = {"vectors": ("vectors", "FILE.npy"), "table": ("a table", "FILE.csv")}
"""Inputs that are whole files, and how one is named."""
COLUMN = ("a column", "FILE.csv:COLUMN")
POLICY_FAULTS = ("invalid-request", "unknown-check", "malformed-payload")


def refuse_misfits(assay: Assay, policy: Mapping[str, Any], inputs: Mapping[str, Json]) -> None:
    """Refuse a policy with faults, and inputs that do not fit it, before anything is uploaded."""
    try:
        wanted = assay.validate(policy)["inputs"]
    except AssayError as error:
        if error.code not in POLICY_FAULTS:
            raise
        mistake = Mistake(error.detail, error.code)
        mistake.errors = error.errors
        raise mistake from None
    for name in inputs:
        if name not in wanted:
            close = get_close_matches(name, wanted, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(wanted)}"
            raise Mistake(f"the policy has no input `{name}`; {hint}")
    if missing := [name for name in wanted if name not in inputs]:
        told = ", ".join(f"--input {name}={FILES.get(wanted[name], COLUMN)[1]}" for name in missing)
        raise Mistake(f"the policy wants more data: {told}")
    for name, value in inputs.items():
        if ("column" in value) == (wanted[name] in FILES):
            asks = ", ".join(FILES.get(wanted[name], COLUMN))
            raise Mistake(f"`--input {name}`: the policy wants {asks}")
