"""Search hygiene: will nearest-neighbour search behave on these rows?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.check import Context, Estimate, Undefined, check, estimate_of
from service.checks.search_hygiene.declared import (
    Antihubs,
    Hub,
    Hubness,
    IntrinsicDimension,
    Island,
    Islands,
    MetricMismatch,
    NearDuplicates,
    Outlier,
    Outliers,
    SearchHygiene,
    SearchHygieneInputs,
    SearchHygieneParams,
)
from service.checks.search_hygiene.metrics import Overlap, overlaps, raw_rows
from service.checks.search_hygiene.shape import Shape, near_duplicates
from service.numerics import sphere
from service.numerics.coded import as_given
from service.numerics.graph import Graph, nearest_graph
from service.numerics.permutation import shuffled, stream
from service.numerics.rows import Directions, Floats, Rows, norms
from service.numerics.spacing import (
    SAME,
    Spacing,
    neighbour_distances,
    spacing,
    spread,
)

Name = Callable[[int], str]
NOTABLE = 0.01
AGREEING = 0.95
NO_SPREAD = Undefined(code="no_spread", message="Every row has the same value: nothing is unusual.")
OUT_OF_RANGE = Undefined(
    code="out_of_range", message="Lengths differ too much for products in float64."
)
ONE_DIRECTION = Undefined(
    code="zero_distance", message="Every row repeats the direction of another one."
)


@dataclass(frozen=True)
class Searched:
    """
    What searches among rows found, data or random directions.

    Attributes
    ----------
    graph : Graph by cosine
    shape : Shape of it
    nearest : float
        Mean distance of a unit row to the nearest.
    spacing : Spacing
    overlaps : with neighbours by inner product and by distance; None beyond float64
    lengths : (n,) up to a common factor, None beyond float64
    """

    graph: Graph
    shape: Shape
    nearest: float
    spacing: Spacing
    overlaps: tuple[Overlap, Overlap] | None
    lengths: Floats | None


def _searched(
    context: Context, rows: Rows, raw: Floats | None, k: int, prefix: str = ""
) -> Searched:
    """Search rows by cosine, and `raw` ones by the other metrics."""
    threads = context.threads
    with context.stage(f"{prefix}neighbours") as step:
        graph = nearest_graph(as_given(rows, cosine=True, threads=threads), k, threads, step)
        distances = neighbour_distances(Directions(rows), graph.ids, threads)
    with context.stage(f"{prefix}spacing") as step:
        spaced = spacing(rows, graph.ids, distances, threads, step)
    with context.stage(f"{prefix}metrics") as step:
        found = None if raw is None else overlaps(graph, raw, threads, step)
    return Searched(
        graph=graph,
        shape=Shape.of(graph),
        nearest=float(distances.min(axis=1).mean()),
        spacing=spaced,
        overlaps=found,
        lengths=None if raw is None else norms(raw),
    )


def _sample(n: int, most: int, seed: int) -> NDArray[np.int64]:
    """Rows to search, in their order: all, or a random sample."""
    if n <= most:
        return np.arange(n)
    return np.sort(shuffled(stream(seed, "search_hygiene rows", 0), n)[:most])


def _hubness(shape: Shape, random: Shape, listed: int, name: Name) -> Hubness:
    order = np.argsort(-shape.lists, kind="stable")[:listed]
    equal = Undefined(code="no_spread", message="Every row stands in as many lists.")
    return Hubness.build(  # type: ignore[no-any-return]
        skewness=equal if shape.skewness is None else shape.skewness,
        skewness_random=equal if random.skewness is None else random.skewness,
        top_share=shape.top_share,
        top_share_random=random.top_share,
        hubs=[Hub(id=name(row), lists=int(shape.lists[row])) for row in order],
    )


def _outliers(shape: Shape, random: Shape, params: SearchHygieneParams, name: Name) -> Outliers:
    found = shape.outliers(params.outlier_deviations)
    found_random = random.outliers(params.outlier_deviations)
    below = shape.below(params.outlier_deviations)
    return Outliers.build(  # type: ignore[no-any-return]
        rows=NO_SPREAD if found is None else len(found),
        rows_random=NO_SPREAD if found_random is None else len(found_random),
        median=shape.median,
        below=NO_SPREAD if below is None else below,
        listed=[
            Outlier(id=name(row), similarity=float(shape.closeness[row]))
            for row in ([] if found is None else found[: params.listed])
        ],
    )


def _islands(shape: Shape, random: Shape, params: SearchHygieneParams, name: Name) -> Islands:
    several = [c for c in shape.islands(params.island_size) if shape.sizes[c] > 1]
    return Islands(
        rows=shape.on_islands(params.island_size),
        rows_random=random.on_islands(params.island_size),
        islands=len(several),
        alone=shape.alone,
        largest_share=shape.largest,
        largest_share_random=random.largest,
        listed=[
            Island(
                rows=int(shape.sizes[c]),
                ids=[name(row) for row in np.flatnonzero(shape.component == c)[:10]],
            )
            for c in several[: params.listed]
        ],
    )


def _mismatch(
    found: tuple[Overlap, Overlap] | None,
    random: tuple[Overlap, Overlap] | None,
    params: SearchHygieneParams,
) -> MetricMismatch:
    values: dict[str, object] = {}
    for i, metric in enumerate(("dot", "l2")):
        if found is None or random is None:
            values |= {
                metric: {params.k: estimate_of(OUT_OF_RANGE, np.empty(0), params, "row")},
                f"{metric}_random": OUT_OF_RANGE,
                f"{metric}_unresolved": OUT_OF_RANGE,
            }
            continue
        shares = found[i].counts / params.k
        mean = float(shares.mean())
        deleted = (shares.sum() - shares) / (len(shares) - 1)
        values |= {
            metric: {params.k: estimate_of(mean, deleted, params, "row", share=mean)},
            f"{metric}_random": float(random[i].counts.mean()) / params.k,
            f"{metric}_unresolved": found[i].unresolved,
        }
    return MetricMismatch.build(**values)  # type: ignore[no-any-return]


def _contrast(mean: float, nearest: float) -> float | Undefined:
    return ONE_DIRECTION if nearest <= SAME else mean / nearest


def _dimension(found: Spacing, random: Spacing, params: SearchHygieneParams) -> IntrinsicDimension:
    other = random.dimension
    return IntrinsicDimension.build(  # type: ignore[no-any-return]
        two_nn=estimate_of(
            _undefined_dimension(found) if found.dimension is None else found.dimension,
            found.without_each,
            params,
            "row",
        ),
        two_nn_random=_undefined_dimension(random) if other is None else other,
        duplicates=found.duplicates,
    )


def _undefined_dimension(found: Spacing) -> Undefined:
    if len(found.log_ratios) < 3:
        return Undefined(code="too_few_rows", message="There are fewer than three directions.")
    return Undefined(code="no_spread", message="The two nearest rows are equally far everywhere.")


def _uniformity(potentials: Floats, params: SearchHygieneParams) -> Estimate:
    n, total = len(potentials), potentials.sum()
    deleted = np.log((total - 2 * potentials) / ((n - 1) * (n - 2)))
    return estimate_of(float(np.log(total / (n * (n - 1)))), deleted, params, "row")


def _warn(context: Context, results: SearchHygiene) -> None:
    hubness, antihubs, mismatch = results.hubness, results.antihubs, results.metric_mismatch
    if hubness.top_share > 2 * hubness.top_share_random:
        context.warn(
            "hubs",
            f"The most listed 1 % of rows hold a share of {hubness.top_share:.3f} of all places, "
            f"random ones {hubness.top_share_random:.3f}: look at `hubs`, and try centred rows.",
            "results/hubness",
        )
    if antihubs.share > 2 * antihubs.share_random and antihubs.share > NOTABLE:
        context.warn(
            "antihubs",
            f"A share of {antihubs.share:.3f} of the rows is in no list: search cannot find them.",
            "results/antihubs",
        )
    duplicates = results.near_duplicates
    if duplicates.rows > max(NOTABLE * results.n, duplicates.rows_random):
        context.warn(
            "near_duplicates",
            f"{duplicates.rows} of {results.n} rows have a near duplicate, which fill one another's "
            "lists.",
            "results/near_duplicates",
        )
    outliers = results.outliers
    if outliers.rows is not None and outliers.rows > (outliers.rows_random or 0):
        context.warn(
            "outliers",
            f"{outliers.rows} rows are far from their neighbours, first {outliers.listed[0].id}."
            if outliers.listed
            else f"{outliers.rows} rows are far from their neighbours.",
            "results/outliers",
        )
    shares = [mismatch.dot[results.k].estimate, mismatch.l2[results.k].estimate]
    if any(share is not None and share < AGREEING for share in shares):
        context.warn(
            "metrics_disagree",
            f"Of the neighbours by cosine a share of {mismatch.dot[results.k]:.3f} is found by inner "
            f"product and {mismatch.l2[results.k]:.3f} by Euclidean distance: build the index for the "
            "metric that is meant, or store rows of length one.",
            "results/metric_mismatch",
        )


@check(
    version=2,
    title="Will nearest-neighbour search behave?",
    question="Will nearest-neighbour search behave: hubs, rows no search finds, near "
    "duplicates, islands, metrics that disagree?",
    scope=(
        "Random directions show what n, d and k alone would give; data with groups departs from them "
        "without anything being wrong.",
        "Values without an interval describe the rows searched; of a sample, they move with it: "
        "near duplicates and the two nearest rows are rarer in fewer rows.",
        "Intervals leave out rows, not what rows may come from, and keep the rows that are searched.",
        "Nothing here says whether the nearest rows are the right ones.",
    ),
    warnings={
        "hubs": "The most listed rows hold far more places than of random rows.",
        "antihubs": "Far more rows are in no list than of random rows.",
        "near_duplicates": "Rows have a near duplicate.",
        "outliers": "Rows are far from their neighbours.",
        "metrics_disagree": "Inner product or distance find other neighbours than cosine.",
    },
    sources=(
        "doi:10.1145/1553374.1553485",
        "doi:10.1016/S0167-7152(96)00213-1",
        "doi:10.1016/j.jesp.2013.03.013",
        "arXiv:1206.6411",
        "doi:10.1038/s41598-017-11873-y",
        "arXiv:2005.10242",
        "doi:10.3923/ajms.2011.66.70",
    ),
    memory_factor=20.0,
)
def search_hygiene(
    context: Context, inputs: SearchHygieneInputs, params: SearchHygieneParams
) -> SearchHygiene:
    """
    Hubs, rows no search finds, near duplicates, outliers, islands, metrics that disagree, contrast.

    Each stands beside its value for random directions of the same number, dimensions and k: in closed
    form where there is one, else from one seeded draw that is searched in the same way. Six exact
    searches of at most `rows` rows, and one pass over their pairs: O(rows^2 d); memory six times the
    rows searched as float64.
    """
    given, k = inputs.vectors, params.k
    chosen = _sample(given.n, params.rows, context.seed)
    rows: Rows = given.vectors if len(chosen) == given.n else given.vectors[chosen]
    n, d = rows.shape
    threads = context.threads

    def name(row: int) -> str:
        return str(chosen[row]) if given.ids is None else given.ids[chosen[row]]

    own = _searched(context, rows, raw_rows(rows, threads), k)
    with context.stage("pairs") as step:
        pairs = spread(Directions(rows), threads, step)
    drawn = sphere.uniform_directions(n, d, context.seed, "search_hygiene directions")
    as_long = None
    if own.lengths is not None:
        as_long = Directions(drawn).take(slice(None)) * own.lengths[:, None]
    free = _searched(context, drawn, as_long, k, "random ")

    near, near_pairs = near_duplicates(own.graph, params.near_duplicate)
    results: SearchHygiene = SearchHygiene.build(
        n=n,
        of=given.n,
        d=d,
        k=k,
        tied_at_cutoff=own.graph.tied,
        unresolved=own.graph.unresolved,
        hubness=_hubness(own.shape, free.shape, params.listed, name),
        antihubs=Antihubs(share=own.shape.antihubs, share_random=free.shape.antihubs),
        near_duplicates=NearDuplicates(
            rows=near,
            rows_random=sphere.expected_with_neighbour(params.near_duplicate, n, d),
            pairs=near_pairs,
        ),
        outliers=_outliers(own.shape, free.shape, params, name),
        islands=_islands(own.shape, free.shape, params, name),
        metric_mismatch=_mismatch(own.overlaps, free.overlaps, params),
        relative_contrast=_contrast(float(pairs.distances.sum()) / (n * (n - 1)), own.nearest),
        relative_contrast_random=_contrast(
            sphere.mean_distance(d), sphere.mean_nearest_distance(n, d)
        ),
        intrinsic_dimension=_dimension(own.spacing, free.spacing, params),
        uniformity=_uniformity(pairs.potentials, params),
        uniformity_random=sphere.uniformity(d),
    )
    _warn(context, results)
    return results
