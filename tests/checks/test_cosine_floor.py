"""Cosine floor against stored readings, explicit n x n matrices, refits by hand and closed forms."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.linalg import orthogonal_procrustes
from scipy.stats import ortho_group

from service.checks.cosine_floor import cosine_floor
from service.dataset import Dataset
from service.errors import TooFewGroups, ZeroRows
from service.numerics.alignment import PairSplit
from service.numerics.moments import Units
from service.numerics.permutation import derangement
from service.references import Spec

Array = NDArray[Any]
MODULE = importlib.import_module("service.checks.cosine_floor.check")
SPACES = importlib.import_module("service.checks.cosine_floor.spaces")

PAIRS = [
    *(("scifact_halves", m, r) for m in ("minilm", "e5small_q4", "minilm_int8")
      for r in ("centred_shared", "centred_own", "centred_fit_shared")
      if (m, r) != ("minilm_int8", "centred_fit_shared")),
    *(("debian_pairs", m, r) for m in ("minilm", "e5small_q4")
      for r in ("centred_shared", "centred_own")),
    *(("clinc150", "pair_minilm_vs_minilm_int8", r) for r in ("centred_shared", "centred_own")),
]  # fmt: skip


@pytest.fixture
def sides(rows: Callable[[str], Array]) -> Callable[[str, str], dict[str, Array]]:
    """Both sides of a set, with fit rows where there are some."""

    def of(folder: str, model: str) -> dict[str, Array]:
        if folder == "clinc150":
            return {"a": rows("clinc150/minilm"), "b": rows("clinc150/minilm_int8")}
        if folder == "debian_pairs":
            names = {"a": "{}_query", "b": "{}_doc"}
        else:
            names = {"a": "{}/A", "b": "{}/B"}
            if model != "minilm_int8":
                names |= {"fit_a": "{}/fit_A", "fit_b": "{}/fit_B"}
        return {role: rows(f"{folder}/{name.format(model)}") for role, name in names.items()}

    return of


@pytest.mark.parametrize(("folder", "model", "reading"), PAIRS)
def test_every_number_is_the_references_on_the_references_pairings(
    folder: str,
    model: str,
    reading: str,
    sides: Callable[[str, str], dict[str, Array]],
    reference: dict[str, Any],
    reference_pairings: Callable[[int], list[Array]],
    printed: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Any],
) -> None:
    """Compared with an independent script: raw and centred, exact and sampled on its own pairings."""
    inputs = sides(folder, model)
    if reading != "centred_fit_shared":
        inputs = {"a": inputs["a"], "b": inputs["b"]}
    found = reference[folder][model]
    found = found["pairs"] if folder == "debian_pairs" else found
    drawn = reference_pairings(len(inputs["a"]))
    monkeypatch.setattr(MODULE, "derangement", lambda *args: drawn[args[3]])
    params = {"shared_mean": reading != "centred_own"}
    got, _ = run(cosine_floor, **inputs, params=params, threads=2)

    assert got.anisotropy_a == printed(found["anisotropy_A"])
    assert got.anisotropy_b == printed(found["anisotropy_B"])
    for ours, stored in ((got.raw, found["raw"]), (got.centred, found[reading])):
        assert got.n == ours.n == stored["n"]
        assert ours.matched.estimate == printed(stored["matched"])
        assert ours.floor.estimate == printed(stored["floor_perm"])
        assert ours.floor_sd == printed(stored["floor_sd"])
        assert ours.gap.estimate == printed(stored["matched"] - stored["floor_perm"])
        assert ours.gap_over_floor_sd.estimate == printed(stored["gap_over_floor_sd"])
        assert ours.cohens_d.estimate == printed(stored["cohens_d"])
        assert ours.floor_all.estimate == printed(stored["floor_all"])
        assert ours.floor_all_sd == printed(stored["floor_all_sd"])
        assert ours.gap_all.estimate == printed(stored["matched"] - stored["floor_all"])
        assert ours.unrelated_pairs == stored["n"] * (stored["n"] - 1)
        first = ours.partner_ranked_first
        assert first.a_to_b_count == stored["partner_first"]
        assert first.b_to_a_count == stored["partner_first_B_to_A"]
        assert first.a_to_b.estimate == stored["partner_first"] / stored["n"]
        assert first.b_to_a.estimate == stored["partner_first_B_to_A"] / stored["n"]
        assert (first.tied, first.chance) == (0, 1 / stored["n"])


@pytest.mark.parametrize(("folder", "model", "reading"), PAIRS)
def test_our_own_pairings_stay_within_four_monte_carlo_errors(
    folder: str,
    model: str,
    reading: str,
    sides: Callable[[str, str], dict[str, Array]],
    reference: dict[str, Any],
    run: Callable[..., Any],
) -> None:
    """Compared with the stored exact floor; errors as for independent draws, 1/sqrt(20 n)."""
    inputs = sides(folder, model)
    if reading != "centred_fit_shared":
        inputs = {"a": inputs["a"], "b": inputs["b"]}
    found = reference[folder][model]
    found = found["pairs"] if folder == "debian_pairs" else found
    params = {"shared_mean": reading != "centred_own"}
    got, _ = run(cosine_floor, **inputs, params=params, threads=2, seed=1)
    for ours, stored in ((got.raw, found["raw"]), (got.centred, found[reading])):
        error = stored["floor_all_sd"] / np.sqrt(20 * stored["n"])
        assert abs(ours.floor.estimate - stored["floor_all"]) < 4 * error
        assert ours.floor_sd == pytest.approx(
            stored["floor_all_sd"], abs=4 * error * np.sqrt(3)
        )  # the kurtosis of these cosines is below 13
        assert ours.floor.estimate != stored["floor_all"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("minilm", (0.7002, 0.1148, 0.6537, 0.1081, 0.1254, 93, 93)),
        ("e5small_q4", (0.9161, 0.8220, 0.5220, 0.8204, 0.8263, 98, 99)),
    ],
)
def test_published_readings_of_scifact_halves(
    model: str,
    expected: tuple[float, ...],
    sides: Callable[[str, str], dict[str, Array]],
    run: Callable[..., Any],
) -> None:
    """Published to four digits: matched, floor, centred, anisotropies, partners first."""
    inputs = sides("scifact_halves", model)
    got, _ = run(cosine_floor, a=inputs["a"], b=inputs["b"], params={"shared_mean": True})
    assert (
        round(got.raw.matched.estimate, 4),
        round(got.raw.floor_all.estimate, 4),
        round(got.centred.matched.estimate, 4),
        round(got.anisotropy_a, 4),
        round(got.anisotropy_b, 4),
        got.raw.partner_ranked_first.a_to_b_count,
        got.centred.partner_ranked_first.a_to_b_count,
    ) == pytest.approx(expected, abs=1e-9)


def plain_reading(
    a: Array, b: Array, units: Array, partners: list[Array]
) -> tuple[dict[str, Callable[[Array], float]], dict[str, tuple[Array, Array]]]:
    """
    Every statistic as a function of the kept rows, from the explicit matrix and list of pairs.

    Ranks keep the whole gallery: only queries are left out.
    """
    s = a @ b.T
    n = len(a)
    apart = units[:, None] != units[None, :]
    first = {}
    for name, scores in (("a_to_b", s), ("b_to_a", s.T)):
        own = np.diag(scores)[:, None]
        ties = np.isclose(scores, own, rtol=0, atol=1e-14)
        beaten = ((scores > own) & ~ties).any(axis=1)
        first[name] = (np.where(beaten, 0.0, 1 / ties.sum(axis=1)), units)

    def floor(kept: Array) -> Array:
        return np.concatenate(
            [s[i, p[i]][kept[p[i]]] for p in partners for i in [np.flatnonzero(kept)]]
        )

    def matched(kept: Array) -> Array:
        return np.diag(s)[kept]

    def everything(kept: Array) -> Array:
        return s[np.ix_(kept, kept)][apart[np.ix_(kept, kept)]]

    def gap(kept: Array) -> float:
        return float(matched(kept).mean() - floor(kept).mean())

    statistics: dict[str, Callable[[Array], float]] = {
        "matched": lambda kept: float(matched(kept).mean()),
        "floor": lambda kept: float(floor(kept).mean()),
        "gap": gap,
        "gap_over_floor_sd": lambda kept: gap(kept) / float(floor(kept).std()),
        "cohens_d": lambda kept: (
            gap(kept) / float(np.sqrt((matched(kept).var() + floor(kept).var()) / 2))
        ),
        "floor_all": lambda kept: float(everything(kept).mean()),
        "gap_all": lambda kept: float(matched(kept).mean() - everything(kept).mean()),
    }
    assert n == len(units)
    return statistics, first


@pytest.mark.parametrize("sizes", [None, [3] * 8, [1, 1, 2, 3, 5, 10], [4, 4, 4, 4, 4]])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_every_number_and_interval_is_that_of_explicit_matrices_and_refits(
    sizes: list[int] | None,
    shared: bool,
    level: float,
    run: Callable[..., Any],
    unit_rows: Callable[[Array], Array],
    t_interval: Callable[..., tuple[float, float]],
    small_blocks: Callable[..., None],
) -> None:
    """
    Compared with the masked n x n matrix, the list of re-paired rows, refits without each unit by
    scipy's t, and scipy's exact binomial quantiles for shares. Fitted means are taken as given.
    """
    small_blocks(23, 5)
    rng = np.random.default_rng(1)
    n = 24 if sizes is None else sum(sizes)
    units = np.arange(n) if sizes is None else rng.permutation(np.repeat(range(len(sizes)), sizes))
    x = rng.normal(0.8, 1, size=(n, 6))
    y = x + rng.normal(0.1, 1.2, size=(n, 6))
    y[3], x[3] = y[7], x[7]  # a tie on both sides
    groups = None if sizes is None else [f"g{u}" for u in units]
    params = {"shared_mean": shared, "derangements": 7, "level": level}
    got, _ = run(cosine_floor, a=x, b=y, groups=groups, params=params, seed=3, threads=2)

    key = Units.rows(n) if sizes is None else Units.groups(units_in_order(groups))
    partners = [derangement(key, 3, "floor", i) for i in range(7)]
    a, b = unit_rows(x), unit_rows(y)
    means = (np.vstack([a, b]).mean(axis=0),) * 2 if shared else (a.mean(axis=0), b.mean(axis=0))
    everyone = np.ones(n, dtype=bool)
    for reading, u, v in (
        (got.raw, a, b),
        (got.centred, unit_rows(a - means[0]), unit_rows(b - means[1])),
    ):
        statistics, first = plain_reading(u, v, units, partners)
        for name, statistic in statistics.items():
            estimate = getattr(reading, name)
            assert estimate.estimate == pytest.approx(statistic(everyone), rel=1e-10, abs=1e-13)
            low, high = t_interval(statistic, units, level)
            interval = estimate.interval
            assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-8, abs=1e-11)
            assert (interval.method, interval.level) == ("jackknife_t", level)
            assert interval.unit == ("row" if sizes is None else "group")
            assert interval.resamples == len(np.unique(units))

        s = u @ v.T
        apart = units[:, None] != units[None, :]
        sampled = np.concatenate([s[np.arange(n), p] for p in partners])
        assert all((units[p] != units).all() for p in partners)
        assert reading.floor_sd == pytest.approx(sampled.std(), rel=1e-11)
        assert reading.floor_all_sd == pytest.approx(s[apart].std(), rel=1e-11)
        assert reading.unrelated_pairs == apart.sum()

        ranked = reading.partner_ranked_first
        for name, (values, _) in first.items():
            share = getattr(ranked, name)
            assert share.estimate == pytest.approx(values.mean(), rel=1e-14)
            low, high = t_interval(lambda kept, v=values: float(v[kept].mean()), units, level)
            count = len(np.unique(units))
            total = sum(values[units == unit].mean() for unit in np.unique(units))
            tail = (1 - level) / 2
            exact = (
                stats.beta.ppf(tail, total, count - total + 1) if total > 0 else 0.0,
                stats.beta.isf(tail, total + 1, count - total) if total < count else 1.0,
            )
            assert share.interval.low == pytest.approx(max(0, min(low, exact[0])), abs=1e-9)
            assert share.interval.high == pytest.approx(min(1, max(high, exact[1])), abs=1e-9)
            assert share.interval.method == "jackknife_t+clopper_pearson"
            assert getattr(ranked, f"{name}_count") == np.count_nonzero(values == 1)
        assert ranked.tied == sum(
            np.count_nonzero((values > 0) & (values < 1)) for values, _ in first.values()
        )

    off = ~np.eye(n, dtype=bool)
    assert got.anisotropy_a == pytest.approx((a @ a.T)[off].mean(), rel=1e-11)
    assert got.anisotropy_b == pytest.approx((b @ b.T)[off].mean(), rel=1e-11)
    for residual, u in (
        (got.residual_anisotropy_a, unit_rows(a - means[0])),
        (got.residual_anisotropy_b, unit_rows(b - means[1])),
    ):
        assert residual == pytest.approx((u @ u.T)[off].mean(), rel=1e-9)


def units_in_order(groups: list[str] | None) -> Array:
    """Codes in order of first appearance, as a column encodes its labels."""
    assert groups is not None
    seen = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    return np.array([seen[name] for name in groups])


def test_a_floor_without_spread_leaves_no_ratio(run: Callable[..., Any]) -> None:
    """Published closed form: four basis vectors against themselves; gaps 1 and 1.33333333."""
    got, _ = run(cosine_floor, a=np.eye(4), b=np.eye(4))
    assert got.raw.matched.estimate == 1
    assert (got.raw.floor.estimate, got.raw.floor_all.estimate) == (0, 0)
    assert (got.anisotropy_a, got.anisotropy_b) == (
        pytest.approx(0, abs=1e-15),
        pytest.approx(0, abs=1e-15),
    )
    assert got.raw.partner_ranked_first.a_to_b.estimate == 1
    assert got.raw.partner_ranked_first.chance == 0.25
    assert got.raw.gap.estimate == 1
    assert got.centred.matched.estimate == pytest.approx(1)
    assert got.centred.floor.estimate == pytest.approx(-1 / 3)
    assert got.centred.floor_all.estimate == pytest.approx(-1 / 3)
    assert got.centred.gap.estimate == pytest.approx(4 / 3)
    for reading in (got.raw, got.centred):
        for name in ("gap_over_floor_sd", "cohens_d"):
            estimate = getattr(reading, name)
            assert estimate.estimate is None
            assert estimate.undefined["estimate"].code == "no_spread"
        assert reading.floor_all_sd == 0
    assert "not expressible" in got.readings()[0]


def test_a_spread_of_rounding_is_no_spread(run: Callable[..., Any]) -> None:
    """Closed form: a turned basis has cosines of 0 up to 1e-16, whose sd means nothing."""
    x = np.eye(9) @ ortho_group.rvs(9, random_state=1)
    got, _ = run(cosine_floor, a=x, b=x)
    assert 0 < got.raw.floor_sd < 1e-15
    for reading in (got.raw, got.centred):
        assert reading.gap_over_floor_sd.undefined["estimate"].code == "no_spread"
        assert reading.cohens_d.undefined["estimate"].code == "no_spread"
    assert got.centred.floor_all.estimate == pytest.approx(-1 / 8)


@pytest.mark.parametrize(("model", "induced"), [("e5small_q4", -0.0113), ("minilm", None)])
def test_the_floor_that_self_fitting_makes_is_foreseen(
    model: str,
    induced: float | None,
    sides: Callable[[str, str], dict[str, Array]],
    run: Callable[..., Any],
    unit_rows: Callable[[Array], Array],
) -> None:
    """Compared with the formula on plain means, and with the exact centred floor (e5: -.0112)."""
    inputs = sides("scifact_halves", model)
    a, b = unit_rows(inputs["a"]), unit_rows(inputs["b"])
    got, context = run(cosine_floor, a=inputs["a"], b=inputs["b"], params={"shared_mean": True})
    apart, shared = a.mean(axis=0) - b.mean(axis=0), np.vstack([a, b]).mean(axis=0)
    n, matched = 100, got.centred.matched.estimate
    formula = -matched / (n - 1) - n * (apart @ apart) / (4 * (n - 1) * (1 - shared @ shared))
    assert got.induced_floor == pytest.approx(formula, rel=1e-11)
    assert got.induced_floor == pytest.approx(got.centred.floor_all.estimate, abs=2e-4)
    if induced is not None:
        assert round(got.induced_floor, 4) == induced
        assert round(got.centred.floor_all.estimate, 4) == -0.0112
    (warned,) = (w for w in context.warnings if w.code == "mean_fitted_on_compared_rows")
    assert f"{got.induced_floor:.4f}" in warned.message
    assert f"{got.induced_floor:.4f}" in " ".join(got.readings())

    got, _ = run(cosine_floor, a=inputs["a"], b=inputs["b"])
    own = -got.centred.matched.estimate / 99
    assert got.induced_floor == pytest.approx(own, rel=1e-12)
    assert got.induced_floor == pytest.approx(got.centred.floor_all.estimate, abs=2e-4)


def test_means_from_other_rows_induce_no_floor(
    sides: Callable[[str, str], dict[str, Array]], run: Callable[..., Any]
) -> None:
    """Closed form: nothing to foresee and nothing to warn of; provenance is named."""
    inputs = sides("scifact_halves", "e5small_q4")
    got, context = run(cosine_floor, **inputs)
    assert got.induced_floor is None
    assert got.undefined["induced_floor"].code == "mean_fitted_elsewhere"
    assert "mean_fitted_on_compared_rows" not in {w.code for w in context.warnings}
    assert (got.means.a.rows, got.means.a.count) == ("fit_a", 200)
    assert (got.means.b.rows, got.means.b.count) == ("fit_b", 200)


@pytest.mark.parametrize(
    ("given", "shared", "names", "counts"),
    [
        ((), False, ("a", "b"), (20, 20)),
        ((), True, ("a+b", "a+b"), (40, 40)),
        (("fit_a",), False, ("fit_a", "b"), (30, 20)),
        (("fit_b",), False, ("a", "fit_b"), (20, 5)),
        (("fit_a", "fit_b"), True, ("fit_a+fit_b", "fit_a+fit_b"), (35, 35)),
        (("fit_b",), True, ("fit_b", "fit_b"), (5, 5)),
    ],
)
def test_means_come_from_where_the_report_says(
    given: tuple[str, ...],
    shared: bool,
    names: tuple[str, str],
    counts: tuple[int, int],
    run: Callable[..., Any],
    unit_rows: Callable[[Array], Array],
) -> None:
    """Compared with centring in plain numpy by the mean of the stacked unit rows named."""
    rng = np.random.default_rng(2)
    data = {
        name: rng.normal(0.5, 1, size=(count, 4))
        for name, count in {"a": 20, "b": 20, "fit_a": 30, "fit_b": 5}.items()
    }
    inputs = {name: data[name] for name in ("a", "b", *given)}
    got, context = run(cosine_floor, **inputs, params={"shared_mean": shared})
    assert (got.means.a.rows, got.means.b.rows) == names
    assert (got.means.a.count, got.means.b.count) == counts
    u, v = (
        unit_rows(
            unit_rows(data[side])
            - np.vstack([unit_rows(data[role]) for role in name.split("+")]).mean(axis=0)
        )
        for side, name in zip("ab", names, strict=True)
    )
    assert got.centred.matched.estimate == pytest.approx((u * v).sum(axis=1).mean(), rel=1e-12)
    fitted_here = bool({"a", "b", "a+b"} & set(names))
    assert (got.induced_floor is not None) == fitted_here
    assert ("mean_fitted_on_compared_rows" in {w.code for w in context.warnings}) == fitted_here


def test_no_floor_is_foreseen_with_groups_or_from_a_thousand_rows_on(
    run: Callable[..., Any],
) -> None:
    """Closed form."""
    x = np.random.default_rng(3).normal(size=(1000, 3))
    got, _ = run(cosine_floor, a=x[:999], b=x[:999], params={"derangements": 1})
    assert got.induced_floor is not None
    got, _ = run(cosine_floor, a=x, b=x, params={"derangements": 1})
    assert got.undefined["induced_floor"].code == "not_estimated"
    got, _ = run(cosine_floor, a=x[:20], b=x[:20], groups=list("abcd" * 5))
    assert got.undefined["induced_floor"].code == "not_estimated"


@pytest.mark.parametrize("role", ["a", "b"])
def test_rows_that_equal_their_mean_are_refused_by_name(role: str, run: Callable[..., Any]) -> None:
    """Closed form: the mean of x, y and their bisector's opposite pair leaves one row at zero."""
    turn = 2 * np.pi / 3
    good = np.array([[np.cos(i), np.sin(i), 1.0] for i in range(6)])
    bad = np.array([[np.cos(turn * i), np.sin(turn * i), 0] for i in range(3)] * 2)
    bad[5] = [0, 0, 1]
    fit = np.array([[0.0, 0, 1], [0, 0, 1]])
    sides = {"a": good, "b": good, role: bad}
    ids = tuple("uvwxyz")
    with pytest.raises(ZeroRows, match=f"`{role}` equals the mean .* in 1 row:") as caught:
        run(
            cosine_floor,
            **{name: Dataset(x, ids=ids) for name, x in sides.items()},
            **{f"fit_{role}": fit},
        )
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.count, fault.rows) == (f"/inputs/{role}", 1, ["z"])


