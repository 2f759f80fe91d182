"""Metrics of several runs, read together."""

import math
from itertools import permutations

from titanrun.runs.metric_series import MetricSeries, compute_spread


def test_the_spread_of_runs_of_which_one_is_not_finite_has_no_order() -> None:
    """Row A3: min and max of values with NaN depended on which run came first."""
    columns = ([1.0, math.nan, 2.0], [math.inf, -math.inf, 0.0], [math.inf, 1.0, 2.0])
    for column, mean in zip(columns, (math.nan, math.nan, math.inf), strict=True):
        found = {
            repr(compute_spread([MetricSeries([1.0], [value]) for value in order]))
            for order in permutations(column)
        }
        assert len(found) == 1 and f"mean=[{mean}]" in found.pop()
