"""
`retrieval` beside one faiss search of the same size, and what its intervals and differences add.

Everything runs in this one process, in turn; ratios are what counts. `--random` gives every query a
relevant document at random, so that most rank in the middle; `--pair` compares two models.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(os.cpu_count()))

import faiss
import numpy as np
from neighbour_stability import peak_mib, rows, seconds

from service.check import Context
from service.checks.retrieval import retrieval
from service.dataset import Dataset, Labels
from service.numerics.rows import unit
from service.relevance import Relevance
from service.settings import cores

QUERIES, DOCUMENTS, D = 10_000, 100_000, 384
BYTES = 4 * (QUERIES + DOCUMENTS) * D


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--pair", action="store_true")
    asked = parser.parse_args()
    random = np.random.default_rng(5)
    documents = rows(DOCUMENTS, D, 2)
    own = random.permutation(DOCUMENTS)[:QUERIES]
    queries = documents[own] + 2 * random.normal(size=(QUERIES, D)).astype(np.float32)
    relevant = random.permutation(DOCUMENTS)[:QUERIES] if asked.random else own
    names = ("one", "other") if asked.pair else ("one",)
    model = {"queries": Dataset(queries), "documents": Dataset(documents)}
    inputs = retrieval.inputs(
        models=dict.fromkeys(names, model),
        relevance=Relevance.of([[int(row)] for row in relevant]),
        groups=Labels.of([i // 5 for i in range(QUERIES)]),
    )
    params = retrieval.params()
    before = peak_mib()
    context = Context(threads=cores())
    blocks = range(retrieval.blocks(inputs, params))
    parts = retrieval.part(context, inputs, params, blocks)
    peak = peak_mib() - before
    ranks = seconds(lambda: retrieval.part(context, inputs, params, blocks), 2)
    rest = seconds(lambda: retrieval.combine(context, inputs, params, parts), 2)
    single, asking = unit(documents).astype(np.float32), unit(queries).astype(np.float32)
    faiss.omp_set_num_threads(cores())
    search = seconds(lambda: faiss.knn(asking, single, 100, metric=faiss.METRIC_INNER_PRODUCT), 2)
    found = retrieval.combine(context, inputs, params, parts).model_dump()
    print(
        f"retrieval {QUERIES} queries in {DOCUMENTS} x {D}, models {len(names)}: ranks {ranks:.1f} s, "
        f"intervals, differences and layers {rest:.2f} s; one faiss.knn of 100 {search:.1f} s, ratio "
        f"{(ranks + rest) / search / len(names):.2f} a model; intervals {rest / ranks:.1%} of the "
        f"ranks; memory beside the inputs {peak:.0f} MiB, bound {2 * BYTES / 2**20 + 512:.0f} MiB; "
        f"hit@10 {found['models']['one']['hit@10']['estimate']:.3f}"
    )


if __name__ == "__main__":
    main()
