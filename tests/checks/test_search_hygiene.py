"""Search hygiene against whole matrices, scipy's statistics, planted faults and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from service.checks.search_hygiene import search_hygiene
from service.dataset import Dataset
from service.errors import TooFewRows
from service.numerics import sphere

Array = NDArray[Any]
MAD = 1 / stats.norm.ppf(0.75)


def unit(x: Array) -> Array:
    x = np.asarray(x, dtype=np.float64)
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def best(scores: Array, k: int) -> Array:
    """The k best of each row, itself left out, ties by ascending row."""
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def parts_of(lists: Array) -> list[list[int]]:
    """Components of rows that list each other, by walking from row to row, largest first."""
    n = len(lists)
    mutual = [[j for j in lists[i] if i in lists[j]] for i in range(n)]
    left, parts = set(range(n)), []
    while left:
        waiting, part = [min(left)], set()
        while waiting:
            row = waiting.pop()
            if row not in part:
                part.add(row)
                waiting += mutual[row]
        left -= part
        parts.append(sorted(part))
    return sorted(parts, key=len, reverse=True)


def by_hand(x: Array, k: int, cosine: float, deviations: float, island: int) -> dict[str, Any]:
    """Every number of a check from whole matrices, as its definition says."""
    n, z, x = len(x), unit(x), np.asarray(x, dtype=np.float64)
    cosines = z @ z.T
    lists = best(cosines, k)
    close = np.take_along_axis(cosines, lists, axis=1).mean(axis=1)
    lists_of = np.array([(lists == row).sum() for row in range(n)])
    below = np.median(close) - deviations * MAD * stats.median_abs_deviation(close)
    parts = parts_of(lists)
    islands = [part for part in parts[1:] if len(part) <= island]
    apart = cdist(z, z)
    off = ~np.eye(n, dtype=bool)
    others = {"dot": best(x @ x.T, k), "l2": best(-cdist(x, x), k)}
    near = np.sort(apart + np.diag(np.full(n, np.inf)), axis=1)
    return {
        "skewness": stats.skew(lists_of),
        "top_share": np.sort(lists_of)[-max(1, round(n / 100)) :].sum() / (n * k),
        "hub": lists_of.max(),
        "antihubs": (lists_of == 0).mean(),
        "near_rows": ((cosines >= cosine) & off).any(axis=1).sum(),
        "near_pairs": len(
            {frozenset((i, j)) for i in range(n) for j in lists[i] if cosines[i, j] >= cosine}
        ),
        "outliers": [row for row in np.argsort(close).tolist() if close[row] < below],
        "median": np.median(close),
        "on_islands": sum(map(len, islands)),
        "islands": [part for part in islands if len(part) > 1],
        "alone": sum(len(part) == 1 for part in parts),
        "largest": len(parts[0]) / n,
        **{
            metric: [len(set(a) & set(b)) / k for a, b in zip(lists, other, strict=True)]
            for metric, other in others.items()
        },
        "contrast": apart[off].mean() / near[:, 0].mean(),
        "dimension": (n - 1) / np.log(near[:, 1] / near[:, 0]).sum(),
        "uniformity": np.log(np.exp(-2 * apart[off] ** 2).mean()),
    }  # fmt: skip


def assert_is(got: Any, expected: dict[str, Any]) -> None:
    k = got.k
    assert got.hubness.skewness == pytest.approx(expected["skewness"], rel=1e-9, abs=1e-12)
    assert got.hubness.top_share == pytest.approx(expected["top_share"], rel=1e-12)
    assert got.hubness.hubs[0].lists == expected["hub"]
    assert got.antihubs.share == pytest.approx(expected["antihubs"])
    assert got.near_duplicates.rows == expected["near_rows"]
    assert got.near_duplicates.pairs == expected["near_pairs"]
    assert got.outliers.rows == len(expected["outliers"])
    assert [int(row.id) for row in got.outliers.listed] == expected["outliers"]
    assert got.outliers.median == pytest.approx(expected["median"], rel=1e-12)
    assert got.islands.rows == expected["on_islands"]
    assert got.islands.islands == len(expected["islands"])
    assert got.islands.alone == expected["alone"]
    assert got.islands.largest_share == pytest.approx(expected["largest"])
    shown = [([int(i) for i in part.ids], part.rows) for part in got.islands.listed]
    assert sorted(shown) == sorted((part[:10], len(part)) for part in expected["islands"])
    mismatch = got.metric_mismatch
    assert mismatch.dot[k].estimate == pytest.approx(np.mean(expected["dot"]), rel=1e-12)
    assert mismatch.l2[k].estimate == pytest.approx(np.mean(expected["l2"]), rel=1e-12)
    assert got.relative_contrast == pytest.approx(expected["contrast"], rel=1e-7)
    dimension = got.intrinsic_dimension.two_nn.estimate
    assert dimension == pytest.approx(expected["dimension"], rel=1e-7)
    assert got.uniformity.estimate == pytest.approx(expected["uniformity"], rel=1e-10)


@given(
    n=st.integers(12, 60),
    d=st.integers(2, 8),
    k=st.integers(2, 6),
    clusters=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_every_number_is_that_of_the_whole_matrix(
    run: Callable[..., Any], n: int, d: int, k: int, clusters: int, seed: int
) -> None:
    """Compared with numpy, scipy and walks by hand, for clusters of rows of any length."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clusters, d))[rng.integers(0, clusters, n)] * 2 + rng.normal(size=(n, d))
    x *= np.exp(rng.normal(0, 0.5, size=(n, 1)))
    params = {"k": k, "near_duplicate": 0.95, "outlier_deviations": 3, "island_size": 5}
    got, _ = run(search_hygiene, vectors=x, params={**params, "listed": 60}, threads=2)
    expected = by_hand(x, k, 0.95, 3, 5)
    assert_is(got, expected)
    assert (got.n, got.of, got.d, got.tied_at_cutoff, got.unresolved) == (n, n, d, 0, 0)


