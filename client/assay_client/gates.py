"""What the gate command asks before anything is uploaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from assay_client.located import Json
from assay_client.problems import AssayError, Mistake

FILES = {"vectors": ("vectors", "FILE.npy"), "table": ("a table", "FILE.csv")}
"""Inputs that are whole files, and how one is named."""
COLUMN = ("a column", "FILE.csv:COLUMN")
BASELINE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
POLICY_FAULTS = ("invalid-request", "unknown-check", "malformed-payload")


Wanted = Callable[[Json], Mapping[str, str]]
"""What the inputs of a policy are bound to; raises what is wrong with one."""


def refuse_misfits(
    wants: Wanted, policy: Json, inputs: Mapping[str, Json], promoted: Mapping[str, str]
) -> None:
    """Refuse a policy with faults, and inputs that do not fit it, before anything is uploaded."""
    try:
        wanted = wants(policy)
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
    for name in promoted:
        if wanted.get(name) != "vectors":
            vectors = [one for one, kind in wanted.items() if kind == "vectors"]
            raise Mistake(
                f"`--promote {name}`: only vectors become a baseline: {', '.join(vectors)}"
            )


def refuse_strays(words: Sequence[str], options: Sequence[str]) -> None:
    """Refuse words that belong to no option, and options there are not."""
    for word in words:
        option = word.partition("=")[0]
        if not word.startswith("-"):
            raise Mistake(f"unexpected `{word}`: data are given as `--input NAME=FILE`")
        if close := get_close_matches(option, options, n=1, cutoff=0.8):
            raise Mistake(f"there is no option `{option}`; did you mean `{close[0]}`?")
        name = option.removeprefix("--")
        raise Mistake(f"there is no option `{option}`: data are given as `--input {name}=FILE`")


def promotions(pairs: Sequence[str]) -> dict[str, str]:
    """Baselines by the inputs they are to stand for, from `input=baseline` pairs."""
    promoted: dict[str, str] = {}
    for pair in pairs:
        name, _, baseline = pair.partition("=")
        if not name or not baseline:
            raise Mistake(f"`--promote {pair}`: give input=baseline")
        refuse_name(baseline)
        promoted[name] = baseline
    return promoted


def refuse_name(baseline: str) -> None:
    """Refuse what can name no baseline."""
    if not BASELINE_NAME.fullmatch(baseline):
        raise Mistake(
            f"`{baseline}` names no baseline: up to 64 of a-z, 0-9, _ and -, a letter or digit first"
        )
