"""Whether a classifier tells the sides apart."""

from __future__ import annotations

import numpy as np

from service.check import p_value, unpaired_estimate
from service.checks.drift.declared import DomainClassifier
from service.checks.drift.sides import ZERO_TOTAL, Sides, effective_units
from service.numerics.auc import auc, auc_test
from service.numerics.design import Design
from service.numerics.discriminant import Halves, discriminant


def classifier_of(sides: Sides) -> DomainClassifier:
    context, params = sides.context, sides.params
    halves = Halves.of(sides.units, sides.sample, context.seed)
    train, test = halves.train, halves.test
    if sides.flat:
        return DomainClassifier.build(  # type: ignore[no-any-return]
            auc=unpaired_estimate(ZERO_TOTAL, (np.empty(0),) * 2, params, sides.unit),
            p=p_value(ZERO_TOTAL, params.level),
            shrinkage=ZERO_TOTAL,
            train_rows=len(train),
            test_rows=len(test),
        )
    with context.stage("classifier") as step:
        fitted = discriminant(sides.source, train, sides.codes[train], context.threads)
        scores = fitted.scores(sides.source, test, context.threads)
        codes, owner = sides.codes[test], np.unique(sides.owner[test], return_inverse=True)[1]
        found = auc(scores, codes, owner)
        sample = np.empty(len(found.without), np.int64)
        sample[owner] = codes
        tested = auc_test(
            scores, Design.of(codes, None, owner if sides.named else None), params.permutations,
            context.seed, params.level, context.threads, step,
        )  # fmt: skip
    return DomainClassifier.build(  # type: ignore[no-any-return]
        auc=unpaired_estimate(
            found.value,
            (found.without[sample == 0], found.without[sample == 1]),
            params,
            sides.unit,
            trials=min(effective_units(owner[codes == side]) for side in (0, 1)),
        ),
        p=p_value(tested, params.level),
        shrinkage=fitted.shrinkage,
        train_rows=len(train),
        test_rows=len(test),
    )
