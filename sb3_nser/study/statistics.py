"""Interquartile means, stratified bootstrap intervals and probabilities of improvement.

Defined as by Agarwal et al. 2021 (rliable, arXiv 2108.13264), computed with SciPy. A *stratum* is one environment: an array
of one number per run. Runs are resampled within their environment; differences and reductions resample pairs of runs with
the same seed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import integrate, stats

FloatArray = npt.NDArray[np.float64]
TRIM = 0.25
"""Share of the runs that the interquartile mean leaves out at either end."""
MIN_SEEDS = 6
"""Fewer paired runs give no verdict: by chance alone five of five differences have the same sign in 6 % of studies."""
_PAIRS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Estimate:
    """
    A number with its interval.

    :param value: point estimate, NaN without runs
    :param low: lower end of the 95 % interval, NaN for fewer than two runs
    :param high: upper end
    :param runs: smallest number of runs (or pairs of runs) of an environment
    """

    value: float
    low: float
    high: float
    runs: int


def iqm(scores: npt.ArrayLike, axis: int | None = None) -> Any:
    """
    :param scores: any shape
    :param axis: axis to average over, None for all
    :return: the mean of the middle half
    """
    return stats.trim_mean(scores, TRIM, axis=axis)


def iqm_interval(strata: Sequence[FloatArray], resamples: int, seed: int = 0) -> Estimate:
    """
    :param strata: one array of runs per environment, on one scale
    :param resamples: bootstrap resamples
    :param seed: of the resampling
    :return: the interquartile mean over all runs of all environments
    """

    def statistic(*samples: FloatArray, axis: int = -1) -> Any:
        return iqm(np.concatenate(samples, axis=axis), axis=axis)

    return _bootstrap(list(strata), statistic, resamples, seed)


def paired_difference(ours: Sequence[FloatArray], theirs: Sequence[FloatArray], resamples: int, seed: int = 0) -> Estimate:
    """
    :param ours: per environment one number per seed
    :param theirs: the same of the other variant, seeds in the same order
    :return: IQM of ours − IQM of theirs
    """
    return _paired(ours, theirs, lambda a, b: a - b, resamples, seed)


def paired_reduction(ours: Sequence[FloatArray], theirs: Sequence[FloatArray], resamples: int, seed: int = 0) -> Estimate:
    """
    :param ours: per environment one number per seed
    :param theirs: the same of the other variant, seeds in the same order
    :return: 1 − IQM of ours / IQM of theirs; 0.2 is 20 % less
    """

    def share(a: Any, b: Any) -> Any:
        with np.errstate(divide="ignore", invalid="ignore"):
            return 1.0 - np.asarray(a) / np.asarray(b)

    return _paired(ours, theirs, share, resamples, seed)


def improvement_probability(
    ours: Sequence[FloatArray], theirs: Sequence[FloatArray], resamples: int, seed: int = 0
) -> Estimate:
    """
    The chance that a run of ours is above a run of theirs, ties for a half (the Mann-Whitney statistic over its largest
    value), averaged over environments. Runs of the two are resampled independently, as by rliable.

    :param ours: one array of runs per environment; higher is better
    :param theirs: the same of the other variant
    :return: the probability
    """
    k = len(ours)

    def statistic(*samples: FloatArray, axis: int = -1) -> Any:
        chances = []
        for a, b in zip(samples[:k], samples[k:], strict=True):
            a, b = a[..., :, None], b[..., None, :]
            chances.append((a > b).mean(axis=(-2, -1)) + 0.5 * (a == b).mean(axis=(-2, -1)))
        return np.mean(chances, axis=0)

    pairs = max(len(a) * len(b) for a, b in zip(ours, theirs, strict=True)) if ours else 1
    return _bootstrap([*ours, *theirs], statistic, resamples, seed, batch=max(1, _PAIRS_AT_ONCE // max(1, pairs)))


def verdict(difference: Estimate, better: str) -> str:
    """
    :param difference: of a metric, with its interval
    :param better: ``higher`` or ``lower``
    :return: ``better``, ``worse`` or ``not distinguishable`` (the interval holds 0), or that there are too few runs
    """
    if difference.runs < MIN_SEEDS or not math.isfinite(difference.low):
        return f"too few seeds ({difference.runs} of at least {MIN_SEEDS})"
    if difference.low <= 0.0 <= difference.high:
        return "not distinguishable"
    return "better" if (difference.low > 0.0) == (better == "higher") else "worse"


def area_under_curve(steps: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """:return: the mean score over the steps, by the trapezoidal rule; the only score itself if there is one"""
    at, values = np.asarray(steps, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    return float(values[0]) if len(at) == 1 else float(integrate.trapezoid(values, at) / (at[-1] - at[0]))


def final_performance(steps: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """:return: the mean score of the evaluations in the last tenth of the steps, the last one always among them"""
    at, values = np.asarray(steps, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    return float(values[at >= 0.9 * at[-1]].mean())


def steps_to_threshold(steps: npt.ArrayLike, scores: npt.ArrayLike, threshold: float) -> tuple[float, bool]:
    """:return: the step of the first evaluation with at least this score and True; the last step and False if there is none"""
    at, values = np.asarray(steps, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    reached = np.flatnonzero(values >= threshold)
    return (float(at[reached[0]]), True) if len(reached) else (float(at[-1]), False)


def _paired(
    ours: Sequence[FloatArray], theirs: Sequence[FloatArray], combine: Callable[[Any, Any], Any], resamples: int, seed: int
) -> Estimate:
    # seeds are resampled, and both variants give the runs of the seeds that were drawn
    def statistic(*chosen: npt.NDArray[np.int64], axis: int = -1) -> Any:
        a = np.concatenate([values[index] for values, index in zip(ours, chosen, strict=True)], axis=axis)
        b = np.concatenate([values[index] for values, index in zip(theirs, chosen, strict=True)], axis=axis)
        return combine(iqm(a, axis=axis), iqm(b, axis=axis))

    return _bootstrap([np.arange(len(values)) for values in ours], statistic, resamples, seed)


def _bootstrap(
    samples: Sequence[npt.NDArray[Any]], statistic: Callable[..., Any], resamples: int, seed: int, batch: int | None = None
) -> Estimate:
    runs = min((len(sample) for sample in samples), default=0)
    if runs == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(statistic(*samples, axis=-1))
    if runs == 1:
        return Estimate(value, math.nan, math.nan, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of resamples that are all alike, or whose ratio has no value: the interval says so
        found = stats.bootstrap(
            tuple(samples),
            statistic,
            n_resamples=resamples,
            batch=batch,
            vectorized=True,
            paired=False,
            axis=-1,
            confidence_level=0.95,
            method="percentile",
            rng=np.random.default_rng(seed),
        )
    return Estimate(value, float(found.confidence_interval.low), float(found.confidence_interval.high), runs)
