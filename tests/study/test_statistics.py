"""Statistics against numbers worked out by hand or by enumeration, and against simulated studies whose truth is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sb3_nser.study import statistics
from sb3_nser.study.statistics import Estimate


def test_interquartile_mean_is_the_mean_of_the_middle_half() -> None:
    assert statistics.iqm([8, 1, 7, 2, 6, 3, 5, 4]) == 4.5  # of 3, 4, 5, 6
    assert statistics.iqm([[1, 100], [2, 3], [4, -50], [3, 2]]) == pytest.approx((2 + 2 + 3 + 3) / 4)  # over all environments
    assert statistics.iqm([1, 2, 6]) == 3.0  # a quarter of three is no whole run


def test_curve_metrics() -> None:
    steps, scores = [0, 10, 20], [0.0, 1.0, 0.5]
    assert statistics.area_under_curve(steps, scores) == pytest.approx((5 + 7.5) / 20)
    assert statistics.area_under_curve([0], [0.3]) == 0.3
    assert statistics.final_performance(steps, scores) == 0.5
    assert statistics.final_performance(range(0, 101, 5), np.arange(21)) == 19.0  # of 18, 19, 20
    assert statistics.steps_to_threshold(steps, scores, 0.5) == (10.0, True)
    assert statistics.steps_to_threshold(steps, scores, 2.0) == (20.0, False)  # the whole budget


def test_probability_of_improvement_counts_pairs_of_runs() -> None:
    ours, theirs = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 5.0])
    # 1 beats none; 2 ties with two; 3 beats two
    assert statistics.improvement_probability([ours], [theirs], 200).value == pytest.approx(3 / 9)
    both = statistics.improvement_probability([ours, np.array([9.0, 9.0])], [theirs, np.array([1.0, 1.0])], 200)
    assert both.value == pytest.approx((3 / 9 + 1) / 2)  # averaged over environments


def test_interval_is_that_of_all_resamples() -> None:
    runs = np.array([0.0, 1.0, 5.0, 6.0, 9.0])
    middles = [np.mean(sorted(chosen)[1:-1]) for chosen in itertools.product(runs, repeat=5)]
    low, high = np.percentile(middles, [2.5, 97.5])
    found = statistics.iqm_interval([runs], 20_000)
    assert found.value == 4.0  # of 1, 5, 6
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.35)
    assert found == statistics.iqm_interval([runs], 20_000)  # the same numbers every time


def test_runs_are_resampled_within_their_environment() -> None:
    # resampled over environments, the share of ones would vary
    assert statistics.iqm_interval([np.zeros(5), np.ones(5)], 300) == Estimate(0.5, 0.5, 0.5, 5)


def test_differences_resample_pairs() -> None:
    theirs = np.random.default_rng(0).normal(0, 10, 10)
    shifted = statistics.paired_difference([theirs + 1.0], [theirs], 300)
    assert (shifted.low, shifted.high) == pytest.approx((1.0, 1.0))  # unpaired, the seeds' spread of 10 would drown it
    halved = statistics.paired_reduction([np.abs(theirs)], [2 * np.abs(theirs)], 300)
    assert (halved.value, halved.low, halved.high) == pytest.approx((0.5, 0.5, 0.5))


def test_a_share_of_nothing_has_no_value() -> None:
    none = statistics.paired_reduction([np.ones(6)], [np.zeros(6)], 200)  # and no warning
    assert not math.isfinite(none.value) and not math.isfinite(none.low)


def test_few_runs() -> None:
    alone = statistics.iqm_interval([np.array([3.0])], 200)
    assert alone.value == 3.0 and math.isnan(alone.low)
    assert statistics.iqm_interval([np.array([])], 200).runs == 0


@pytest.mark.parametrize(
    ("difference", "better", "words"),
    [
        (Estimate(1.0, 0.1, 2.0, 10), "higher", "better"),
        (Estimate(1.0, 0.1, 2.0, 10), "lower", "worse"),
        (Estimate(-1.0, -2.0, -0.1, 10), "lower", "better"),
        (Estimate(1.0, -0.1, 2.0, 10), "higher", "not distinguishable"),
        (Estimate(0.0, 0.0, 0.0, 10), "higher", "not distinguishable"),
        (Estimate(1.0, 0.9, 1.1, 5), "higher", "too few seeds (5 of at least 6)"),
        (Estimate(1.0, math.nan, math.nan, 1), "higher", "too few seeds (1 of at least 6)"),
    ],
)
def test_verdict_in_words(difference: Estimate, better: str, words: str) -> None:
    assert statistics.verdict(difference, better) == words


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """150 simulated studies of two environments and ten seeds, whose effect is known; 95 % intervals of so few runs hold it a
    little less often than 95 %."""
    rng = np.random.default_rng(1)
    held, false_alarms, found, studies = 0, 0, 0, 150
    for k in range(studies):
        seeds = rng.normal(0, 1, (2, 10))  # what the two variants share
        ours, theirs, same = (list(seeds + rng.normal(0, 0.5, (2, 10))) for _ in range(3))
        held += (e := statistics.iqm_interval(ours, 300, k)).low <= 0.0 <= e.high
        false_alarms += (
            statistics.verdict(statistics.paired_difference(ours, theirs, 300, k), "higher") != "not distinguishable"
        )
        better = [x + 0.6 for x in same]
        found += statistics.verdict(statistics.paired_difference(better, theirs, 300, k), "higher") == "better"
    assert 0.87 <= held / studies <= 0.99
    assert false_alarms / studies <= 0.10
    assert found / studies >= 0.85
