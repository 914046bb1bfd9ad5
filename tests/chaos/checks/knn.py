"""A check that searches with faiss on two OpenMP threads."""

from __future__ import annotations

import faiss
import numpy as np

from service.check import Context, Inputs, Params, Results, check, measure, vectors
from service.dataset import Dataset

K = 10


class KnnInputs(Inputs):
    vectors: Dataset = vectors(rows="rows")
    """Rows that are searched, and the queries."""


class KnnParams(Params):
    """Nothing more."""


class Knn(Results):
    first: int = measure(unit="rows", low=0)
    """Rows whose nearest neighbour is the row itself."""


@check(version=1, title="Search", scope=("It shows nothing.",))
def knn(context: Context, inputs: KnnInputs, params: KnnParams) -> Knn:
    """Finds the ten nearest rows of each row."""
    rows = np.ascontiguousarray(inputs.vectors.vectors, dtype=np.float32)
    faiss.omp_set_num_threads(2)
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    _, found = index.search(rows, K)
    return Knn(first=int(np.sum(found[:, 0] == np.arange(len(rows)))))
