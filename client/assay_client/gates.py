"""What the gate command asks before anything is uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from assay_client.problems import AssayError, Mistake
from assay_client.requests import Json

if TYPE_CHECKING:
    from assay_client.api import Assay

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
        told = ", ".join(
            f"--input {name}={'FILE.npy' if wanted[name] == 'vectors' else 'FILE.csv:COLUMN'}"
            for name in missing
        )
        raise Mistake(f"the policy wants more data: {told}")
    for name, value in inputs.items():
        if ("column" in value) == (wanted[name] == "vectors"):
            asks = "vectors, FILE.npy" if wanted[name] == "vectors" else "a column, FILE.csv:COLUMN"
            raise Mistake(f"`--input {name}`: the policy wants {asks}")
