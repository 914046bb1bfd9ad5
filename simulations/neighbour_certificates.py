"""
Whether a query certified by `neighbour_stability` can be made to lose a neighbour.

    python simulations/neighbour_certificates.py            # prints the table
    python simulations/neighbour_certificates.py --write    # writes neighbour_certificates.md beside it

A certificate says that no movement of rows and queries as large as a scheme's own changes the set. So
rows and queries are moved by exactly that much: as the scheme moved them, in random directions, and in
the worst directions for one neighbour and one other row. A query is tried once for each movement.
Takes some minutes on two cores.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numba
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from service.numerics.coded import as_given
from service.numerics.conditions import Condition, Given
from service.numerics.neighbours import EXTRA, Queries, Search, cut
from service.numerics.single import in_single
from service.numerics.storage_schemes import fit, store

Array = NDArray[Any]
SEED = 20_260_729
K = 10
WORST, RANDOM = 8, 2
HOW = ("scheme", "worst", "random")
THREADS = 2
DATA = Path(__file__).parent.parent / "tests/data"
SCHEMES = (
    "fp32_arithmetic", "fp16", "bf16", "int8", "int8_per_vector", "int8_qt8", "int8_minmax_round",
    "int8_quantile", "int4",
)  # fmt: skip


@dataclass
class Tried:
    """Trials of certified and other queries, and how many of each lost a neighbour."""

    queries: int = 0
    certified: int = 0
    trials: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    other_trials: dict[str, int] = field(default_factory=dict)
    other_changed: dict[str, int] = field(default_factory=dict)

    def count(self, how: str, certified: Array, changed: Array) -> None:
        for into, values in (
            (self.trials, certified),
            (self.changed, certified & changed),
            (self.other_trials, ~certified),
            (self.other_changed, ~certified & changed),
        ):
            into[how] = into.get(how, 0) + int(values.sum())


@dataclass
class Moved:
    """Points before and after, how far each may move, and the neighbours before."""

    queries: Array
    gallery: Array
    moved_queries: Array
    moved: Array
    turned: Array
    weight: Array
    best: Array
    own: bool

    def changed(self, scores: Array) -> Array:
        """Queries where some other row scores at least as much as a neighbour; in place."""
        lowest = np.take_along_axis(scores, self.best, axis=1).min(axis=1)
        np.put_along_axis(scores, self.best, -np.inf, axis=1)
        if self.own:
            np.fill_diagonal(scores, -np.inf)
        return np.asarray(scores.max(axis=1) >= lowest)

    def turned_against(self, i: Array, j: Array) -> Array:
        """Queries of length |q'| within reach of q that favour row j most over row i."""
        apart = self.gallery[i] - self.gallery[j]
        norms = np.linalg.norm(self.queries, axis=1)
        first = self.queries / norms[:, None]
        across = apart - np.einsum("ij,ij->i", apart, first)[:, None] * first
        length = np.linalg.norm(across, axis=1, keepdims=True)
        across = across / np.where(length > 0, length, 1)
        furthest = (self.weight**2 + norms**2 - self.turned**2) / (2 * self.weight * norms)
        angle = np.arccos(np.clip(furthest, -1, 1))[:, None]
        return self.weight[:, None] * (np.cos(angle) * first - np.sin(angle) * across)

    def worst(self, i: Array, j: Array) -> Array:
        """Scores with every neighbour moved away from the query and every other row towards it."""
        scores = self.turned_against(i, j) @ self.gallery.T
        step = self.weight[:, None] * self.moved
        inside = np.take_along_axis(scores, self.best, axis=1)
        inside -= self.weight[:, None] * self.moved[self.best]
        scores += step
        np.put_along_axis(scores, self.best, inside, axis=1)
        return scores

    def random(self, rng: np.random.Generator) -> Array:
        """Scores with rows and queries moved as far in random directions, queries keeping |q'|."""
        step = rng.normal(size=self.gallery.shape)
        step *= (self.moved / np.linalg.norm(step, axis=1))[:, None]
        i, j = rng.integers(0, len(self.gallery), size=(2, len(self.queries)))
        return self.turned_against(i, j) @ (self.gallery + step).T


