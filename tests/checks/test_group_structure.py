"""Group structure against stored readings, published cases, refits by hand and other tools."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import pdist, squareform
from scipy.stats._resampling import BootstrapResult
from skbio import DistanceMatrix
from skbio.stats.distance import permanova

from service.check import Context
from service.checks import CATALOGUE
from service.dataset import Dataset, Labels
from service.dataset_record import DatasetRecord
from service.errors import AssayError, InvalidRequest, TooFewGroups, TooFewRows
from service.gate import judge, read_policy
from service.job import Job
from service.numerics.compiled import draw_counts, stream_key
from service.operations import Services, report_of

Array = NDArray[Any]
CHECK = next(check for check in CATALOGUE if check.kind == "group_structure")
CLINC = ("minilm", "minilm_int8", "e5small_q4", "use_multilingual")
TESTED = ("r2", "icc1", "within_share")
PAIRED = (*TESTED, "v", "w_bar")
FAST: dict[str, Any] = {"permutations": 49, "bootstrap": 0, "dispersion_test": False}
RAW = {**FAST, "normalise": False}
seeds = st.integers(0, 10**6)


def structured(
    models: dict[str, Array] | Array,
    groups: Any,
    params: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    threads: int = 1,
    **columns: Any,
) -> Any:
    """Run the check on arrays and lists; one array is the model `m`."""
    given = models if isinstance(models, dict) else {"m": models}
    inputs: dict[str, Any] = {name: Labels.of(list(c)) for name, c in columns.items()}
    inputs["models"] = {name: Dataset(np.asarray(x)) for name, x in given.items()}
    inputs["groups"] = Labels.of(list(groups))
    return CHECK.run(
        Context(seed=seed, threads=threads),
        CHECK.inputs(**inputs),
        CHECK.params(**(FAST if params is None else params)),
    )


def plain(rows: Array, labels: Array) -> dict[str, float]:
    """The statistics from their definitions, by loops over groups."""
    n, names = len(rows), np.unique(labels)
    own = [rows[labels == name] for name in names]
    total = float(((rows - rows.mean(axis=0)) ** 2).sum())
    within = float(sum(((x - x.mean(axis=0)) ** 2).sum() for x in own))
    msb, msw = (total - within) / (len(own) - 1), within / (n - len(own))
    n0 = (n - sum(len(x) ** 2 for x in own) / n) / (len(own) - 1)
    return {
        "r2": (total - within) / total,
        "icc1": (msb - msw) / (msb + (n0 - 1) * msw),
        "within_share": within / total,
        "v": total / n,
        "w_bar": within / n,
    }


def half_width(estimate: float, interval: Any) -> float:
    """From the estimate to the nearer end; the other lies further by the jackknife's bias."""
    return float(min(estimate - interval.low, interval.high - estimate))


def error_of(estimate: Any) -> float:
    """The standard error an interval was made with."""
    level = (1 + estimate.interval.level) / 2
    t = stats.t.ppf(level, estimate.interval.resamples - 1)
    return float(half_width(estimate.estimate, estimate.interval) / t)


def ends(interval: Any) -> tuple[float, float]:
    return interval.low, interval.high


# --- stored readings ----------------------------------------------------------------------------


def matches(got: Any, stored: dict[str, Any], printed: Callable[[Any], Any]) -> None:
    model = got.models["m"]
    assert (got.n, got.groups) == (stored["n"], stored["G"])
    assert model.ss_total == printed(stored["SS_T"])
    assert model.ss_between == printed(stored["SS_B"])
    assert model.ss_within == printed(stored["SS_W"])
    assert model.r2.estimate == printed(stored["R2"])
    assert model.pseudo_f == printed(stored["F"])
    assert model.v.estimate == printed(stored["V"])
    assert model.w_bar.estimate == printed(stored["W_bar"])
    assert model.w_tilde_mean == printed(stored["Wtilde_mean"])
    assert model.icc1.estimate == printed(stored["ICC1_trace"])
    assert model.r2_expected == printed(stored["R2_expected_null"])
    assert model.pseudo_f_expected == pytest.approx(1, abs=1e-9)
    expected = stored["R2_expected_null"]
    assert model.r2_adjusted == pytest.approx((stored["R2"] - expected) / (1 - expected), rel=1e-7)
    assert model.within_share.estimate == pytest.approx(1 - stored["R2"], rel=1e-8)


