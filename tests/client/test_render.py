"""Reports as people read them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from assay_client.progress import Display, duration, size
from assay_client.render import show_report
from assay_client.values import number, printable
from rich.console import Console

from service.check import Context
from service.checks import CATALOGUE
from service.dataset import Dataset

from .conftest import report

DATA = Path(__file__).parents[2] / "examples" / "scifact_halves" / "minilm"


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    """A report of matched halves of abstracts."""
    check = next(check for check in CATALOGUE if check.kind == "cosine_floor")
    sides = {role: Dataset(np.load(DATA / f"{role.upper()}.npy")) for role in ("a", "b")}
    params = check.params(shared_mean=True)
    context = Context()
    results = check.run(context, check.inputs(**sides), params)
    return {
        **report(),
        "kind": check.kind,
        "inputs": {
            role: {"dataset": "ds_" + "0" * 24, "n": 100, "d": 384, "dtype": "float32", "spec": {}}
            for role in sides
        },
        "params": params.model_dump(mode="json"),
        "results": results.model_dump(mode="json"),
        "readings": results.readings(),
        "warnings": [warning.model_dump() for warning in context.warnings],
        "scope": list(check.scope),
        "timing": {"run_s": 0.05, "stages": context.stages},
    }


def shown(what: dict[str, Any], width: int = 80) -> str:
    file = io.StringIO()
    show_report(what, Console(file=file, width=width))
    return file.getvalue()


def with_results(results: dict[str, Any], width: int = 80) -> list[str]:
    """The lines between parameters and readings."""
    text = shown({**report(), "results": results, "readings": []}, width)
    return text.split("params  level=0.95\n\n")[1].split("\ndigest")[0].rstrip().splitlines()


def estimate(value: float | None, low: float | None = None, high: float = 0, **more: Any) -> Any:
    interval = {"low": low, "high": high, "level": 0.95, "unit": "group", "resamples": 20}
    interval["method"] = "jackknife_t"
    return {"estimate": value, "interval": None if low is None else interval, **more}


def test_a_real_report_fits_80_columns_with_both_scorings_side_by_side(
    real: dict[str, Any],
) -> None:
    text = shown(real)

    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    raw, centred = (real["results"][name] for name in ("raw", "centred"))
    (head,) = (i for i, line in enumerate(lines) if line.split() == ["raw", "centred"])
    assert [line.split()[0] for line in lines[head + 1 : head + 5]] == [
        "n",
        "matched",
        "floor",
        "gap",
    ]
    for place, key in ((2, "matched"), (3, "floor"), (4, "gap")):
        for side in (raw, centred):
            interval = side[key]["interval"]
            cell = f"{side[key]['estimate']:.4f} [{interval['low']:.4f}, {interval['high']:.4f}]"
            assert cell in lines[head + place]
    assert any(line.split() == ["aligned", "undefined:", "not_requested"] for line in lines)
    assert "  a_to_b               0.9300 [" in text
    assert "level 0.95, jackknife_t, jackknife_t+clopper_pearson over 100 rows" in text
    assert text.index("Readings") < text.index("Warnings") < text.index("Scope")
    assert f"digest  {real['digest']}" in lines
    assert "• mean_fitted_on_compared_rows: 100 rows are compared and also give the mean;" in lines


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_real_report_fits_other_widths(real: dict[str, Any], width: int) -> None:
    """But for what one pastes: the digest, and the list with ids."""
    lines = shown(real, width).splitlines()
    whole = ("digest", "role", *(f"{role} " for role in real["inputs"]))
    assert max(len(line) for line in lines if not line.startswith(whole)) <= width


def test_where_columns_are_narrow_intervals_stand_below() -> None:
    results = {name: {"matched": estimate(0.7, 0.6812, 0.7191)} for name in ("raw", "centred")}
    assert with_results(results, 50)[:4] == [
        "",
        "                      raw           centred",
        "matched            0.7000            0.7000",
        "         [0.6812, 0.7191]  [0.6812, 0.7191]",
    ]


def test_more_columns_than_fit_are_continued_below() -> None:
    results = {f"condition_{i}": {"overlap": i / 10} for i in range(6)}
    assert with_results(results, 50) == [
        "",
        "         condition_0  condition_1  condition_2",
        "overlap       0.0000       0.1000       0.2000",
        "         condition_3  condition_4  condition_5",
        "overlap       0.3000       0.4000       0.5000",
    ]


def test_a_null_says_why() -> None:
    reason = {"code": "no_spread", "message": "All equal."}
    results = {
        "gap": None,
        "ratio": estimate(None, undefined={"estimate": reason, "interval": reason}),
        "share": estimate(0.5, undefined={"interval": {"code": "census", "message": "All."}}),
        "bare": None,
        "undefined": {"gap": reason},
    }
    assert with_results(results) == [
        "gap    undefined: no_spread",
        "ratio  undefined: no_spread",
        "share     0.5000 (no interval: census)",
        "bare   undefined",
    ]


def test_what_an_estimate_carries_besides_stands_below_it() -> None:
    p_value = estimate(0.001, exceedances=0, permutations=999, exact=False)
    assert with_results({"p_value": p_value}) == [
        "p_value            0.0010 (no interval: undefined)",
        "  exceedances           0",
        "  permutations        999",
        "  exact             false",
    ]


def test_intervals_that_differ_say_of_which_results_they_are() -> None:
    """One line where all are alike, and then no names."""
    gap, share = estimate(0.2, 0.1, 0.3), estimate(0.5, 0.4, 0.6)
    share["interval"]["resamples"] = 7
    alike = shown({**report(), "results": {"raw": {"gap": gap, "ratio": gap}}})
    assert "level 0.95, jackknife_t over 20 groups\n" in alike
    text = shown({**report(), "results": {"raw": {"gap": gap, "ratio": gap}, "share": share}})
    assert "level 0.95, jackknife_t over 20 groups (gap, ratio)" in text
    assert "level 0.95, jackknife_t over 7 groups (share)" in text


def test_sections_indent_and_lists_of_objects_are_tables() -> None:
    groups = [{"label": f"g{i}", "n": i, "share": estimate(0.5, 0.4, 0.6)} for i in range(25)]
    lines = with_results(
        {"spectrum": {"shares": [0.5, 0.25, 0.125] * 9, "none": []}, "groups": groups}
    )
    assert lines[:4] == [
        "spectrum",
        "  shares  0.5000, 0.2500, 0.1250, 0.5000, ... (27)",
        "  none    none",
        "groups (25)",
    ]
    assert lines[4].split() == ["label", "n", "share"]
    assert lines[5].split() == ["g0", "0", "0.5000", "[0.4000,", "0.6000]"]
    assert any(line.strip() == "... 5 more" for line in lines)


def test_tables_inside_columns_are_named_by_their_column() -> None:
    results = {name: {"n": 2, "rows": [{"label": "x", "n": 1}]} for name in ("early", "late")}
    text = "\n".join(with_results(results))
    assert "early.rows (1)" in text
    assert "late.rows (1)" in text


def test_text_from_outside_cannot_steer_the_terminal() -> None:
    what = {**report(), "readings": ["\x1b[2Jgone [red]kept[/red] :smile:"]}
    text = shown(what)
    assert "\x1b" not in text
    assert "[red]kept[/red] :smile:" in text
    assert printable("a\x1bb\nc") == "a�b\nc"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1_234_567, "1,234,567"),
        (0.0, "0.0000"),
        (-0.01173, "-0.0117"),
        (41.45873, "41.4587"),
        (12_345.678, "12,345.7"),
        (3.78e-8, "3.78e-08"),
        (1.5e12, "1.5e+12"),
    ],
)
def test_numbers_have_the_digits_one_reads(value: float, text: str) -> None:
    assert number(value) == text


def test_narrow_intervals_keep_their_width() -> None:
    assert with_results({"share": estimate(0.25, 0.249998, 0.250003)})[0] == (
        "share  0.2500000 [0.2499980, 0.2500030]"
    )


def test_durations_and_sizes() -> None:
    assert [duration(s) for s in (0.0123, 5, 42, 125, 7300)] == [
        "0.012 s",
        "5 s",
        "42 s",
        "2 min 05 s",
        "2 h 01 min",
    ]
    assert [size(n) for n in (12, 153_728, 4e9, 5e12)] == ["12 B", "153.7 kB", "4.0 GB", "5.0 TB"]


def test_on_a_terminal_progress_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Display() as display:
        display.upload("rows.npy", 1_000_000, 3_000_000)
        display.stage("pairs", 1, 4, 1.5)
        display.stage("pairs", 2, 4, 1.0)
        bars = display._bars
        assert bars is not None
        bars.refresh()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pairs" in captured.err
    assert "2/4" in captured.err
    assert "1 s left" in captured.err


def test_a_gate_tells_how_many_checks_have_ended_and_the_stage_of_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As far as its server says."""
    stage = {"stage": "neighbours", "done": 400, "total": 500, "eta_s": 6.6}
    waits = {"state": "queued", "progress": None}
    runs = {"state": "running", "progress": stage}
    gate = {
        "state": "running",
        "jobs": {"s": "job_1", "floor": "job_2"},
        "imports": {"rows": "job_3"},
    }
    with Display() as display:
        display.gate({**gate, "unfinished": {"s": waits, "floor": waits}})
        display.gate({**gate, "imports": {}, "unfinished": {"s": runs, "floor": waits}})
        display.gate({**gate, "imports": {}, "unfinished": {"s": runs}})
        display.gate({**gate, "imports": {}, "unfinished": {}, "state": "done"})
    assert capsys.readouterr().err.splitlines() == [
        "0 of 2 checks on rows of 1 import; queued",
        "0 of 2 checks; s: neighbours",
        "1 of 2 checks; s: neighbours",
    ]


def test_every_matrix_of_a_model_is_listed() -> None:
    """A real stored report of two models of two matrices each."""
    file = Path(__file__).parents[1] / "data/reports/1.0/retrieval.json"
    lines = shown(json.loads(file.read_text()), 160).splitlines()
    for model in ("minilm", "e5small_q4"):
        for part in ("queries", "documents"):
            (line,) = [one for one in lines if one.startswith(f"models {model} {part} ")]
            assert "200 x 384 float16" in line
    assert any(line.startswith("relevance ") and " relevant " in line for line in lines)