def test_a_group_of_more_than_half_of_the_rows_is_refused(run: Callable[..., Any]) -> None:
    """Closed form: there are no unrelated partners for all of its rows."""
    x = np.random.default_rng(4).normal(size=(5, 3))
    with pytest.raises(TooFewGroups, match="3 of 5 rows"):
        run(cosine_floor, a=x, b=x, groups=list("aaabc"))


def test_a_unit_whose_absence_leaves_no_pair_has_no_interval(run: Callable[..., Any]) -> None:
    """Closed form: without half of the rows the sampled floor is empty."""
    x = np.random.default_rng(5).normal(size=(16, 3))
    got, _ = run(cosine_floor, a=x, b=x + 0.1, groups=list("aaaaaaaabbccddee"))
    for name in ("floor", "gap", "gap_over_floor_sd", "cohens_d"):
        assert getattr(got.raw, name).undefined["interval"].code == "undefined_without_a_unit"
    for name in ("matched", "floor_all", "gap_all"):
        assert getattr(got.raw, name).interval is not None


def test_few_units_and_a_census_have_estimates_without_intervals(run: Callable[..., Any]) -> None:
    """Closed form."""
    x = np.random.default_rng(6).normal(size=(16, 3))
    got, _ = run(cosine_floor, a=x, b=x + 0.1, groups=list("aaaabbbbccccdddd"))
    assert got.raw.matched.undefined["interval"].code == "too_few_groups"
    got, _ = run(cosine_floor, a=x[:4], b=x[:4] + 0.1)
    assert got.raw.matched.undefined["interval"].code == "too_few_rows"
    got, _ = run(cosine_floor, a=x, b=x + 0.1, params={"census": True})
    assert got.raw.partner_ranked_first.a_to_b.undefined["interval"].code == "census"


