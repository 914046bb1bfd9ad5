"""Means over units that are drawn again with replacement."""

from __future__ import annotations

import numpy as np

from service.numerics.compiled import draw_counts, stream_key
from service.numerics.rows import Floats, ordered_map

BATCH = 128
BATCH_BYTES = 16 << 20


def resampled_t(values: Floats, resamples: int, seed: int, threads: int) -> Floats:
    """
    How far the mean of each column lies off in each bootstrap resample of the units, in its own
    standard errors: (mean_b - mean) / se_b. NaN among the values is left out.

    Parameters
    ----------
    values : (G, c) float64
        Each unit's own values.
    resamples : B
    seed : int
        The same seed draws the same units, whatever the columns.

    Returns
    -------
    (B, c) float64; NaN where a resample of a column does not vary

    Notes
    -----
    Time O(B G c); memory four copies of the values, and 16 MiB of counts a thread.

    References
    ----------
    Hall, "Theoretical comparison of bootstrap confidence intervals", Ann. Statist. 16(3), 1988,
    doi:10.1214/aos/1176350933: with each resample's own error the coverage is of second order.
    """
    units, columns = values.shape
    key = stream_key(seed, "bootstrap")
    known = np.isfinite(values)
    present = known.astype(np.float64)
    apart = np.where(known, values - np.nanmean(values, axis=0), 0.0)
    both = np.concatenate([apart, np.square(apart)], axis=1)
    batch = max(1, min(BATCH, BATCH_BYTES // (8 * units)))

    def of(first: int) -> Floats:
        counts = np.empty((min(batch, resamples - first), units))
        draw_counts(key, first, counts)
        n = counts @ present
        sums = counts @ both
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = sums[:, :columns] / n
            variance = sums[:, columns:] / n - np.square(mean)
            t = mean / np.sqrt(variance / (n - 1))
        return np.where(variance > 1e-12 * np.square(mean), t, np.nan)

    return np.concatenate(list(ordered_map(of, range(0, resamples, batch), threads)))
