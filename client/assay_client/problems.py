"""
What can go wrong, as the caller sees it.

    AssayError            any problem the server or a local run states
    └── Mistake           found before anything was sent: a usage error
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NEXT_STEPS = {
    "server-unreachable": "start one with `assay serve`, name another with ASSAY_SERVER, "
    "or pass --local to `assay check`",
    "unexpected-answer": "check that ASSAY_SERVER names an Assay server",
    "unauthorised": "put an API key into ASSAY_API_KEY",
    "forbidden": "ask for a key with that scope: `assay keys create --scope ...`",
    "idempotency-conflict": "use a new key, or send the request the key was first used for",
    "queue-full": "wait for jobs to end, or stop some: `assay jobs ID --cancel`",
    "payload-too-large": "`GET /v1/limits` names every limit",
    "body-stalled": "send it again, from nearer by if the line is slow",
    "unknown-check": "`assay checks` lists what there is",
    "unknown-job": "`assay jobs` lists what there is",
    "unknown-chart": "`assay chart JOB_ID` lists what there is",
    "unknown-gate": "`assay gates` lists what there is",
    "unknown-baseline": "`assay baselines set NAME FILE` makes it, the first time; from then on "
    "`assay gate ... --promote INPUT=NAME` moves it to what passed; `assay baselines list` names all",
    "unknown-dataset": "upload it again with `assay upload FILE`",
    "damaged-dataset": "delete it and upload it again, or have its record restored from a backup",
    "report-not-ready": "`assay jobs ID` shows how far it is",
    "unsupported-format": "save vectors as .npy and columns as .csv",
    "non-finite-rows": "repair the rows",
    "zero-rows": "repair the rows",
    "missing-labels": "fill the labels in",
}
"""What to do about a problem, by code."""
TYPED_WRONG = {
    "invalid-request",
    "unknown-check",
    "unknown-dataset",
    "unknown-job",
    "unknown-chart",
    "unknown-gate",
    "unknown-baseline",
    "unsupported-format",
}
"""Codes that are about what was asked for, whoever finds it out: the words, a name, a kind of file."""
EXIT_USAGE, EXIT_UNAVAILABLE = 2, 4
OFFERED = {"align_by_ids": True, "on_bad_rows": "drop"}
"""Params that let a check go on, where what is wrong says so."""
IN_POLICY = re.compile(r"/policy/checks/([^/]+)")
OF_PARAMS = re.compile(r"(/policy/checks/[^/]+)?/params(/|$)")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    pointer: str
    """JSON pointer of its place in the request, or the name of an input."""

    message: str
    """What is wrong, and what to do about it."""

    count: int | None = None
    """How many rows are concerned."""

    rows: tuple[str, ...] = ()
    """Ids of the first of them."""


class AssayError(Exception):
    """A problem, with the code programs go by and the sentences people read."""

    code: str
    """Stable slug, such as `unknown-job`."""

    title: str
    """What this code means."""

    detail: str
    """What happened this time."""

    errors: list[dict[str, Any]]
    """What is wrong where, as the server said it; `faults` is the same, typed."""

    status: int | None
    """HTTP status, if an answer carried the problem."""

    retry_after: float | None
    """Seconds after which the server wants to be asked again."""

    kind: str | None = None
    """The check that was asked for, where one was."""

    advice: str | None = None
    """What to do about it, where the command knows better than the code of the problem."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        title: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.title = title
        self.detail = detail
        self.errors = [dict(error) for error in errors]
        self.status = status
        self.retry_after = retry_after

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is wrong where, and which rows are concerned."""
        return tuple(
            Fault(
                str(error.get("pointer") or "/"),
                str(error.get("message") or ""),
                error["count"] if isinstance(error.get("count"), int) else None,
                tuple(map(str, error.get("rows") or ())),
            )
            for error in self.errors
        )

    @property
    def next_step(self) -> str | None:
        """What to do about it, where that is known."""
        return next_step(self)

    def __str__(self) -> str:
        """One line with code and detail, then one for each fault."""
        return "\n".join([f"{self.code}: {self.detail or self.title}", *map(_fault, self.errors)])

    @classmethod
    def of(cls, problem: Mapping[str, Any], status: int | None = None) -> AssayError:
        """From problem+json, or from the `problem` of a failed job."""
        errors = problem.get("errors")
        return cls(
            str(problem.get("code") or "unexpected-answer"),
            str(problem.get("detail") or problem.get("title") or ""),
            title=str(problem.get("title") or ""),
            errors=[e for e in errors if isinstance(e, dict)] if isinstance(errors, list) else (),
            status=status,
        )


class Mistake(AssayError):
    """Something in the command or the request file that can be seen without asking anyone."""

    def __init__(self, detail: str, code: str = "invalid-request") -> None:
        super().__init__(code, detail, title="The request is not valid")


def exit_code(error: AssayError) -> int:
    """
    How a command ends: 2 where other words are needed, 4 where data or a server are at fault.

    It follows the code of the problem, so that a mistake ends alike wherever it is found.
    """
    typed_wrong = isinstance(error, Mistake) or error.code in TYPED_WRONG
    return EXIT_USAGE if typed_wrong else EXIT_UNAVAILABLE


def next_step(error: AssayError) -> str | None:
    """What to do about it, where that is known."""
    if error.retry_after is not None and error.status in (429, 503):
        return f"try again in {error.retry_after:.0f} s"
    if isinstance(error, Mistake) and error.code == "invalid-request":
        return None
    steps = [error.advice or NEXT_STEPS.get(error.code), *_offers(error)]
    if error.code == "invalid-request" and any(
        OF_PARAMS.match(one.pointer) for one in error.faults
    ):
        steps.append(f"`assay checks {error.kind or 'KIND'}` lists the params of a check")
    return ", or ".join(filter(None, steps)) or None


def _offers(error: AssayError) -> Iterator[str]:
    """How to set what a fault says can be set: in a policy, or on the command line."""
    for name, value in OFFERED.items():
        for fault in error.faults:
            if re.search(rf"\b{name}\b", fault.message):
                text = json.dumps(value).strip('"')
                if check := IN_POLICY.match(fault.pointer):
                    yield f"set `params: {{{name}: {text}}}` in check `{check[1]}`"
                else:
                    yield f"pass `--param {name}={text}`"
                break


def _fault(error: Mapping[str, Any]) -> str:
    line = f"  {error.get('pointer') or '/'}: {error.get('message') or ''}"
    rows, count = error.get("rows"), error.get("count")
    if rows:
        more = ", ..." if isinstance(count, int) and count > len(rows) else ""
        total = len(rows) if count is None else count
        return f"{line} ({total} row{'' if total == 1 else 's'}: {', '.join(map(str, rows))}{more})"
    return line if count is None else f"{line} ({count} row{'' if count == 1 else 's'})"
