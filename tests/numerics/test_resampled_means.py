"""Bootstrap t against rows that are copied as often as they were drawn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from service.numerics.compiled import draw_counts, stream_key
from service.numerics.resampled_means import resampled_t


@pytest.mark.parametrize(("units", "threads"), [(7, 1), (7, 3), (300, 2)])
def test_t_is_that_of_copied_rows(units: int, threads: int) -> None:
    """Compared with scipy resample by resample; unknown values are not among the copies."""
    rng = np.random.default_rng(units)
    values = rng.normal(loc=3, size=(units, 3))
    values[2, 1] = np.nan
    got = resampled_t(values, 301, 5, threads)
    counts = np.empty((301, units))
    draw_counts(stream_key(5, "bootstrap"), 0, counts)
    for b in range(301):
        copied = np.repeat(values, counts[b].astype(int), axis=0)
        for c in range(3):
            column = copied[:, c][np.isfinite(copied[:, c])]
            if np.ptp(column) == 0:
                assert np.isnan(got[b, c])
            else:
                expected = stats.ttest_1samp(column, np.nanmean(values[:, c])).statistic
                assert got[b, c] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_units_are_the_same_whatever_the_columns() -> None:
    """Compared column by column: a pair of models does not change the resamples of another."""
    values = np.random.default_rng(1).normal(size=(40, 5))
    whole = resampled_t(values, 200, 3, 2)
    for c in range(5):
        alone = resampled_t(values[:, c : c + 1], 200, 3, 1)[:, 0]
        assert whole[:, c] == pytest.approx(alone, rel=1e-11)


def test_values_that_do_not_vary_have_no_t() -> None:
    """By hand: all equal, whatever is drawn."""
    assert np.isnan(resampled_t(np.full((30, 2), 0.1), 50, 0, 2)).all()