def conditions(x: Array, q: Array | None, scoring: str, names: tuple[str, ...]) -> Iterator[Any]:
    """(label, condition, given) of each scheme on rows stored as directions."""
    cosine = scoring == "cosine"
    rows = as_given(x, cosine=True, threads=THREADS)
    asked = Queries(rows if q is None else as_given(q, cosine=True, threads=THREADS), own=q is None)
    search = Search(rows, THREADS)
    which = np.arange(asked.rows.n)
    listed = search.listed(asked, which, K + EXTRA)
    ids, scores, _ = search.proved(asked, which, listed, K)
    given = Given(search, asked, which, listed, cut(ids, scores, K))
    for name in names:
        if name == "fp32_arithmetic":
            single = in_single(rows, THREADS)
            other = single if asked.own else in_single(asked.rows, THREADS)
            moved = Queries(other, asked.own)
            yield name, Condition(search, single, moved, single=True, threads=THREADS), given
            continue
        fitted = fit(name, rows.points, rows.n, rows.d, THREADS)  # type: ignore[arg-type]
        kept = store(fitted, rows.points, rows.n, rows.d, cosine=cosine, threads=THREADS).rows
        both = kept
        if not asked.own:
            n, d = asked.rows.n, asked.rows.d
            both = store(fitted, asked.rows.points, n, d, cosine=cosine, threads=THREADS).rows
        yield f"{name}, gallery", Condition(search, kept, asked, threads=THREADS), given
        yield (
            f"{name}, both",
            Condition(search, kept, Queries(both, asked.own), threads=THREADS),
            given,
        )