def test_copies_of_a_pair_share_the_first_place(run: Callable[..., Any]) -> None:
    """Closed form: one pair alone, one twice, one four times."""
    copies = np.array([1, 2, 4])
    x = np.eye(3)[np.repeat(np.arange(3), copies)]
    got, _ = run(cosine_floor, a=x, b=2 * x)
    first = got.raw.partner_ranked_first
    assert first.a_to_b.estimate == pytest.approx(3 / 7, rel=1e-15)
    assert (first.a_to_b_count, first.b_to_a_count, first.tied) == (1, 1, 12)


def test_paraphrases_in_groups_do_not_raise_the_floor(
    rows: Callable[[str], Array], column: Callable[[str, str], list[str]], run: Callable[..., Any]
) -> None:
    """Published for six clinc intents: .204 over all i != j, .130 across groups."""
    intents = np.array(column("clinc150", "intent"))
    chosen = np.isin(intents, np.unique(intents)[:6])
    x, groups = rows("clinc150/minilm")[chosen], intents[chosen].tolist()
    all_pairs, _ = run(cosine_floor, a=x, b=x, params={"derangements": 1})
    across, _ = run(cosine_floor, a=x, b=x, groups=groups, params={"derangements": 1})
    assert round(all_pairs.raw.floor_all.estimate, 3) == 0.204
    assert round(across.raw.floor_all.estimate, 3) == 0.130
    assert (all_pairs.raw.unrelated_pairs, across.raw.unrelated_pairs) == (300 * 299, 300 * 250)