@pytest.mark.parametrize("name", ["clinc150/e5small_q4", "debian_pairs/minilm_query"])
def test_every_number_of_real_embeddings_is_that_of_the_whole_matrix(
    name: str, rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Compared with numpy, scipy and walks by hand on the first 600 rows."""
    x = np.asarray(rows(name)[:600])
    got, _ = run(search_hygiene, vectors=x, params={"listed": 1000}, threads=2)
    expected = by_hand(x, 10, 0.99, 3.5, 10)
    expected["outliers"] = (
        expected["outliers"][:20] if got.outliers.rows > 20 else expected["outliers"]
    )
    if got.intrinsic_dimension.duplicates:
        expected["dimension"] = got.intrinsic_dimension.two_nn.estimate  # covered in test_spacing
    assert_is(got, expected)


def test_random_directions_look_like_random_directions(run: Callable[..., Any]) -> None:
    """Compared with the values beside them: an independent draw of one shape."""
    x = np.random.default_rng(1).normal(size=(800, 24))
    got, context = run(search_hygiene, vectors=x, threads=2)
    assert got.hubness.skewness == pytest.approx(got.hubness.skewness_random, abs=0.35)
    assert got.hubness.top_share == pytest.approx(got.hubness.top_share_random, rel=0.25)
    assert got.antihubs.share == pytest.approx(got.antihubs.share_random, abs=0.02)
    assert got.near_duplicates.rows_random < 1e-9
    assert got.islands.largest_share == pytest.approx(got.islands.largest_share_random, abs=0.05)
    assert got.relative_contrast == pytest.approx(got.relative_contrast_random, rel=0.01)
    dimension = got.intrinsic_dimension
    assert dimension.two_nn_random == pytest.approx(dimension.two_nn.estimate, rel=0.15)
    assert got.uniformity.estimate == pytest.approx(got.uniformity_random, abs=0.02)
    mismatch = got.metric_mismatch
    assert mismatch.dot_random == pytest.approx(mismatch.dot[10].estimate, abs=0.05)
    assert mismatch.l2_random == pytest.approx(mismatch.l2[10].estimate, abs=0.05)
    assert {warned.code for warned in context.warnings} == {"metrics_disagree"}


def test_values_beside_are_those_of_the_drawn_directions(run: Callable[..., Any]) -> None:
    """Compared with whole matrices of the same draw, at the lengths of the rows."""
    rng = np.random.default_rng(2)
    x = rng.normal(1, 1, size=(120, 6)) * np.exp(rng.normal(0, 0.3, size=(120, 1)))
    got, _ = run(search_hygiene, vectors=x, seed=9, params={"k": 5, "outlier_deviations": 2.5})
    drawn = unit(sphere.uniform_directions(120, 6, 9, "search_hygiene directions"))
    expected = by_hand(drawn * np.linalg.norm(x, axis=1, keepdims=True), 5, 0.99, 2.5, 10)
    assert got.hubness.skewness_random == pytest.approx(expected["skewness"])
    assert got.hubness.top_share_random == pytest.approx(expected["top_share"])
    assert got.antihubs.share_random == pytest.approx(expected["antihubs"])
    assert got.outliers.rows_random == len(expected["outliers"])
    assert got.islands.rows_random == expected["on_islands"]
    assert got.islands.largest_share_random == pytest.approx(expected["largest"])
    assert got.metric_mismatch.dot_random == pytest.approx(np.mean(expected["dot"]))
    assert got.metric_mismatch.l2_random == pytest.approx(np.mean(expected["l2"]))
    assert got.intrinsic_dimension.two_nn_random == pytest.approx(expected["dimension"], rel=1e-6)


def planted(d: int = 40) -> Array:
    """500 rows around a centre in 40 dimensions, of length one."""
    return unit(np.random.default_rng(3).normal(size=(500, d)) + 2)


def test_a_planted_hub_is_found(run: Callable[..., Any]) -> None:
    """Closed form: in 200 dimensions the mean direction is nearest to every row."""
    x = planted(200)
    x = np.vstack([x, x.mean(axis=0) / np.linalg.norm(x.mean(axis=0))])
    got, context = run(search_hygiene, vectors=x, threads=2)
    assert (got.hubness.hubs[0].id, got.hubness.hubs[0].lists) == ("500", 500)
    warned = {w.code: w for w in context.warnings}
    assert "hubs" in warned
    assert warned["hubs"].where == "results/hubness"
    assert f"{got.hubness.top_share:.3f}" in warned["hubs"].message


def test_a_planted_outlier_is_found_and_named(run: Callable[..., Any]) -> None:
    """Closed form: a row opposite to all others, by the id it was sent with."""
    x = planted()
    x[77] = -x.mean(axis=0)
    ids = tuple(f"doc-{i}" for i in range(500))
    got, context = run(search_hygiene, vectors=Dataset(x, ids), threads=2)
    assert [row.id for row in got.outliers.listed] == ["doc-77"]
    assert got.outliers.rows == 1
    assert got.outliers.listed[0].similarity < got.outliers.below < got.outliers.median
    assert "doc-77" in next(w.message for w in context.warnings if w.code == "outliers")
    got, context = run(search_hygiene, vectors=x, params={"listed": 0})
    assert got.outliers.rows == 1
    assert got.outliers.listed == got.islands.listed == got.hubness.hubs == []
    assert "outliers" in {w.code for w in context.warnings}


def test_a_planted_island_is_found(run: Callable[..., Any]) -> None:
    """Closed form: seven rows around a direction of their own list one another only with k = 6."""
    rng = np.random.default_rng(4)
    x = planted()
    x[100:107] = np.where(np.arange(40) % 2, 1, -1) + 0.2 * rng.normal(size=(7, 40))
    got, _ = run(search_hygiene, vectors=x, params={"k": 6}, threads=2)
    assert [str(i) for i in range(100, 107)] in [part.ids for part in got.islands.listed]
    assert 7 in [part.rows for part in got.islands.listed]
    fewer, _ = run(search_hygiene, vectors=x, params={"k": 6, "island_size": 6}, threads=2)
    assert fewer.islands.rows == got.islands.rows - 7


def test_planted_duplicates_are_counted_and_left_out_of_the_dimension(
    run: Callable[..., Any],
) -> None:
    """Closed form: ten pairs of one direction at different lengths, and a triple."""
    x = planted()
    x[100:110] = x[:10] * np.arange(2, 12)[:, None]
    x[110:112] = x[20]
    got, context = run(search_hygiene, vectors=x, threads=2)
    expected, _ = run(search_hygiene, vectors=np.delete(x, slice(100, 112), axis=0), threads=2)
    assert got.near_duplicates.rows == 23
    assert got.near_duplicates.pairs == 13
    assert got.intrinsic_dimension.duplicates == 12
    assert got.intrinsic_dimension.two_nn.estimate == pytest.approx(
        expected.intrinsic_dimension.two_nn.estimate, rel=1e-9
    )
    assert "near_duplicates" in {w.code for w in context.warnings}
    same, _ = run(search_hygiene, vectors=x, params={"near_duplicate": 1.0}, threads=2)
    assert same.near_duplicates.rows == 23


def test_lengths_make_metrics_disagree(run: Callable[..., Any]) -> None:
    """Closed form: ten rows of length 1000 head every list by product, as far as they point one way."""
    rng = np.random.default_rng(5)
    x = unit(rng.normal(size=(200, 12)) + 3)
    x[:10] *= 1000
    got, context = run(search_hygiene, vectors=x, threads=2)
    lists = KDTree(unit(x)).query(unit(x), 11)[1][:, 1:]
    expected = np.mean([np.mean(row < 10) for row in lists[10:]]) * 190 / 200
    others = [len(set(lists[i]) & ({*range(10)} - {i})) / 10 for i in range(10)]
    assert got.metric_mismatch.dot[10].estimate == pytest.approx(
        expected + np.mean(others) * 10 / 200, abs=0.006
    )
    assert "metrics_disagree" in {w.code for w in context.warnings}


def test_unit_rows_have_one_order_by_every_metric_and_ties_count_as_shared(
    run: Callable[..., Any],
) -> None:
    """Closed form: cosine, product and distance rank unit rows alike, repeated ones included."""
    x = unit(np.random.default_rng(6).normal(size=(40, 5)))
    x = np.vstack([x, x[:20], x[:10]])
    got, _ = run(search_hygiene, vectors=x, params={"k": 2})
    mismatch = got.metric_mismatch
    assert mismatch.dot[2].estimate == mismatch.l2[2].estimate == 1
    assert mismatch.dot[2].interval.low == pytest.approx(0.025 ** (1 / 70))


def test_lengths_beyond_float64_squares_leave_metrics_undefined(run: Callable[..., Any]) -> None:
    """Closed form: lengths 1e-200 and 1e200 have no products."""
    x = np.random.default_rng(7).normal(size=(30, 4))
    x[0] *= 1e-200
    x[1] *= 1e200
    got, _ = run(search_hygiene, vectors=x, params={"k": 3})
    assert got.metric_mismatch.dot[3].undefined["estimate"].code == "out_of_range"
    assert got.metric_mismatch.undefined["l2_random"].code == "out_of_range"
    x[0], x[1] = x[0] * 1e200, x[1] * 1e-200
    plain, _ = run(search_hygiene, vectors=unit(x), params={"k": 3})
    assert got.hubness == plain.hubness
    assert got.uniformity.estimate == pytest.approx(plain.uniformity.estimate, rel=1e-12)


def test_intervals_are_refits_without_each_row(
    run: Callable[..., Any], t_interval: Callable[..., tuple[float, float]]
) -> None:
    """Compared with explicit refits of the row values and scipy's t and beta quantiles."""
    rng = np.random.default_rng(8)
    x = rng.normal(1, 1, size=(60, 4)) * np.exp(rng.normal(0, 0.4, size=(60, 1)))
    got, _ = run(search_hygiene, vectors=x, params={"k": 4})
    n, apart = 60, cdist(unit(x), unit(x))
    expected = by_hand(x, 4, 0.99, 6, 10)
    near = np.sort(apart, axis=1)
    logs = np.log(near[:, 2] / near[:, 1])

    def dimension(kept: Array) -> float:
        return float((kept.sum() - 1) / logs[kept].sum())

    def uniformity(kept: Array) -> float:
        inside = apart[np.ix_(kept, kept)]
        return float(np.log(np.exp(-2 * inside[~np.eye(len(inside), dtype=bool)] ** 2).mean()))

    for estimate, statistic in (
        (got.intrinsic_dimension.two_nn, dimension),
        (got.uniformity, uniformity),
    ):
        low, high = t_interval(statistic, np.arange(n))
        assert (estimate.interval.low, estimate.interval.high) == pytest.approx((low, high))
        assert estimate.interval.unit == "row"
    shares = np.array(expected["dot"])
    low, high = t_interval(lambda kept: float(shares[kept].mean()), np.arange(n))
    total = shares.sum()
    interval = got.metric_mismatch.dot[4].interval
    assert interval.low == pytest.approx(min(low, stats.beta.ppf(0.025, total, n - total + 1)))
    assert interval.high == pytest.approx(max(high, stats.beta.ppf(0.975, total + 1, n - total)))


def test_of_many_rows_a_random_sample_is_searched(run: Callable[..., Any]) -> None:
    """Compared with the check on the named rows: a sample in order, another for another seed."""
    x = planted()
    ids = tuple(f"row{i}" for i in range(500))
    got, _ = run(search_hygiene, vectors=Dataset(x, ids), params={"rows": 60, "listed": 60}, seed=2)
    assert (got.n, got.of) == (60, 500)
    chosen = sorted(int(hub.id[3:]) for hub in got.hubness.hubs)
    assert len(set(chosen)) == 60
    again, _ = run(search_hygiene, vectors=x[chosen], params={"listed": 60}, seed=2)
    assert again.hubness.skewness == got.hubness.skewness
    assert again.islands.rows == got.islands.rows
    assert again.uniformity == got.uniformity
    other, _ = run(search_hygiene, vectors=x, params={"rows": 60, "listed": 60}, seed=3)
    assert sorted(int(hub.id) for hub in other.hubness.hubs) != chosen
    whole, _ = run(search_hygiene, vectors=x, params={"rows": 500})
    assert (whole.n, whole.of) == (500, 500)


def test_equal_rows_leave_what_needs_spread_undefined(run: Callable[..., Any]) -> None:
    """Closed form: one direction has no contrast, no dimension and no outliers; uniformity is 0."""
    got, _ = run(search_hygiene, vectors=np.full((20, 3), 0.1), params={"k": 3})
    assert got.undefined["relative_contrast"].code == "zero_distance"
    assert got.intrinsic_dimension.two_nn.undefined["estimate"].code == "too_few_rows"
    assert got.intrinsic_dimension.duplicates == 19
    assert got.outliers.undefined["rows"].code == "no_spread"
    assert got.uniformity.estimate == 0
    assert got.near_duplicates.rows == 20
    assert got.tied_at_cutoff == 20
    assert got.metric_mismatch.dot[3].estimate == got.metric_mismatch.l2[3].estimate == 1
    assert all(line.endswith(".") for line in got.readings())


def test_a_basis_lists_all_alike(run: Callable[..., Any]) -> None:
    """Closed form: all rows equally far: contrast 1, no dimension; the lowest rows are in all lists."""
    got, _ = run(search_hygiene, vectors=np.eye(12), params={"k": 3})
    assert got.relative_contrast == pytest.approx(1)
    assert got.intrinsic_dimension.two_nn.undefined["estimate"].code == "no_spread"
    assert [hub.lists for hub in got.hubness.hubs[:4]] == [11, 11, 11, 3]
    assert got.antihubs.share == pytest.approx(8 / 12)
    assert got.tied_at_cutoff == 12
    assert got.uniformity.estimate == pytest.approx(-4)


def test_lists_need_more_rows_than_places(run: Callable[..., Any]) -> None:
    """Closed form: ten neighbours need eleven rows, of the data and of the sample."""
    with pytest.raises(TooFewRows):
        run(search_hygiene, vectors=np.eye(10))
    with pytest.raises(ValidationError, match="must be more than `k`, which is 20"):
        search_hygiene.params(k=20, rows=20)
    assert search_hygiene.params(k=20, rows=21).names() == {"k": ["20"]}


def test_readings_say_the_numbers_they_are_about(
    rows: Callable[[str], Array], run: Callable[..., Any]
) -> None:
    """Compared with the results in print."""
    got, _ = run(search_hygiene, vectors=rows("debian_pairs/e5small_q4_doc"), threads=2)
    text = " ".join(got.readings())
    for value in (got.hubness.top_share, got.hubness.top_share_random, got.antihubs.share):
        assert f"{value:.4f}" in text
    assert f"{got.near_duplicates.rows} rows have a near duplicate" in text
    assert f"{got.relative_contrast:.3f} times" in text
    assert f"{got.uniformity_random:.4f}" in text
    assert f"{got.intrinsic_dimension.two_nn.estimate:.1f} [" in text
