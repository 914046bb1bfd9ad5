"""Compression: rows with fewer dimensions or bits against the rows as given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.check import (
    Context,
    Estimate,
    Undefined,
    check,
    estimate_of,
    mean_of,
)
from service.checks.compression.declared import (
    Compression,
    CompressionInputs,
    CompressionParams,
    Native,
    Variant,
)
from service.checks.compression.probing import Probed, Probing, refuse
from service.checks.compression.ranking import NO_QUERIES, Ranked, Ranking
from service.checks.compression.reduction import Kept, Nothing, Reductions
from service.errors import Fault, InvalidRequest
from service.numerics import agreement
from service.numerics.coded import chunks
from service.numerics.moments import Units
from service.numerics.neighbours import Ids, Queries, Search
from service.numerics.rows import Floats
from service.numerics.seen import seen

BATCH = 1 << 16
NO_LABELS = Undefined(code="no_labels", message="No labels were given.")
NO_COMPONENTS = Undefined(code="no_components", message="Nothing was projected.")


@check(
    version=3,
    title="What do fewer dimensions or bits lose?",
    question="What do fewer dimensions (prefix or PCA) or bits lose: neighbours, labels, a linear "
    "probe, retrieval; which choices does no other beat?",
    scope=(
        "Neighbours that stay are the neighbours there were, right or wrong; neighbours with the same "
        "label are not the same neighbours.",
        "A prefix is cut from rows as they are: a model that was not trained for it loses more than "
        "one that was.",
        "Intervals take the fitted components and the rows that are searched as given.",
        "The frontier compares point estimates; neighbours on it may be no more than noise apart.",
        "A probe is fitted again on train rows with as little kept: one that was trained on the rows "
        "as given may do worse on them.",
        "A probe is of rows brought to length one, as cosines are: what lengths say is lost to it.",
    ),
    warnings={
        "tested_on_train_rows": "Rows that a probe is asked of are equal to a train row.",
        "labels_not_in_train": "Rows have a label that no train row has.",
        "ties": "Rows have a tie at the last place of their list.",
        "not_converged": "The optimiser of a probe did not finish.",
        "rows_read_as_zero": "Rows read as zero and have no direction.",
    },
    sources=("arXiv:2205.13147", "doi:10.1137/080731992", "doi:10.1093/biomet/26.4.404"),
    memory_factor=16.0,
    refuse=refuse,
)
def compression(
    context: Context, inputs: CompressionInputs, params: CompressionParams
) -> Compression:
    """
    What fewer dimensions or bits lose: prefixes and principal components, and storage on top.

    A prefix is the first coordinates, scored by their own length; PCA is fitted on unit rows of
    `train`, its mean subtracted, and kept in float32. Neighbours are exact. A linear probe of
    unit rows is fitted where train rows have labels, and retrieval is measured where there are
    queries. Time one search of n rows among n for each variant, and O(n d^2) for PCA; memory the
    rows once more, O(n k), and for a probe the rows in float64.
    """
    d = inputs.vectors.vectors.shape[1]
    if min(params.dims) >= d:
        raise InvalidRequest(
            f"`vectors` has {d} dimensions and none of `dims` is smaller.",
            [Fault(pointer="/params/dims", message=f"name a number below {d}")],
        )
    columns = {"labels": inputs.labels, "train_labels": inputs.train_labels}
    shapes = {"rows": inputs.vectors.vectors.shape}
    if inputs.train is not None:
        shapes["train"] = inputs.train.vectors.shape
    given = {name: column for name, column in columns.items() if column is not None}
    refuse(given, shapes, params, context.seed)
    return _Compared(context, inputs, params).results()


@dataclass(frozen=True)
class _Found:
    """The neighbours of every row, what a probe gives, and what queries find."""

    ids: Ids
    hits: Floats | None
    unresolved: int
    probed: Probed | None
    ranked: Ranked | None


@dataclass
class _Compared:
    """Rows as given, and what is compared with them."""

    context: Context
    inputs: CompressionInputs
    params: CompressionParams

    def __post_init__(self) -> None:
        self.n, self.d = self.inputs.vectors.vectors.shape
        groups = self.inputs.groups
        self.units = Units.rows(self.n) if groups is None else Units.groups(groups.dense)
        self.probing = Probing.of(self.inputs, self.params)
        self.ranking = Ranking.of(self.inputs, self.params)
        self.reductions = Reductions(self.inputs, self.params, self.context.threads)

    def results(self) -> Compression:
        if isinstance(self.probing, Probing) and self.probing.absent:
            self.context.warn(
                "labels_not_in_train",
                f"{self.probing.absent} rows have a label that no train row has: no probe can give it.",
                "inputs/labels",
            )
        names = self.params.names()["variant"]
        searches = 1 + len(names)
        variants: dict[str, Variant] = {}
        with self.context.stage("components") as step:
            found = self.reductions.components(step)
        with self.context.stage("neighbours") as step:

            def tell(place: int) -> Callable[[int, int], None]:
                return lambda done, total: step(100 * place + 100 * done // total, 100 * searches)

            given = self.reductions.native()
            before = self._found(given, tell(0))
            for kept in self.reductions.all(found):
                place = 1 + len(variants)
                variants[kept.name] = self._variant(kept, before, tell(place))
                step(100 * (place + 1), 100 * searches)
        in_order = {name: variants[name] for name in names}
        native = Native.build(
            dimensions=self.d,
            bytes_per_vector=given.bytes_per_vector,
            unresolved=before.unresolved,
            label_precision={self.params.k: self._precision(before)},
            **self._probe(before),
            **self._retrieval(before),
        )
        train = self.inputs.train
        return Compression.build(  # type: ignore[no-any-return]
            n=self.n,
            d=self.d,
            k=self.params.k,
            train_rows=self.n if train is None else train.n,
            fitted_on_compared_rows=train is None,
            shared_rows=self._shared_rows(),
            overlap_chance=self.params.k / (self.n - 1),
            native=native,
            variants=in_order,
            frontier=_frontier(native, in_order, self.params.k),
        )

    def _found(self, kept: Kept, step: Callable[[int, int], None]) -> _Found:
        rows = kept.rows
        search = Search(rows, self.context.threads)
        ids, unresolved = np.empty((self.n, self.params.k), np.int32), 0
        batches = list(chunks(self.n, BATCH))
        for number, part in enumerate(batches):

            def tell(done: int, total: int, before: int = number) -> None:
                step(before * total + done, len(batches) * total * (1 + (self.ranking is not None)))

            which = np.arange(part.start, part.stop)
            found = search.nearest(Queries(rows, own=True), which, self.params.k, tell)
            ids[part] = found.ids
            unresolved += int((found.gap <= search.tau(search.norms[part])).sum())
        if unresolved:
            self.context.warn(
                "ties",
                f"`{kept.name}`: {unresolved} rows have a tie at place {self.params.k}; ties go to the "
                "lower row.",
                f"results/{_place(kept)}/unresolved",
            )
        hits = None
        if self.inputs.labels is not None:
            codes = self.inputs.labels.codes
            hits = np.count_nonzero(codes[ids] == codes[:, None], axis=1) / self.params.k
        ranked = None
        if self.ranking is not None:
            queries = kept.like(self.ranking.queries)
            ranked = self.ranking.ranked(
                search, queries, lambda done, total: step(total + done, 2 * total)
            )
        return _Found(ids, hits, unresolved, self._probed(kept), ranked)

    def _probed(self, kept: Kept) -> Probed | None:
        if isinstance(self.probing, Undefined):
            return None
        probed = self.probing.fitted(kept.like(self.reductions.train), kept.rows)
        if not probed.fitted.converged:
            self.context.warn(
                "not_converged",
                f"`{kept.name}`: the probe's optimiser ran out of iterations or stopped on a slope; "
                "raise `probe_max_iter`, or `probe_c`.",
                f"results/{_place(kept)}/probe/converged",
            )
        return probed

    def _shared_rows(self) -> int | Undefined:
        """Rows the probe was fitted on; warns where there are any."""
        if isinstance(self.probing, Undefined):
            return self.probing
        train = self.inputs.train
        rows = self.inputs.vectors.vectors
        shared = int(
            seen(rows, rows if train is None else train.vectors, self.context.threads).sum()
        )
        if shared:
            self.context.warn(
                "tested_on_train_rows",
                f"{shared} of {self.n} rows are equal to a train row: what the probe recovers of them "
                "may have been learnt by heart. Leave them out of `train`, or of `vectors`.",
                "results/shared_rows",
            )
        return shared

    def _retrieval(self, found: _Found, before: _Found | None = None) -> dict[str, Any]:
        """What queries find and, beside the rows as given, how that changed."""
        names = ("retrieval",) if before is None else ("retrieval", "retrieval_change")
        if self.ranking is None or found.ranked is None:
            return dict.fromkeys(names, NO_QUERIES)
        read: dict[str, Any] = {"retrieval": self.ranking.read(found.ranked)}
        if before is not None and before.ranked is not None:
            read["retrieval_change"] = self.ranking.change(before.ranked, found.ranked)
        return read

    def _probe(self, found: _Found, before: _Found | None = None) -> dict[str, Any]:
        """What the probe gives and, beside the rows as given, how that changed."""
        names = ("probe",) if before is None else ("probe", "probe_change")
        if isinstance(self.probing, Undefined) or found.probed is None:
            return dict.fromkeys(names, self.probing)
        read: dict[str, Any] = {"probe": self.probing.read(found.probed)}
        if before is not None and before.probed is not None:
            read["probe_change"] = self.probing.change(before.probed, found.probed)
        return read

    def _precision(self, found: _Found) -> Estimate:
        if found.hits is None:
            return self._unknown(NO_LABELS)
        return mean_of(found.hits, self.units, self.params)

    def _unknown(self, why: Undefined) -> Estimate:
        return estimate_of(why, np.empty(0), self.params, self.units.name)

    def _variant(
        self, kept: Kept | Nothing, before: _Found, step: Callable[[int, int], None]
    ) -> Variant:
        k = self.params.k
        if isinstance(kept, Nothing):
            nothing = {k: self._unknown(kept.why)}
            return Variant.build(  # type: ignore[no-any-return]
                dimensions=kept.dimensions,
                bytes_per_vector=kept.why,
                explained_variance=kept.why,
                overlap=nothing,
                changed=self._unknown(kept.why),
                changed_queries=kept.why,
                label_precision=nothing,
                label_precision_change=nothing,
                probe=kept.why,
                probe_change=kept.why,
                retrieval=kept.why,
                retrieval_change=kept.why,
                zero_rows=kept.why,
                unresolved=kept.why,
            )
        after = self._found(kept, step)
        if kept.rows.zero_rows:
            self.context.warn(
                "rows_read_as_zero",
                f"`{kept.name}`: {kept.rows.zero_rows} rows read as zero and have no direction.",
                f"results/variants/{kept.name}/zero_rows",
            )
        shared = np.empty(self.n, np.int64)
        agreement.compare(
            before.ids, after.ids, agreement.PERSISTENCE, shared, *np.empty((2, self.n))
        )
        changed = shared < k
        values: dict[str, Any] = {
            "overlap": {k: mean_of(shared / k, self.units, self.params)},
            "changed": mean_of(changed.astype(np.float64), self.units, self.params),
        }
        return Variant.build(  # type: ignore[no-any-return]
            dimensions=kept.dimensions,
            bytes_per_vector=kept.bytes_per_vector,
            explained_variance=NO_COMPONENTS if kept.explained is None else kept.explained,
            **values,
            changed_queries=int(changed.sum()),
            label_precision={k: self._precision(after)},
            label_precision_change={k: self._change(before, after)},
            **self._probe(after, before),
            **self._retrieval(after, before),
            zero_rows=kept.rows.zero_rows,
            unresolved=after.unresolved,
        )

    def _change(self, before: _Found, after: _Found) -> Estimate:
        if before.hits is None or after.hits is None:
            return self._unknown(NO_LABELS)
        return mean_of(after.hits - before.hits, self.units, self.params, "change")


def _place(kept: Kept) -> str:
    return "native" if kept.name == "native" else f"variants/{kept.name}"


def _frontier(native: Native, variants: dict[str, Variant], k: int) -> list[str]:
    """Names that no other dominates: fewer bytes, more overlap, more label precision."""
    points = {"native": (-native.bytes_per_vector, 1.0, native.label_precision[k].estimate or 0.0)}
    for name, found in variants.items():
        overlap = found.overlap[k].estimate
        if overlap is not None and found.bytes_per_vector is not None:
            precision = found.label_precision[k].estimate or 0.0
            points[name] = (-found.bytes_per_vector, overlap, precision)

    def beaten(one: tuple[float, ...]) -> bool:
        return any(
            other != one and all(o >= mine for o, mine in zip(other, one, strict=True))
            for other in points.values()
        )

    left = [name for name, point in points.items() if not beaten(point)]
    return sorted(left, key=lambda name: -points[name][0])
