"""What to do next fits what went wrong, and how it was asked for."""

from __future__ import annotations

import pytest
from assay_client.problems import AssayError, Mistake, next_step

ALIGN = "these rows carry another id; `align_by_ids` matches equal ids in any order"
DROP = 'repair them, or drop them with `"on_bad_rows": "drop"`'
PARAMS = "`assay checks KIND` lists the params of a check"


@pytest.mark.parametrize(
    ("code", "pointer", "message", "step"),
    [
        ("ids-mismatch", "/inputs/b", ALIGN, "pass `--param align_by_ids=true`"),
        ("ids-mismatch", "/inputs/b", "these ids of `a` are not here", None),
        ("ids-mismatch", "/inputs/relevance", "`r0` is not among the 9 row numbers", None),
        ("ids-mismatch", "/policy/checks/agree/inputs/models/1", f"input `new`: {ALIGN}",
         "set `params: {align_by_ids: true}` in check `agree`"),
        ("zero-rows", "/inputs/a", DROP, "repair the rows, or pass `--param on_bad_rows=drop`"),
        ("non-finite-rows", "/policy/checks/agree/inputs/models/1", DROP,
         "repair the rows, or set `params: {on_bad_rows: drop}` in check `agree`"),
        ("missing-labels", "/inputs/groups", "label them", "fill the labels in"),
        ("invalid-request", "/params/levl", "unknown", PARAMS),
        ("invalid-request", "/policy/checks/s/params/levl", "unknown", PARAMS),
        ("invalid-request", "/query/state", "Input should be 'queued'", None),
        ("invalid-request", "/source/path", "Field required", None),
        ("invalid-request", "/inputs/groups", "known: intent", None),
    ],
)  # fmt: skip
def test_the_next_step_is_one_that_helps(
    code: str, pointer: str, message: str, step: str | None
) -> None:
    error = AssayError(code, "no", errors=[{"pointer": pointer, "message": message}])
    assert next_step(error) == error.next_step == step


def test_a_missing_baseline_is_made_with_commands() -> None:
    step = next_step(AssayError("unknown-baseline", "There is no baseline `prod`."))
    assert step is not None
    assert "POST" not in step
    for command in ("assay baselines list", "assay baselines set", "--promote"):
        assert command in step
    assert step.startswith("`assay baselines set NAME FILE` makes it, the first time")


def test_a_mistake_says_itself_what_to_do() -> None:
    assert next_step(Mistake("`--a` needs a value.")) is None
