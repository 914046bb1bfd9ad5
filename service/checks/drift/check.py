"""Drift: a new batch against a baseline, unpaired."""

from __future__ import annotations

import numpy as np

from service.check import Context, check
from service.checks.drift.classifier import classifier_of
from service.checks.drift.declared import Drift, DriftInputs, DriftParams
from service.checks.drift.effects import effects_of, side_of
from service.checks.drift.equal_rows import equal_rows
from service.checks.drift.exchanged import dispersion_of, permanova_of
from service.checks.drift.kernels import mmd_of
from service.checks.drift.sides import Sides, refuse_units, warn_of_encoders
from service.numerics.permanova import item_squares, slabs
from service.numerics.shift import shift, shift_without_each, sums


@check(
    version=2,
    title="Has a new batch drifted from its baseline?",
    question="Is a new batch, of other items, still like the baseline: mean, spread, MMD, a "
    "classifier on held-out rows?",
    scope=(
        "A large p is not evidence of no drift: few rows find little. That drift is small is shown by "
        "an effect whose whole interval lies inside a margin.",
        "A small p says that the sides are not exchangeable, not that the drift matters: of many rows "
        "any difference is found.",
        "Six p-values are more often small than one: simulated, the smallest is at or below .05 in .13 "
        "to .14 of batches without drift.",
        "The classifier is linear: it sees shifts of means, also those of a mixture, and no change of "
        "shape around one mean. Its interval takes the split and the fitted classifier as given.",
        "Simulated coverage at .95 for 10 to 200 rows a side: shift of the mean and linear MMD .94 to "
        "1.00 where all directions vary alike, .92 to .97 where few hold most of the variance; R2 .95 "
        "to 1.00, ratio of spreads .94 to .97, AUC .99 to 1.00.",
        "Of MMD with a Gaussian kernel, its width taken as given, .95 to 1.00 and .93 to .98; with 20 "
        "or 50 units a side .97 to .99 and .90 to .98. Where few directions hold most of the variance "
        "an upper end lies below the truth too often: in up to .07 of samples, for this MMD with units "
        "in up to .09, where .025 is nominal.",
        "The p of the spread is approximate: of few skewed rows a side it is too small.",
        "Rows that belong together (one document, user or day) are not independent: without `units` "
        "every p is too small and every interval too narrow.",
        "Which rows changed, and whether the encoder or the data did, is not established.",
    ),
    warnings={
        "same_rows": "Every row of the batch is a row of the baseline.",
        "shared_rows": "Some rows of the batch are rows of the baseline.",
        "repeated_rows": "Rows of a side repeat others of it, so that all weigh like fewer.",
        "paired_sides": "The sides lie closer than sides of independent rows do.",
        "different_encoders": "Baseline and batch declare different encoders.",
        "kernel_rows_drawn": "The MMD of a Gaussian kernel uses some of the rows, drawn.",
    },
    sources=(
        "arXiv:0805.2368",
        "arXiv:1610.06545",
        "doi:10.1111/j.1442-9993.2001.01070.pp.x",
        "doi:10.1111/anzs.12176",
        "doi:10.1111/j.1541-0420.2005.00440.x",
        "doi:10.2202/1544-6115.1585",
        "doi:10.1214/aos/1176345462",
        "doi:10.2307/2531595",
        "doi:10.1016/S0047-259X(03)00096-4",
    ),
    memory_factor=4.0,
    refuse=refuse_units,
)
def drift(context: Context, inputs: DriftInputs, params: DriftParams) -> Drift:
    """
    How far a new batch lies from a baseline whose rows are other items, and how surely.

    Effect sizes first, each with an interval: shift of the mean, ratio of spreads and of lengths,
    MMD, AUC of a classifier on held-out rows. Beside them permutation tests, whole units exchanged.
    Time O(n d (B + d)) for n rows of both sides and B permutations, and O(m^2 (d + B)) for MMD on at
    most m = 2 `kernel_rows` rows; memory the rows once or twice more, n bytes a permutation and no
    matrix of pairs. Twice the rows take twice as long, but for MMD, which grows no more past
    `kernel_rows`; half the permutations half.
    """
    warn_of_encoders(context, inputs)
    with context.stage("sums") as step:
        sides = Sides.of(context, inputs, params)
        step(1, 3)
        part = sums(sides.source, sides.parts, sides.codes, sides.units, context.threads)
        seen, without = shift(part), shift_without_each(part)
        step(2, 3)
        x, squares = None, np.empty(0)
        if not sides.flat:
            x = slabs(sides.source, sides.parts.mean, sides.design, context.threads)
            squares = item_squares(sides.source, sides.parts.mean, sides.design, x)
        step(3, 3)
    permanova, expected = permanova_of(sides, x, squares)
    mmd = mmd_of(sides, seen, without, part.gap2, x, squares)
    del x
    equal = equal_rows(context, inputs)
    return Drift.build(  # type: ignore[no-any-return]
        baseline=side_of(sides, seen, 0, equal.repeated[0]),
        batch=side_of(sides, seen, 1, equal.repeated[1]),
        **effects_of(sides, seen, without, part.gap2),
        r2_expected=expected,
        mmd=mmd,
        classifier=classifier_of(sides),
        permanova=permanova,
        dispersion=dispersion_of(sides),
        shared_rows=equal.shared,
    )