def attack(condition: Condition, given: Given, rng: np.random.Generator, tried: Tried) -> None:
    """Move rows and queries as far as the condition did, every way."""
    outcome, _ = condition.outcome(given)
    every = slice(None)
    queries, gallery = given.queries.rows.points(every), given.search.rows.points(every)
    moved_queries = queries if condition.single else condition.queries.rows.points(every)
    moved = Moved(
        queries=queries,
        gallery=gallery,
        moved_queries=moved_queries,
        moved=condition.moved,
        turned=np.linalg.norm(moved_queries - queries, axis=1),
        weight=np.linalg.norm(moved_queries, axis=1),
        best=given.found.ids.astype(np.int64),
        own=given.queries.own,
    )
    certified = outcome.certified
    before = np.sort(given.found.ids, axis=1)
    tried.queries += len(queries)
    tried.certified += int(certified.sum())
    tried.count("scheme", certified, (np.sort(outcome.ids, axis=1) != before).any(axis=1))
    scores = queries @ gallery.T
    if moved.own:
        np.fill_diagonal(scores, -np.inf)
    reach = scores + moved.weight[:, None] * moved.moved
    np.put_along_axis(reach, moved.best, -np.inf, axis=1)
    rivals = np.argsort(-reach, axis=1)[:, :WORST]
    held = np.take_along_axis(scores, moved.best, axis=1)
    held -= moved.weight[:, None] * moved.moved[moved.best]
    weakest = np.take_along_axis(moved.best, np.argsort(held, axis=1), axis=1)
    for attempt in range(WORST):
        i, j = weakest[:, attempt // 4], rivals[:, attempt]
        tried.count("worst", certified, moved.changed(moved.worst(i, j)))
    for _ in range(RANDOM):
        tried.count("random", certified, moved.changed(moved.random(rng)))


def sources(rng: np.random.Generator) -> Iterator[tuple[str, Array, Array | None, str]]:
    """Rows by name, with queries where they are others, and what ranks."""
    for model in ("minilm", "minilm_int8", "e5small_q4", "use_multilingual"):
        x = np.load(DATA / f"clinc150/{model}.npy")[::2]
        yield f"clinc150/{model}", x, None, "cosine"
    x = np.load(DATA / "clinc150/minilm.npy")[::2]
    yield "clinc150/minilm", x, None, "dot"
    for model in ("minilm", "e5small_q4"):
        x, q = (
            np.load(DATA / f"debian_pairs/{model}_{side}.npy")[::2] for side in ("doc", "query")
        )
        yield f"debian_pairs/{model}", x, q, "cosine"
    for d in (2, 8, 32, 128):
        yield f"Gaussian, d = {d}", rng.normal(size=(1500, d)), None, "cosine"
        yield f"Gaussian, d = {d}", rng.normal(size=(1500, d)), None, "dot"
    clusters = rng.normal(size=(30, 32))[rng.integers(0, 30, 1500)]
    yield "30 tight clusters, d = 32", clusters + 0.02 * rng.normal(size=(1500, 32)), None, "cosine"
    yield "offset 10, d = 32", rng.normal(size=(1500, 32)) + 10, None, "cosine"
    few = rng.normal(size=(1500, 16))[rng.integers(0, 120, 1500)]
    yield "120 rows, each many times, d = 16", few, None, "cosine"
    close = rng.normal(size=(3, 16))[rng.integers(0, 3, 900)] + 1e-9 * rng.normal(size=(900, 16))
    yield "3 clusters of rows 1e-9 apart, d = 16", close, None, "cosine"
    sparse = rng.normal(size=(1500, 24)) * (rng.random((1500, 24)) < 0.2)
    sparse[:, 0] += 1e-3
    yield "mostly zeros, d = 24", sparse, rng.normal(size=(1500, 24)), "cosine"


def lines() -> Iterator[str]:
    """The page."""
    rng = np.random.default_rng(SEED)
    by_source: dict[str, Tried] = {}
    by_scheme: dict[str, Tried] = {}
    for name, x, q, scoring in sources(rng):
        for label, condition, given in conditions(x, q, scoring, SCHEMES):
            one = Tried()
            attack(condition, given, rng, one)
            for table, key in ((by_source, f"{name}, {scoring}"), (by_scheme, label)):
                add(table.setdefault(key, Tried()), one)
        print(f"{name}, {scoring}: {by_source[f'{name}, {scoring}']}", file=sys.stderr)
    total = Tried()
    for one in by_source.values():
        add(total, one)
    yield "# Whether certified neighbours can be made to change"
    yield ""
    yield "Written by `python simulations/neighbour_certificates.py --write`; seed "
    yield f"{SEED}, k = {K}. Python {platform.python_version()}, numpy {np.__version__},"
    yield f"faiss {faiss.__version__}, numba {numba.__version__}."
    yield ""
    yield "A query is certified where no movement of rows and queries as large as the scheme's own"
    yield "can change its set of neighbours. Each query is tried 11 times: with what the scheme did,"
    yield "with 8 movements of exactly the allowed size in the worst directions (its weakest neighbours"
    yield "lose, its closest rivals gain, the query turns from one to the other), and with 2 in random"
    yield "directions. A tie counts as a change."
    yield ""
    shares = "; ".join(
        f"{how} {total.other_changed[how] / total.other_trials[how]:.1%}" for how in HOW
    )
    counts = [sum(one.values()) for one in (total.trials, total.changed)]
    others = [sum(one.values()) for one in (total.other_trials, total.other_changed)]
    yield f"**{counts[0]:,} trials of certified queries; {counts[1]:,} changed.**"
    yield f"Of {others[0]:,} trials of other queries {others[1]:,} changed: {shares}."
    for title, table in (("rows", by_source), ("condition", by_scheme)):
        yield ""
        head = ("queries", "certified", "trials of certified", "changed", *(
            f"others changed, {how}" for how in HOW
        ))  # fmt: skip
        yield f"| {title} | {' | '.join(head)} |"
        yield "|---" * (len(head) + 1) + "|"
        for key, one in table.items():
            numbers = (
                one.queries,
                one.certified,
                sum(one.trials.values()),
                sum(one.changed.values()),
            )
            shown = [f"{one.other_changed[how]:,} of {one.other_trials[how]:,}" for how in HOW]
            yield f"| {key} | {' | '.join([*(f'{number:,}' for number in numbers), *shown])} |"


def add(total: Tried, one: Tried) -> None:
    """Add counts in place."""
    total.queries += one.queries
    total.certified += one.certified
    for name in ("trials", "changed", "other_trials", "other_changed"):
        into = getattr(total, name)
        for how, count in getattr(one, name).items():
            into[how] = into.get(how, 0) + count


def main() -> None:
    with threadpool_limits(limits=THREADS):
        text = "\n".join(lines()) + "\n"
    if "--write" in sys.argv[1:]:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