@pytest.mark.parametrize("name", CLINC)
def test_intents_and_domains_have_their_stored_readings(
    name: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """Compared with an independent script: sums of squares, F, R2, W, ICC, and scikit-bio's F."""
    stored, x = reference["clinc150"][name], rows(f"clinc150/{name}")
    intents, domains = (np.array(column("clinc150", c)) for c in ("intent", "domain"))
    first = np.isin(intents, np.unique(intents)[:20])
    params = {**FAST, "permutations": 19}
    got = structured(x, intents.tolist(), params, threads=2)
    matches(got, stored["intent"], printed)
    assert error_of(got.models["m"].r2) == printed(stored["jackknife_SE_R2_intent"])
    got = structured(x, domains.tolist(), params, threads=2)
    matches(got, stored["domain"], printed)
    assert got.models["m"].pseudo_f == printed(stored["permanova_skbio_domain_all"]["F"])
    got = structured(x[first], intents[first].tolist(), {**FAST, "permutations": 999}, threads=2)
    matches(got, stored["intent_first20_alphabetical"], printed)
    assert got.models["m"].pseudo_f == printed(stored["permanova_skbio_first20"]["F"])
    assert got.models["m"].p.estimate == stored["permanova_skbio_first20"]["p"] == 0.001


@pytest.mark.parametrize("name", ["minilm", "e5small_q4"])
@pytest.mark.parametrize("side", ["doc", "query"])
def test_sections_of_packages_have_their_stored_readings(
    name: str,
    side: str,
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """Compared with an independent script on unbalanced groups."""
    x = rows(f"debian_pairs/{name}_{side}")
    got = structured(x, column("debian_pairs", "section"), threads=2)
    matches(got, reference["debian_pairs"][name][f"section_{side}"], printed)


@pytest.mark.parametrize("name", ["minilm", "e5small_q4"])
def test_sentences_of_one_abstract_have_their_stored_readings(
    name: str,
    rows: Callable[[str], Array],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """Compared with an independent script on 300 groups of five."""
    groups = np.repeat(np.arange(300), 5).tolist()
    got = structured(rows(f"scifact_titles/{name}/sentences"), groups, threads=2)
    matches(got, reference["scifact_titles"][name]["sentence_groups"], printed)


def test_paired_errors_of_encoders_are_the_stored_ones(
    rows: Callable[[str], Array],
    column: Callable[[str, str], list[str]],
    reference: dict[str, Any],
    printed: Callable[[Any], Any],
) -> None:
    """Compared with refits by an independent script, one model, the other, and their difference."""
    models = {name: rows(f"clinc150/{name}") for name in CLINC[:3]}
    params = {**FAST, "permutations": 19}
    got = structured(models, column("clinc150", "intent"), params, threads=2)
    stored = reference["clinc150"]
    pair = stored["pair_minilm_vs_minilm_int8"]["jackknife_SE_R2_minilm_int8_diff"]
    other = stored["jackknife_SE_R2_minilm_e5_diff"]
    assert error_of(got.models["minilm"].r2) == printed(pair[0]) == printed(other[0])
    assert error_of(got.models["minilm_int8"].r2) == printed(pair[1])
    assert error_of(got.models["e5small_q4"].r2) == printed(other[1])
    assert error_of(got.differences["minilm_int8"]["minilm"].r2) == pytest.approx(pair[2], rel=1e-7)
    assert error_of(got.differences["e5small_q4"]["minilm"].r2) == printed(other[2])


def test_intents_exchanged_inside_domains_have_a_null_f_of_nine(
    rows: Callable[[str], Array], column: Callable[[str, str], list[str]]
) -> None:
    """Published: null F 9.62 of CLINC150 intents inside domains, 1 without strata."""
    got = structured(
        rows("clinc150/minilm"),
        column("clinc150", "intent"),
        strata=column("clinc150", "domain"),
        threads=2,
    ).models["m"]
    assert round(got.pseudo_f_expected, 2) == 9.62
    expected = got.r2_expected
    assert expected / 59 / ((1 - expected) / 2940) == pytest.approx(got.pseudo_f_expected)
    assert got.r2_adjusted == pytest.approx((got.r2.estimate - expected) / (1 - expected))
    assert got.p.estimate == got.p.p_min == 1 / 50


# --- published cases ----------------------------------------------------------------------------


def test_tied_permutations_count_all_six() -> None:
    """Published (vegan#132): exact p 6/1,680; F 63.22166, R2 .95469760, rows as given."""
    r = np.random.default_rng(4)
    x = r.normal(size=(9, 4)) * 0.1 + np.repeat(np.eye(4)[:3], 3, axis=0)
    got = structured(x, "aaabbbccc", {**RAW, "permutations": 99_999})
    m = got.models["m"]
    assert got.labellings == 1680
    assert m.pseudo_f == pytest.approx(63.22166, rel=1e-6)
    assert m.r2.estimate == pytest.approx(0.95469760, rel=1e-7)
    assert (m.p.exceedances, m.p.permutations, m.p.exact) == (6, 1680, True)
    assert m.p.estimate == 6 / 1680
    assert m.p.interval is None
    assert m.p.undefined["interval"].code == "exact"
    few = structured(x, "aaabbbccc", {**RAW, "permutations": 199}).models["m"].p
    assert not few.exact
    assert few.estimate >= few.p_min == 1 / 200
    exact = stats.binomtest(few.exceedances, 199).proportion_ci(0.95, method="exact")
    assert ends(few.interval) == pytest.approx((exact.low, exact.high), abs=1e-9)


NULLS = (
    "r2", "r2_expected", "r2_adjusted", "pseudo_f", "pseudo_f_expected", "p", "pseudo_f2", "p_f2",
    "icc1", "within_share",
)  # fmt: skip


def is_null(owner: Any, name: str) -> str:
    """The reason code of a null, be it a number or an estimate."""
    value = getattr(owner, name)
    if value is None:
        return str(owner.undefined[name].code)
    assert value.estimate is None
    return str(value.undefined["estimate"].code)


@pytest.mark.parametrize("d", [2, 8, 12])
def test_many_identical_rows_are_null_as_few_are(d: int) -> None:
    """A collapsed encoder is not perfectly separated: what adding up 100,000 rows rounds is nothing."""
    x = np.repeat(np.random.default_rng(1).normal(size=(1, d)).astype(np.float32), 100_000, 0)
    params = {"permutations": 19, "bootstrap": 200}
    m = structured({"m": x}, [i % 4 for i in range(len(x))], params).models["m"]
    assert {is_null(m, name) for name in NULLS} == {"zero_total"}
    assert m.v.estimate == 0


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("row", [[1.0, 1, 1], [0.1, 0.7, -3.3]])
def test_identical_rows_are_null_with_a_reason(normalise: bool, row: list[float]) -> None:
    """Published (vegan#372): no variation, so everything is null `zero_total`, and V is 0."""
    x = np.tile(row, (30, 1)) * (np.linspace(1, 3, 30)[:, None] if normalise else 1)
    params = {"normalise": normalise, "permutations": 49}
    got = structured(
        {"m": x, "o": np.random.default_rng(0).normal(size=x.shape)}, [0, 1, 2] * 10, params
    )
    m = got.models["m"]
    assert {is_null(m, name) for name in NULLS} == {"zero_total"}
    assert {is_null(m.dispersion, n) for n in ("f", "p", "f_spatial_median")} == {"zero_total"}
    assert {is_null(m.bca, name) for name in TESTED} == {"zero_total"}
    assert m.v.estimate == pytest.approx(0, abs=1e-28)
    pair = got.differences["o"]["m"]
    for name in TESTED:
        assert getattr(pair, name).estimate is None
        test = getattr(pair, f"{name}_test")
        assert (test.p, test.p_holm, test.simultaneous) == (None, None, None)
    json.loads(got.model_dump_json())
    assert len(got.readings()) >= 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("normalise", [True, False])
def test_groups_of_equal_rows_have_no_f_but_a_p(seed: int, size: int, normalise: bool) -> None:
    """Closed form: SS_W = 0 gives R2 = 1, F, F2 and dispersion null `zero_within`, p kept."""
    x = np.repeat(np.random.default_rng(seed).normal(size=(4, 7)), size, axis=0)
    groups = np.repeat(np.arange(4), size).tolist()
    got = structured(x, groups, {"normalise": normalise, "permutations": 49}).models["m"]
    assert got.r2.estimate == pytest.approx(1)
    for name in ("pseudo_f", "pseudo_f2", "p_f2"):
        assert is_null(got, name) == "zero_within"
    for name in ("f", "p", "f_spatial_median"):
        assert is_null(got.dispersion, name) == "zero_within"
    assert got.p.estimate == 1 / 50
    assert got.icc1.estimate == pytest.approx(1)


def test_a_large_common_offset_loses_nothing() -> None:
    """Published (faiss#297): float32 rows 4,096 away give the unshifted SS_T, V, R2 and F."""
    r = np.random.default_rng(7)
    x = r.integers(-64, 65, size=(24, 16)) / 16.0
    x[:6] += 0.5
    groups = [f"g{i // 6}" for i in range(24)]
    near = structured(x, groups, RAW).models["m"]
    far = structured((x + 4096).astype(np.float32), groups, RAW).models["m"]
    assert far.ss_total == pytest.approx(2096.150228, rel=1e-9)
    assert far.v.estimate == pytest.approx(87.339593, rel=1e-7)
    assert far.r2.estimate == pytest.approx(0.10419764, rel=1e-7)
    assert far.pseudo_f == pytest.approx(0.77545108, rel=1e-7)
    assert far.p.exceedances == near.p.exceedances
    assert far.pseudo_f2 == pytest.approx(near.pseudo_f2, rel=1e-10)


def test_singletons_are_kept_in_f_and_left_out_of_dispersion() -> None:
    """Published (vegan#606): R2 .41991885, F .57911740, W~ of a and b, dispersion F .29729355."""
    x = np.random.default_rng(21).normal(size=(10, 3))
    got = structured(x, "aaabbbcdef", {**RAW, "dispersion_test": True})
    m = got.models["m"]
    assert (got.n, got.groups, got.singletons) == (10, 6, 4)
    assert m.ss_total == pytest.approx(34.115783, rel=1e-7)
    assert m.ss_within == pytest.approx(19.789923, rel=1e-7)
    assert m.r2.estimate == pytest.approx(0.41991885, rel=1e-7)
    assert m.pseudo_f == pytest.approx(0.57911740, rel=1e-7)
    listed = {row.label: row for row in m.groups}
    assert [row.label for row in m.groups][:2] == ["b", "a"]
    assert listed["a"].w_tilde == pytest.approx(3.88059846, rel=1e-8)
    assert listed["b"].w_tilde == pytest.approx(6.01436291, rel=1e-8)
    for name in "cdef":
        assert listed[name].undefined["w_tilde"].code == "singleton"
        assert (listed[name].n, listed[name].w) == (1, 0)
    assert m.w_tilde_mean == pytest.approx((3.88059846 + 6.01436291) / 2, rel=1e-8)
    assert m.dispersion.f == pytest.approx(0.29729355, rel=1e-6)
    assert m.dispersion.f_spatial_median == pytest.approx(0.018350657, rel=1e-4)
    assert m.dispersion.excluded_singletons == 4
    assert is_null(m.dispersion, "p") == "groups_too_small"
    assert is_null(m, "pseudo_f2") == is_null(m, "p_f2") == "singletons"


@pytest.mark.parametrize(
    ("groups", "error"), [("a" * 10, TooFewGroups), ("abcdefghij", TooFewRows)]
)
def test_one_group_and_all_singletons_are_refused(groups: str, error: type[AssayError]) -> None:
    """Published (vegan#372): neither has a group structure; the error names the groups."""
    with pytest.raises(error) as caught:
        structured(np.random.default_rng(21).normal(size=(10, 3)), groups)
    assert caught.value.faults


def missing_labels(labels: list[Any]) -> dict[str, Any]:
    r = np.random.default_rng(51)
    x = r.normal(size=(12, 3))
    x[4:8] += 1.5
    x[8:] -= 1.0
    return {
        "kind": "group_structure",
        "inputs": {
            "models": [{"vectors": x.tolist(), "name": "m"}],
            "groups": {"values": labels},
        },
        "params": {**RAW, "permutations": 99},
    }


def test_missing_labels_are_refused_by_row_or_dropped_and_counted(
    ended: Callable[..., Job], services: Services
) -> None:
    """Published (pandas#35646): rows 1 and 6; dropped: n = 10, R2 .61866343, F 5.67824386."""
    labels = ["a", None, "a", "a", "b", "b", None, "b", "c", "c", "c", "c"]
    body = missing_labels(labels)
    with pytest.raises(InvalidRequest) as caught:
        ended(body)
    assert [(f.count, f.rows) for f in caught.value.faults] == [(2, ["1", "6"])]
    body["params"]["on_bad_rows"] = "drop"
    report: Any = report_of(services, ended(body))
    m = report.results.models["m"]
    assert (report.results.n, report.results.groups) == (10, 3)
    assert m.r2.estimate == pytest.approx(0.61866343, rel=1e-7)
    assert m.pseudo_f == pytest.approx(5.67824386, rel=1e-8)
    (warned,) = [w for w in report.warnings if w.code == "rows_dropped"]
    assert warned.message.startswith("2 of 12 rows dropped")


@pytest.mark.parametrize("word", ["None", "nan", "null", ""])
def test_words_that_look_missing_are_ordinary_labels(
    word: str, ended: Callable[..., Job], services: Services
) -> None:
    """Published (pandas#49103): the strings "None" and "nan" are a fourth group; F 4.673129."""
    labels = ["a", word, "a", "a", "b", "b", word, "b", "c", "c", "c", "c"]
    report: Any = report_of(services, ended(missing_labels(labels)))
    assert (report.results.n, report.results.groups) == (12, 4)
    assert report.results.models["m"].pseudo_f == pytest.approx(4.673129, rel=1e-6)


def test_unit_rows_decompose_twice_one_minus_cosine() -> None:
    """Published (vegan#434): SS_T 15.902137 = n (1 - |mean|^2), R2 .37802126, F 4.55829004."""
    r = np.random.default_rng(31)
    x = r.normal(size=(18, 6))
    x[:6, 0] += 2
    x[6:12, 1] += 2
    m = structured(x, "aaaaaabbbbbbcccccc").models["m"]
    assert m.ss_total == pytest.approx(15.902137, rel=1e-7)
    assert m.r2.estimate == pytest.approx(0.37802126, rel=1e-7)
    assert m.pseudo_f == pytest.approx(4.55829004, rel=1e-7)
    assert "2 (1 - cos)" in CHECK.description


def test_dispersion_uses_all_forty_dimensions() -> None:
    """Published: F 14.944399 by centroid and 13.870100 by spatial median, rows as given."""
    r = np.random.default_rng(41)
    x = r.normal(size=(60, 40))
    x[30:] *= 1.15
    params = {"normalise": False, "permutations": 999, "bootstrap": 0}
    m = structured(x, "a" * 30 + "b" * 30, params, threads=2).models["m"].dispersion
    assert m.f == pytest.approx(14.944399, rel=1e-6)
    assert m.f_spatial_median == pytest.approx(13.870100, rel=1e-5)
    assert m.p.estimate < 0.01


@pytest.mark.parametrize(
    ("values", "groups", "icc", "r2"),
    [
        ([1, 5, 2, 6, 3, 7, 1, 7], "aabbccdd", -0.77464789, 0.08695652),
        ([0, 4, 2, 1, 5, 3, 0.5, 2.5, 4.5], "aaabbcccc", -0.40806045, 0.05147059),
    ],
)
def test_a_negative_icc_is_reported_negative(
    values: list[float], groups: str, icc: float, r2: float
) -> None:
    """Published (pingouin#231): of vectors of one number, and of a response."""
    x = np.array(values, dtype=float)[:, None]
    got = structured(x, groups, RAW, response=[float(v) for v in values])
    assert got.models["m"].icc1.estimate == pytest.approx(icc, rel=1e-7)
    assert got.models["m"].r2.estimate == pytest.approx(r2, rel=1e-6)
    assert got.response.icc1 == pytest.approx(icc, rel=1e-7)
    assert got.response.r2 == pytest.approx(r2, rel=1e-6)


def test_the_fixture_of_four_unit_rows() -> None:
    """Published closed form: SS_T 2.2, SS_W .4, R2 .81818, F 9, W .10, W~ .20."""
    got = structured(np.array([[1, 0], [0.8, 0.6], [0, 1], [-0.6, 0.8]]), "AABB")
    m = got.models["m"]
    assert (m.ss_total, m.ss_within) == (pytest.approx(2.2), pytest.approx(0.4))
    assert round(m.r2.estimate, 5) == 0.81818
    assert m.pseudo_f == pytest.approx(9)
    assert [(r.w, r.w_tilde) for r in m.groups] == [(pytest.approx(0.1), pytest.approx(0.2))] * 2
    assert m.w_tilde_mean == pytest.approx(0.2)
    assert got.labellings == 6
    assert m.r2.undefined["interval"].code == "too_few_groups"


def test_no_rule_passes_on_rows_that_are_all_equal(
    store: Callable[..., DatasetRecord], ended: Callable[..., Job], services: Services
) -> None:
    """Published (FixMap#461): a gate on an undefined value is inconclusive, whichever way it asks."""
    dataset = store(np.ones((6, 3))).id
    body = {
        "kind": "group_structure",
        "inputs": {
            "models": [{"dataset": dataset, "name": "m"}],
            "groups": {"values": list("aaabbb")},
        },
    }
    report = report_of(services, ended(body))
    rules = [
        {"measure": f"s.models.m.{name}", side: bound}
        for name, low, high in (
            ("r2", 1e-9, 0.999),
            ("p", None, 0.999),
            ("p_f2", None, 0.999),
            ("pseudo_f", 1e-9, 1e9),
            ("icc1", -0.999, 0.999),
            ("dispersion.f", 1e-9, 1e9),
            ("dispersion.p", None, 0.999),
        )
        for side, bound in (("at_least", low), ("at_most", high))
        if bound is not None
    ]
    policy = read_policy(
        {
            "version": 1,
            "name": "collapse",
            "inputs": {"x": "vectors", "g": "column"},
            "checks": {
                "s": {
                    "kind": "group_structure",
                    "inputs": {"models": [{"name": "m", "vectors": "x"}], "groups": "g"},
                }
            },
            "rules": rules,
        }
    )
    verdict, results = judge(policy, {"s": report})
    assert verdict.value != "pass"
    assert {r.verdict.value for r in results} == {"inconclusive"}


# --- intervals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[4] * 6, [1, 2, 2, 5, 9, 3], [2] * 25])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_every_interval_is_that_of_refits_without_each_group(
    sizes: list[int],
    normalise: bool,
    level: float,
    t_interval: Callable[..., tuple[float, float]],
    unit_rows: Callable[[Array], Array],
) -> None:
    """Compared with refits by loops, scipy's t, for both models and their difference."""
    rng = np.random.default_rng(1)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = rng.normal(0.5, 1, size=(len(groups), 5)) + rng.normal(size=(len(sizes), 5))[groups]
    y = x + rng.normal(size=x.shape)
    params = {**FAST, "normalise": normalise, "level": level}
    got = structured({"one": x, "two": y}, groups.tolist(), params)
    u, v = (unit_rows(x), unit_rows(y)) if normalise else (x, y)
    pair = got.differences["two"]["one"]
    assert got.differences.keys() == {"two"}
    assert pair.scale_dependent == ["v", "w_bar"]
    everyone = np.ones(len(groups), dtype=bool)
    for name in PAIRED:
        readings = {
            "one": lambda kept, f=name: plain(u[kept], groups[kept])[f],
            "two": lambda kept, f=name: plain(v[kept], groups[kept])[f],
            "pair": lambda kept, f=name: (
                plain(v[kept], groups[kept])[f] - plain(u[kept], groups[kept])[f]
            ),
        }
        for which, statistic in readings.items():
            owner = pair if which == "pair" else got.models[which]
            estimate = getattr(owner, name)
            assert estimate.estimate == pytest.approx(statistic(everyone), rel=1e-9, abs=1e-12)
            expected = t_interval(statistic, groups, level)
            assert ends(estimate.interval) == pytest.approx(expected, rel=1e-8, abs=1e-10)
            assert estimate.interval.method == "jackknife_t"
            assert (estimate.interval.unit, estimate.interval.level) == ("group", level)
            assert estimate.interval.resamples == len(sizes)
        if name in TESTED:
            value, error = getattr(pair, name).estimate, error_of(getattr(pair, name))
            p = 2 * stats.t.sf(abs(value) / error, len(sizes) - 1)
            test = getattr(pair, f"{name}_test")
            assert test.p == pytest.approx(p, rel=1e-6)
            assert test.p_holm == pytest.approx(p, rel=1e-6)  # one pair


@pytest.mark.parametrize("by", ["rows", "units"])
def test_a_fixed_list_of_groups_leaves_out_rows_or_units(
    by: str, t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Compared with refits without each row or unit, groups of a single one among them."""
    rng = np.random.default_rng(2)
    groups = np.repeat([0, 1, 2, 3], [7, 5, 1, 4])
    units = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 6, 6, 6])
    order = rng.permutation(17)
    groups, units = groups[order], units[order]
    x = rng.normal(size=(17, 4)) + 2 * groups[:, None]
    columns = {"units": units.tolist()} if by == "units" else {}
    params = {**RAW, "resample": "units", "bootstrap": 100}
    got = structured(x, groups.tolist(), params, **columns).models["m"]
    left_out = units if by == "units" else np.arange(17)
    for name in PAIRED:
        estimate = getattr(got, name)
        expected = t_interval(lambda kept, f=name: plain(x[kept], groups[kept])[f], left_out)
        assert ends(estimate.interval) == pytest.approx(expected, rel=1e-8, abs=1e-10)
        assert estimate.interval.unit == ("unit" if by == "units" else "row")
    assert is_null(got.bca, "r2") == "not_resampled"


def test_bootstrap_intervals_are_scipys_on_the_same_resamples() -> None:
    """Compared with scipy.stats.bootstrap's BCa on statistics of rows copied from the same draws."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 6, size=22)
    groups = np.repeat(np.arange(22), sizes)
    x = rng.normal(size=(len(groups), 4)) + rng.normal(size=(22, 4))[groups]
    y = x + rng.normal(size=x.shape)
    params = {**RAW, "bootstrap": 150}
    got = structured({"one": x, "two": y}, groups.tolist(), params, seed=7, threads=2)
    drawn = np.empty((150, 22))
    draw_counts(stream_key(7, "bootstrap"), 0, drawn)
    copies = [np.repeat(np.arange(22), counts) for counts in drawn.astype(int)]

    def resampled(rows: Array, name: str) -> Array:
        found = []
        for chosen in copies:
            stacked = np.vstack([rows[groups == g] for g in chosen])
            found.append(plain(stacked, np.repeat(np.arange(22), sizes[chosen]))[name])
        return np.array(found)

    pair = got.differences["two"]["one"]
    for name in TESTED:
        boot = {"one": resampled(x, name), "two": resampled(y, name)}
        for which, rows in (("one", x), ("two", y)):

            def statistic(index: Array, rows: Array = rows, name: str = name) -> float:
                kept = np.isin(groups, index)
                return plain(rows[kept], groups[kept])[name]

            before = BootstrapResult(
                confidence_interval=None, bootstrap_distribution=boot[which], standard_error=0.0
            )
            expected = stats.bootstrap(
                (np.arange(22),), statistic, n_resamples=0, vectorized=False, method="BCa",
                bootstrap_result=before,
            ).confidence_interval  # fmt: skip
            interval = getattr(got.models[which].bca, name)
            assert ends(interval) == pytest.approx((expected.low, expected.high), rel=1e-7)
            assert (interval.method, interval.resamples) == ("bca", 150)
        single = getattr(pair, name)
        value, error = single.estimate, error_of(single)
        t = np.abs(boot["two"] - boot["one"] - value) / error
        half = max(np.quantile(t, 0.95), stats.t.ppf(0.975, 21)) * error
        found = getattr(pair, f"{name}_test").simultaneous
        wider = half - error * stats.t.ppf(0.975, 21)
        expected = (single.interval.low - wider, single.interval.high + wider)
        assert ends(found) == pytest.approx(expected, rel=1e-6)
        assert found.method == "max_t"


def test_three_models_share_their_error_rate() -> None:
    """Compared with Holm by hand, and one critical value over the three pairs."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(24), 3)
    x = rng.normal(size=(72, 4)) + rng.normal(size=(24, 4))[groups]
    models = {n: x + s * rng.normal(size=x.shape) for n, s in (("a", 0.1), ("b", 0.5), ("c", 1.5))}
    got = structured(models, groups.tolist(), {**FAST, "bootstrap": 300})
    pairs = [got.differences["b"]["a"], got.differences["c"]["a"], got.differences["c"]["b"]]
    assert {k: list(v) for k, v in got.differences.items()} == {"b": ["a"], "c": ["a", "b"]}
    for name in TESTED:
        tests = [getattr(pair, f"{name}_test") for pair in pairs]
        raw = sorted(test.p for test in tests)
        stepped = [3 * raw[0], max(3 * raw[0], 2 * raw[1]), max(3 * raw[0], 2 * raw[1], raw[2])]
        assert sorted(t.p_holm for t in tests) == pytest.approx([min(1, p) for p in stepped])
        estimates = [getattr(pair, name) for pair in pairs]
        critical = [
            half_width(e.estimate, t.simultaneous) / error_of(e)
            for t, e in zip(tests, estimates, strict=True)
        ]
        assert critical == pytest.approx([critical[0]] * 3, rel=1e-6)
        assert critical[0] > 1.9


@pytest.mark.parametrize("doubled", [[0], [0, 1], [0, 1, 2]])
def test_mostly_singletons_leave_an_icc_without_interval(doubled: list[int]) -> None:
    """Closed form: resamples and refits of single rows have no MS_W; R2 keeps its jackknife."""
    groups = [*range(25), *doubled]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(groups), 3))
    got = structured(
        {"a": x, "b": x + rng.normal(size=x.shape)}, groups, {**FAST, "bootstrap": 200}
    )
    m = got.models["a"]
    assert m.bca.icc1 is None
    assert m.r2.interval is not None
    assert (m.icc1.interval is None) == (len(doubled) == 1)
    json.loads(got.model_dump_json())


def test_a_census_has_no_intervals() -> None:
    """Compared with the definition: the rows are the whole population."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    groups, levels = np.repeat(np.arange(20), 3).tolist(), [0, 1, 2] * 20
    params = {**FAST, "census": True, "bootstrap": 100}
    got = structured(
        {"a": x, "b": x + 1}, groups, params, levels=levels, response=rng.normal(size=60).tolist()
    )
    m, pair = got.models["a"], got.differences["b"]["a"]
    for name in PAIRED:
        assert getattr(m, name).undefined["interval"].code == "census"
        assert getattr(pair, name).interval is None
    for name in TESTED:
        assert getattr(m.bca, name) is None
        test = getattr(pair, f"{name}_test")
        assert (test.p, test.p_holm, test.simultaneous) == (None, None, None)
    assert m.performance.spearman.interval is None
    assert all(step.step.interval is None for step in m.dose.levels)
    assert m.dose.monotone is None
    assert m.p.interval is not None  # the error of sampling arrangements, not rows


# --- optional columns ---------------------------------------------------------------------------


def test_spread_and_performance_of_groups_are_correlated() -> None:
    """Compared with scipy.stats.spearmanr, artanh by hand, and the planning formula."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(30), 4)
    x = rng.normal(size=(120, 6)) * rng.uniform(0.3, 2, size=30)[groups, None]
    right = (rng.random(120) < 0.7).tolist()
    got = structured(x, groups.tolist(), RAW, response=right)
    found = got.models["m"].performance
    w = [x[groups == g].var(axis=0, ddof=1).sum() for g in range(30)]
    mean = [np.mean(np.array(right)[groups == g]) for g in range(30)]
    rho = stats.spearmanr(w, mean).statistic
    assert found.spearman.estimate == pytest.approx(rho)
    half = stats.norm.ppf(0.975) / np.sqrt(27)
    expected = np.tanh([np.arctanh(rho) - half, np.arctanh(rho) + half])
    assert ends(found.spearman.interval) == pytest.approx(tuple(expected))
    assert found.groups == 30
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert found.groups_needed == int((z / np.arctanh(abs(rho))) ** 2 + 3.5)
    scalar = plain(np.array(right, float)[:, None], groups)
    assert got.response.r2 == pytest.approx(scalar["r2"])
    assert got.response.icc1 == pytest.approx(scalar["icc1"])


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, True, 4])
@pytest.mark.parametrize("n", [25, 33, 47])
def test_a_constant_response_explains_nothing(value: float, n: int) -> None:
    """Closed form: no spread, whatever the rounding of group means."""
    groups = [0] * 3 + [1] * 7 + [2] * 6 + [3] * 5 + [4] * (n - 21)
    x = np.random.default_rng(n).normal(size=(n, 3))
    got = structured(x, groups, response=[value] * n)
    assert got.models["m"].performance is None
    assert got.models["m"].undefined["performance"].code == "no_spread"
    assert got.response.r2 is None
    assert got.response.undefined["r2"].code == "zero_total"


def dosed(rng: np.random.Generator, cell: int, groups: int = 8) -> tuple[Array, Array, Array]:
    g = np.repeat(np.arange(groups), 3 * cell)
    level = np.tile(np.repeat([0, 1, 2], cell), groups)
    return rng.normal(size=(len(g), 5)) * (1 + 2 * level[:, None]), g, level


def test_a_dose_is_read_level_by_level() -> None:
    """Compared with loops over cells, scipy's Page test and Bonferroni t intervals."""
    x, g, level = dosed(np.random.default_rng(0), 4)
    names = np.array([0.5, 2, 10])
    got = structured(x, g.tolist(), RAW, levels=names[level].tolist()).models["m"].dose
    cells = np.array(
        [[x[(g == a) & (level == b)].var(axis=0, ddof=1).sum() for b in range(3)] for a in range(8)]
    )
    assert [row.level for row in got.levels] == [0.5, 2, 10]
    assert [row.w_tilde for row in got.levels] == pytest.approx(cells.mean(axis=0).tolist())
    assert [row.w_tilde_mean for row in got.levels] == pytest.approx(cells.mean(axis=0).tolist())
    assert [row.cells for row in got.levels] == [8, 8, 8]
    page = stats.page_trend_test(cells, method="asymptotic")
    assert got.ordered_trend.statistic == page.statistic
    assert got.ordered_trend.p == pytest.approx(page.pvalue)
    assert got.ordered_trend.blocks == 8
    assert got.levels[0].step.undefined["estimate"].code == "first_level"
    for j in (1, 2):
        apart = cells[:, j] - cells[:, j - 1]
        expected = stats.t.interval(0.975, 7, loc=apart.mean(), scale=stats.sem(apart))
        assert ends(got.levels[j].step.interval) == pytest.approx(expected)
    assert got.monotone is all(row.step.interval.low > 0 for row in got.levels[1:])
    assert got.monotone


def test_a_dose_that_falls_is_not_monotone() -> None:
    """Closed form: the same rows with the levels named the other way round."""
    x, g, level = dosed(np.random.default_rng(0), 4)
    got = structured(x, g.tolist(), RAW, levels=(-level).tolist()).models["m"].dose
    assert [row.level for row in got.levels] == [-2, -1, 0]
    assert got.monotone is False
    assert got.ordered_trend.p > 0.99


def test_cells_of_one_row_are_read_from_the_first_level() -> None:
    """Compared with squared distances to the row of level 0 by hand; there is no trend test."""
    x, g, level = dosed(np.random.default_rng(5), 1)
    got = structured(x, g.tolist(), RAW, levels=level.tolist()).models["m"].dose
    table = ((x.reshape(8, 3, 5) - x.reshape(8, 3, 5)[:, :1]) ** 2).sum(axis=2)
    assert [row.from_first for row in got.levels] == pytest.approx(table.mean(axis=0).tolist())
    assert all(row.undefined["w_tilde"].code == "one_row_cells" for row in got.levels)
    assert [row.step.estimate for row in got.levels[1:]] == pytest.approx(
        np.diff(table.mean(axis=0)).tolist()
    )
    assert got.ordered_trend is None
    assert got.undefined["ordered_trend"].code == "unequal_cells"


def test_words_are_levels_in_order_of_appearance_and_numbers_by_size() -> None:
    """Compared with the definition: 10 and "10" (a CSV cell) come after 9, words as they stand."""
    x, g, level = dosed(np.random.default_rng(5), 2)
    for names, order in (
        (["low", "high", "mid"], ["low", "high", "mid"]),
        ([9, 10, 2.5], [2.5, 9, 10]),
        (["9", "10", "2.5"], ["2.5", "9", "10"]),
        (["9", "10", "two"], ["9", "10", "two"]),
        ([True, False, 7], [False, True, 7]),
    ):
        levels = [names[k] for k in level]
        got = structured(x, g.tolist(), RAW, levels=levels).models["m"].dose
        assert [row.level for row in got.levels] == order
        w = {
            name: np.mean([x[(g == a) & (level == k)].var(axis=0, ddof=1).sum() for a in range(8)])
            for k, name in enumerate(names)
        }
        assert [row.w_tilde for row in got.levels] == pytest.approx([w[name] for name in order])


def test_true_one_and_the_word_one_are_three_groups() -> None:
    """Compared with the definition: labels keep their JSON type."""
    x = np.random.default_rng(0).normal(size=(9, 3))
    got = structured(x, [True, 1, "1"] * 3)
    assert got.groups == 3
    labels = [row.label for row in got.models["m"].groups]
    assert {(type(label), label) for label in labels} == {(bool, True), (int, 1), (str, "1")}


def test_zero_rows_are_rows_where_nothing_is_normalised() -> None:
    """scikit-bio on the same rows, and the definitions."""
    x = np.random.default_rng(5).normal(size=(30, 4)) + np.repeat(np.eye(4)[:3], 10, axis=0)
    x[[0, 1, 12]] = 0
    names = np.repeat(list("abc"), 10)
    m = structured(x, names, RAW).models["m"]
    theirs = permanova(
        DistanceMatrix(squareform(pdist(x)), [str(i) for i in range(30)]), names, permutations=0
    )
    assert m.pseudo_f == pytest.approx(theirs["test statistic"], rel=1e-10)
    means = np.array([x[names == name].mean(axis=0) for name in "abc"]).repeat(10, axis=0)
    total = np.square(x - x.mean(axis=0)).sum()
    assert m.r2.estimate == pytest.approx(1 - np.square(x - means).sum() / total)
    assert is_null(structured(0 * x, names, RAW).models["m"], "r2") == "zero_total"


# --- designs, refusals, determinism -------------------------------------------------------------


def test_units_move_together_and_count_once() -> None:
    """Closed form: four units of three rows, two a group, have 6 labellings; no p below 2/6."""
    x = np.random.default_rng(0).normal(size=(12, 3)) + np.repeat([0, 9], 6)[:, None]
    groups, units = np.repeat([0, 1], 6).tolist(), np.repeat([0, 1, 2, 3], 3).tolist()
    got = structured(x, groups, {**RAW, "dispersion_test": True}, units=units)
    m = got.models["m"]
    assert got.labellings == 6
    assert (m.p.exact, m.p.estimate, m.p.p_min) == (True, 2 / 6, 2 / 6)
    assert is_null(m.dispersion, "p") == "units_given"
    uneven = structured(x, groups, RAW, units=[0, 0, 0, 0, 1, 1, *units[6:]]).models["m"]
    assert is_null(uneven, "r2_expected") == "unequal_units"
    assert is_null(uneven, "r2_adjusted") == "unequal_units"


def test_a_large_design_does_not_count_its_labellings() -> None:
    """Closed form: 60!/(10!)^6 is beyond 10^15."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    got = structured(x, [i % 6 for i in range(60)])
    assert got.labellings is None
    assert got.undefined["labellings"].code == "too_many"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("params", [FAST, RAW])
def test_pairs_alone_have_no_f_of_dispersion(seed: int, params: dict[str, Any]) -> None:
    """Closed form: both rows of a pair lie equally far from their mean, so F has no denominator."""
    x = np.random.default_rng(seed).normal(size=(12, 5))
    got = structured(x, np.repeat(np.arange(6), 2).tolist(), params).models["m"].dispersion
    assert (got.f, got.p.estimate) == (None, None)
    assert got.f_spatial_median is None
    assert got.undefined["f"].code != "zero_within"  # rows of a pair do differ


def test_dispersion_without_another_labelling_is_null_and_the_rest_stays() -> None:
    """Closed form: the groups of five rows or more stand in strata of their own."""
    x = np.random.default_rng(0).normal(size=(16, 3))
    params = {**FAST, "dispersion_test": True}
    got = structured(x, "AAAAAABBBBBBCCDD", params, strata="1111112222223333").models["m"]
    assert got.dispersion.p.estimate is None
    assert got.dispersion.f is not None
    assert got.p.estimate is not None


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"strata": "111222"}, TooFewGroups),
        ({"strata": "123456"}, TooFewGroups),
        ({"units": "112233"}, InvalidRequest),
        ({"units": "111222"}, None),
        ({"strata": "112211", "units": "113344"}, InvalidRequest),
        ({"strata": "112122", "units": "112345"}, None),
        ({"response": "abcabc"}, InvalidRequest),
    ],
)
def test_designs_that_cannot_be_are_refused(
    columns: dict[str, str], error: type[AssayError] | None
) -> None:
    """Compared with the definition: one labelling, a unit in two groups or strata, words as numbers."""
    x = np.random.default_rng(0).normal(size=(6, 3))
    if error is None:
        assert structured(x, "aaabbb", **columns).labellings > 1
        return
    with pytest.raises(error) as caught:
        structured(x, "aaabbb", **columns)
    assert caught.value.detail


def test_columns_of_another_length_are_refused(ended: Callable[..., Job]) -> None:
    """Compared with the definition: columns are paired with rows."""
    inputs = {"models": [{"vectors": np.eye(6).tolist()}], "groups": {"values": list("aabb")}}
    with pytest.raises(InvalidRequest):
        ended({"kind": "group_structure", "inputs": inputs})


def test_the_answer_is_the_same_for_any_number_of_threads() -> None:
    """Compared byte by byte for one, two and three threads, everything switched on."""
    rng = np.random.default_rng(9)
    groups = np.repeat(np.arange(24), 6)
    x = rng.normal(size=(144, 19)) + rng.normal(size=(24, 19))[groups]
    columns = {
        "strata": (groups % 2).tolist(),
        "levels": [0, 1, 2] * 48,
        "response": rng.normal(size=144).tolist(),
    }
    models = {"one": x.astype(np.float32), "two": (x + rng.normal(size=x.shape)).astype(np.float16)}
    params = {"permutations": 199, "bootstrap": 300}

    def answer(threads: int, seed: int) -> str:
        got = structured(models, groups.tolist(), params, threads=threads, seed=seed, **columns)
        return str(got.model_dump_json())

    assert answer(1, 5) == answer(2, 5) == answer(3, 5)
    assert answer(2, 6) != answer(2, 5)


@given(st.permutations(range(18)), seeds)
def test_the_order_of_rows_moves_nothing_that_is_not_drawn(order: list[int], seed: int) -> None:
    """Compared with itself: estimates, exact p and dispersion F do not know the order of rows."""
    rng = np.random.default_rng(seed)
    x, groups = rng.normal(size=(18, 4)), np.repeat(np.arange(3), 6)
    one = structured(x, groups.tolist()).models["m"]
    other = structured(x[order], groups[order].tolist()).models["m"]
    for name in ("r2", "icc1", "v", "w_bar"):
        ours, theirs = getattr(one, name).estimate, getattr(other, name).estimate
        assert theirs == pytest.approx(ours, rel=1e-9, abs=1e-12)
    for name in ("pseudo_f", "pseudo_f2", "r2_expected", "w_tilde_mean"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-9)
    assert other.dispersion.f == pytest.approx(one.dispersion.f, rel=1e-7, abs=1e-10)


def test_a_hundred_thousand_pairs_are_quick_and_small() -> None:
    """Measured: 10^5 groups of two rows in 8 dimensions, seconds and a few copies of the rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200_000, 8)).astype(np.float32)
    groups = np.repeat(np.arange(100_000), 2)
    structured(x[:400], groups[:400].tolist(), {"permutations": 19, "bootstrap": 20})  # compile
    labels = groups.tolist()
    tracemalloc.start()
    started = time.perf_counter()
    got = structured(x, labels, {"permutations": 19, "bootstrap": 64}, threads=2)
    elapsed = time.perf_counter() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    m = got.models["m"]
    assert (got.n, got.groups, len(m.groups)) == (200_000, 100_000, 200)
    assert m.r2.estimate == pytest.approx(0.5, abs=0.01)
    assert m.icc1.estimate == pytest.approx(0, abs=0.01)
    assert m.dispersion.p.estimate is None
    assert m.bca.r2 is not None
    assert elapsed < 30
    assert peak < 512e6


@pytest.mark.parametrize("dtype", [np.float16, np.int8, ">f4"])
def test_stored_types_are_read_as_numbers(dtype: Any) -> None:
    """Compared with the same numbers in float64."""
    x = np.random.default_rng(0).integers(-9, 9, size=(20, 6))
    groups = [i % 4 for i in range(20)]
    same = structured(x.astype(dtype), groups, RAW).models["m"]
    wide = structured(x.astype(np.float64), groups, RAW).models["m"]
    assert same.model_dump_json() == wide.model_dump_json()


def test_rows_whose_squares_overflow_are_refused_as_given_and_fine_as_directions() -> None:
    """Compared with the same rows at an ordinary length."""
    x = np.random.default_rng(0).normal(size=(12, 3))
    groups = [i % 3 for i in range(12)]
    with pytest.raises(InvalidRequest):
        structured(x * 1e200, groups, RAW)
    far = structured(x * 1e200, groups).models["m"].r2.estimate
    assert far == pytest.approx(structured(x, groups).models["m"].r2.estimate, rel=1e-12)