def test_two_spaces_are_noticed_and_mapped(
    rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Closed form: a rotated copy is another space until an orthogonal map is fitted."""
    x = rows("debian_pairs/minilm_query")[:1500, :64].astype(np.float64)
    turned = x @ ortho_group.rvs(64, random_state=1)
    got, context = run(cosine_floor, a=x, b=turned, params={"align": "procrustes"}, threads=2)
    guard = got.space_guard
    assert "different_spaces" in {w.code for w in context.warnings}
    assert (guard.train_pairs, guard.test_pairs) == (750, 750)
    assert abs(guard.matched) < 0.5
    assert guard.first < 0.1
    assert (guard.matched_mapped, guard.first_mapped) == (pytest.approx(1), 1)
    assert got.aligned.matched.estimate == pytest.approx(1)
    assert got.aligned.n == 750
    assert got.aligned.partner_ranked_first.a_to_b_count == 750
    assert "held-out" in got.readings()[-1]


def test_one_space_is_left_in_peace(
    sides: Callable[[str, str], dict[str, Array]], run: Callable[..., Any]
) -> None:
    """Compared with nothing: real pairs of one model and of its int8 twin raise no warning."""
    for folder, model in (
        ("debian_pairs", "minilm"),
        ("debian_pairs", "e5small_q4"),
        ("clinc150", "pair_minilm_vs_minilm_int8"),
    ):
        got, context = run(
            cosine_floor, **sides(folder, model), params={"derangements": 1}, threads=2
        )
        assert "different_spaces" not in {w.code for w in context.warnings}
        assert got.undefined["aligned"].code == "not_requested"
        assert got.space_guard.first > 0.5


def test_a_turn_that_leaves_partners_first_is_no_other_space(run: Callable[..., Any]) -> None:
    """Closed form: each plane turned by 50 degrees gives cosines of .643, and still the nearest."""
    c, s = np.cos(np.radians(50)), np.sin(np.radians(50))
    turn = np.kron(np.eye(32), [[c, s], [-s, c]])
    x = np.random.default_rng(14).normal(size=(400, 64))
    got, context = run(cosine_floor, a=x, b=x @ turn, params={"derangements": 1})
    assert got.space_guard.matched == pytest.approx(c)
    assert got.space_guard.matched_mapped == pytest.approx(1)
    assert got.space_guard.first > 0.95
    assert "different_spaces" not in {w.code for w in context.warnings}


def test_two_real_models_are_two_spaces(
    rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Closed form by construction: rows of MiniLM and of e5 for the same texts."""
    _, context = run(
        cosine_floor,
        a=rows("clinc150/minilm"),
        b=rows("clinc150/e5small_q4"),
        params={"derangements": 1},
        threads=2,
    )
    assert "different_spaces" in {w.code for w in context.warnings}


@pytest.mark.parametrize(
    ("specs", "warned"),
    [
        ((Spec(model="m"), Spec(model="m")), False),
        ((Spec(model="m"), Spec(model="k")), True),
        ((Spec(model="m", revision="1"), Spec(model="m", revision="2")), True),
        ((Spec(model="m"), Spec()), False),
    ],
)
def test_two_model_names_are_two_spaces(
    specs: tuple[Spec, Spec], warned: bool, run: Callable[..., Any]
) -> None:
    """Closed form: a name that is not given is no other name."""
    x = np.random.default_rng(7).normal(size=(30, 3))
    a, b = (Dataset(x, spec=spec) for spec in specs)
    _, context = run(cosine_floor, a=a, b=b)
    assert ("different_spaces" in {w.code for w in context.warnings}) == warned


def test_an_aligned_reading_is_the_raw_reading_of_mapped_held_out_pairs(
    run: Callable[..., Any], unit_rows: Callable[[Array], Array]
) -> None:
    """Compared with scipy's map on the train half and plain numpy on the other half."""
    rng = np.random.default_rng(8)
    x = rng.normal(0.3, 1, size=(40, 5))
    y = x @ ortho_group.rvs(5, random_state=3) + 0.3 * rng.normal(size=(40, 5))
    got, context = run(cosine_floor, a=x, b=y, params={"align": "procrustes"}, seed=5)
    split = PairSplit.of(Units.rows(40), 5, 40)
    a, b = unit_rows(x), unit_rows(y)
    turn, _ = orthogonal_procrustes(b[split.train], a[split.train])
    u, v = a[split.test], b[split.test] @ turn
    s = u @ v.T
    assert got.aligned.n == 20
    assert got.aligned.matched.estimate == pytest.approx(np.diag(s).mean(), rel=1e-11)
    assert got.aligned.floor_all.estimate == pytest.approx(
        s[~np.eye(20, dtype=bool)].mean(), rel=1e-10
    )
    assert got.aligned.partner_ranked_first.a_to_b_count == (s.argmax(axis=1) == range(20)).sum()
    assert "underdetermined_map" not in {w.code for w in context.warnings}
    _, context = run(cosine_floor, a=x[:8], b=y[:8], params={"align": "procrustes"})
    assert "underdetermined_map" in {w.code for w in context.warnings}


@given(
    share=st.floats(0.01, 1),
    shared=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_a_common_component_moves_cosines_and_no_distance_in_sd(
    run: Callable[..., Any], share: float, shared: bool, seed: int
) -> None:
    """Closed form: every cosine s becomes l s + 1 - l; all centred readings stay."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0.5, 1, size=(2, 15, 4))
    z /= np.linalg.norm(z, axis=2, keepdims=True)
    y = np.concatenate([np.sqrt(share) * z, np.full((2, 15, 1), np.sqrt(1 - share))], axis=2)
    params = {"shared_mean": shared}
    before, _ = run(cosine_floor, a=z[0], b=z[1], params=params)
    after, _ = run(cosine_floor, a=y[0], b=y[1], params=params)
    for name in ("matched", "floor", "floor_all"):
        assert getattr(after.raw, name).estimate == pytest.approx(
            share * getattr(before.raw, name).estimate + 1 - share, rel=1e-12
        )
    for name in ("gap", "gap_all"):
        assert getattr(after.raw, name).estimate == pytest.approx(
            share * getattr(before.raw, name).estimate, abs=1e-13
        )
    for name in ("gap_over_floor_sd", "cohens_d"):
        assert getattr(after.raw, name).estimate == pytest.approx(
            getattr(before.raw, name).estimate, rel=1e-9
        )
    assert after.raw.floor_all_sd == pytest.approx(share * before.raw.floor_all_sd, rel=1e-9)
    for name in ("matched", "floor", "gap", "gap_over_floor_sd", "cohens_d", "floor_all"):
        one, other = getattr(before.centred, name), getattr(after.centred, name)
        assert other.estimate == pytest.approx(one.estimate, rel=1e-9, abs=1e-12)
        assert other.interval.low == pytest.approx(one.interval.low, rel=1e-8, abs=1e-11)
    assert after.residual_anisotropy_a == pytest.approx(before.residual_anisotropy_a, abs=1e-12)


@given(seed=st.integers(0, 10**6), power=st.integers(-30, 30))
def test_the_length_of_rows_is_nobodys_business(
    run: Callable[..., Any], seed: int, power: int
) -> None:
    """Compared bit for bit with the same rows, each times a power of two of its own."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, 12, 4))
    factors = np.ldexp(1.0, power + rng.integers(-3, 4, size=(2, 12, 1)))
    before, _ = run(cosine_floor, a=a, b=b)
    after, _ = run(cosine_floor, a=a * factors[0], b=b * factors[1])
    assert after.raw == before.raw


def test_the_sides_exchange_with_their_readings(run: Callable[..., Any]) -> None:
    """Compared with the other way round: everything symmetric stays, the directions swap."""
    rng = np.random.default_rng(9)
    x, y = rng.normal(0.4, 1, size=(2, 20, 4))
    one, _ = run(cosine_floor, a=x, b=y)
    other, _ = run(cosine_floor, a=y, b=x)
    assert other.raw.floor_all.estimate == pytest.approx(one.raw.floor_all.estimate, rel=1e-13)
    assert other.raw.matched.estimate == pytest.approx(one.raw.matched.estimate, rel=1e-14)
    first, swapped = one.raw.partner_ranked_first, other.raw.partner_ranked_first
    assert (first.a_to_b, first.a_to_b_count) == (swapped.b_to_a, swapped.b_to_a_count)
    assert one.anisotropy_a == other.anisotropy_b


def test_the_seed_moves_sampled_readings_and_no_exact_one(run: Callable[..., Any]) -> None:
    """Compared with another seed."""
    rng = np.random.default_rng(10)
    x, y = rng.normal(size=(2, 30, 4))
    one, _ = run(cosine_floor, a=x, b=y, seed=0)
    other, _ = run(cosine_floor, a=x, b=y, seed=1)
    for reading in ("raw", "centred"):
        before, after = getattr(one, reading), getattr(other, reading)
        for name in ("matched", "floor_all", "floor_all_sd", "gap_all", "partner_ranked_first"):
            assert getattr(before, name) == getattr(after, name)
        for name in ("floor", "gap", "floor_sd", "gap_over_floor_sd", "cohens_d"):
            assert getattr(before, name) != getattr(after, name)


def test_raw_and_centred_share_their_pairings(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """Counted: each pairing is drawn once for both, under the asked number."""
    drawn = []

    def counted(*args: Any) -> Array:
        drawn.append(args[1:])
        return derangement(*args)

    monkeypatch.setattr(MODULE, "derangement", counted)
    x = np.random.default_rng(11).normal(size=(10, 3))
    run(cosine_floor, a=x, b=x + 1, seed=4, params={"derangements": 3})
    assert drawn == [(4, "floor", 0), (4, "floor", 1), (4, "floor", 2)]


def test_groups_of_unequal_size_are_mentioned_in_the_scope(run: Callable[..., Any]) -> None:
    """Closed form."""
    x = np.random.default_rng(12).normal(size=(12, 3))
    _, context = run(cosine_floor, a=x, b=x + 1, groups=list("aabbccddeeff"))
    assert context.scope == []
    _, context = run(cosine_floor, a=x, b=x + 1, groups=list("aaabbccddeef"))
    assert len(context.scope) == 1
    assert "unequal size" in context.scope[0]


def test_readings_say_the_numbers_they_are_about(
    sides: Callable[[str, str], dict[str, Array]], run: Callable[..., Any]
) -> None:
    """Compared with the published numbers in print."""
    inputs = sides("scifact_halves", "e5small_q4")
    got, context = run(cosine_floor, a=inputs["a"], b=inputs["b"], params={"shared_mean": True})
    raw, centred, spread, induced = got.readings()
    assert "0.9161 [" in raw
    assert "0.8220" in raw
    assert "98 of 100 rows of a and 99 of b (chance 0.01)" in raw
    assert "0.5220 [" in centred
    assert "0.8204 and 0.8263" in spread
    assert "a+b (200 rows)" in spread
    assert "-0.0113" in induced
    assert {w.code for w in context.warnings} == {"anisotropic", "mean_fitted_on_compared_rows"}


def test_a_reading_counts_the_gap_of_all_pairs_in_deviations_of_all_pairs(
    sides: Callable[[str, str], dict[str, Array]], run: Callable[..., Any]
) -> None:
    """Explicit 100 x 100 matrices, whatever pairings were sampled."""
    inputs = {name: sides("scifact_halves", "e5small_q4")[name] for name in "ab"}
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in map(np.float64, inputs.values())]
    mean = np.concatenate(units).mean(axis=0)
    centred = [(x - mean) / np.linalg.norm(x - mean, axis=1, keepdims=True) for x in units]
    got, _ = run(cosine_floor, **inputs, params={"shared_mean": True, "derangements": 1})
    for reading, (x, y) in zip(got.readings(), (units, centred), strict=False):
        scores = x @ y.T
        floor = scores[~np.eye(len(x), dtype=bool)]
        times = (np.diag(scores).mean() - floor.mean()) / floor.std()
        assert f"] is {times:.2f} standard deviations of the floor." in reading


def test_many_dimensions_switch_the_space_guard_off(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """Closed form: null with a reason; so are too few rows to judge by."""
    x = np.random.default_rng(13).normal(size=(12, 5))
    monkeypatch.setattr(SPACES, "GUARD_DIMENSIONS", 4)
    got, _ = run(cosine_floor, a=x, b=x)
    assert got.undefined["space_guard"].code == "too_many_dimensions"
    got, _ = run(cosine_floor, a=x[:3, :4], b=x[:3, :4])
    assert got.undefined["space_guard"].code == "too_few_rows"


def test_the_interval_of_matched_covers_its_population_value(run: Callable[..., Any]) -> None:
    """
    Simulated: 250 samples of 12 groups of pairs with a known expectation; nominal .95.

    Pairs lie in a plane, 60 degrees apart but for a turn of their group's and one of their own, so
    the expected cosine is cos(60) times both characteristic functions at 1.
    """
    rng = np.random.default_rng(20240303)
    truth = 0.5 * np.exp(-(0.4**2) / 2) * np.exp(-(0.3**2) / 2)
    groups = np.repeat(np.arange(12), 3).tolist()
    inside = 0
    for _ in range(250):
        turn = np.pi / 3 + rng.normal(0, 0.4, 12).repeat(3) + rng.normal(0, 0.3, 36)
        start = rng.uniform(0, 2 * np.pi, 36)
        a, b = (np.column_stack([np.cos(t), np.sin(t)]) for t in (start, start + turn))
        got, _ = run(cosine_floor, a=a, b=b, groups=groups, params={"derangements": 1})
        interval = got.raw.matched.interval
        inside += interval.low <= truth <= interval.high
    assert 0.91 <= inside / 250 <= 0.985
