"""From evaluations to numbers with intervals, comparisons, verdicts and targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from sb3_nser.bench.report import Target
from sb3_nser.study import statistics
from sb3_nser.study.cells import Cell, baselines
from sb3_nser.study.load import LoadedStudy
from sb3_nser.study.spec import METRICS, EnvironmentSpec, TargetSpec
from sb3_nser.study.statistics import Estimate, FloatArray

BETTER = {"auc": "higher", "final": "higher", "steps_to_threshold": "lower"}
CURVE_RESAMPLES = 1_000


@dataclass(frozen=True)
class Group:
    """
    Environments that are looked at together.

    :param name: an environment's name, a category or ``all``
    :param environments: its environments
    """

    name: str
    environments: tuple[EnvironmentSpec, ...]

    @property
    def single(self) -> bool:
        """Whether it is one environment, whose own units are kept; otherwise scores are put on the scale of ``range``."""
        return len(self.environments) == 1


@dataclass(frozen=True)
class Analysis:
    """
    :param runs: one row per run: ``environment, variant, seed, auc, final, steps_to_threshold, reached``
    :param summary: per group, variant and metric the IQM over runs with its interval
    :param comparisons: per group, variant, metric and other variant the paired difference, the reduction, the probability of
        improvement and the verdict
    :param curves: per environment, variant and step the IQM of the score with its interval
    :param targets: in the form of the benchmarks, with None for what could not be computed
    """

    runs: pd.DataFrame
    summary: pd.DataFrame
    comparisons: pd.DataFrame
    curves: pd.DataFrame
    targets: list[dict[str, Any]]


def evaluations(cells: Sequence[Cell], results: Mapping[str, dict[str, Any]]) -> pd.DataFrame:
    """
    :param cells: the grid
    :param results: key -> result of the finished ones
    :return: one row per evaluation, ordered as the grid
    """
    rows = []
    for cell in cells:
        result = results.get(cell.key)
        for one in [] if result is None else result["evaluations"]:
            rules = one.get("rules_active")
            flat = {key: value for key, value in one.items() if key != "rules_active"}
            place = {"environment": cell.environment, "variant": cell.variant, "seed": cell.seed}
            rows.append({**place, **flat, "rules_active": None if rules is None else len(rules)})
    columns = ["environment", "variant", "seed", "step", "score", "return", "success", "length", "discounted_return", "value",
               "episodes", "updates", "seconds", "ess", "coverage", "mean_score", "rule_fraction", "beta",
               "rules_active"]  # fmt: skip
    frame = pd.DataFrame(rows, columns=columns)
    numbers = columns[4:]
    frame[numbers] = frame[numbers].astype("float64")
    return frame


def diagnostics(table: pd.DataFrame) -> pd.DataFrame:
    """
    :param table: what ``evaluations`` returned
    :return: one row per environment and variant: means over seeds of what says why a variant helps or hurts; ``ess``,
        ``coverage``, ``mean_score``, ``rule_fraction`` and ``rules_active`` over all evaluations but that of step 0, ``value``
        (at the start of an episode), ``discounted_return`` (that then follows) and ``updates`` of the last one
    """
    keys = ["environment", "variant"]
    over_all = ["ess", "coverage", "mean_score", "rule_fraction", "rules_active"]
    at_the_end = ["value", "discounted_return", "updates"]
    trained = table[table["step"] > 0].groupby(keys, sort=False)[over_all].mean()
    last = table.sort_values("step").groupby([*keys, "seed"], sort=False).tail(1)
    ends = last.groupby(keys, sort=False)[at_the_end].mean()
    return trained.join(ends).reset_index()


def analyse(loaded: LoadedStudy, table: pd.DataFrame) -> Analysis:
    """
    :param loaded: the study
    :param table: what ``evaluations`` returned
    :return: everything that is computed from it
    """
    runs = _runs(loaded, table)
    groups = groups_of(loaded)
    summary, compared = [], []
    for group in groups:
        for metric in METRICS:
            if not _usable(group, metric):
                continue
            for variant in loaded.variants:
                values = _values(runs, group, variant.name, metric)
                estimate = statistics.iqm_interval([s.to_numpy() for s in values], loaded.study.resamples)
                summary.append({"group": group.name, "variant": variant.name, "metric": metric, **asdict(estimate),
                                "reached": _reached(runs, group, variant.name) if metric == METRICS[2] else None})  # fmt: skip
                for other in baselines(loaded.study, loaded.variants, variant):
                    compared.append(_compare(loaded, runs, group, metric, variant.name, other))
    names = ["group", "metric", "variant", "against", *(f"{s}_{p}" for s in ("difference", "reduction", "probability")
             for p in ("value", "low", "high")), "pairs", "verdict"]  # fmt: skip
    return Analysis(
        runs,
        pd.DataFrame(summary, columns=["group", "variant", "metric", "value", "low", "high", "runs", "reached"]),
        pd.DataFrame(compared, columns=names),
        _curves(table),
        [_target(loaded, runs, groups, target) for target in loaded.study.targets],
    )


def groups_of(loaded: LoadedStudy) -> list[Group]:
    """:return: every environment, every category of several, and all of several environments"""
    specs = loaded.study.environments
    groups = [Group(spec.label, (spec,)) for spec in specs]
    names = {group.name for group in groups}
    for category in dict.fromkeys(spec.category for spec in specs if spec.category):
        members = tuple(spec for spec in specs if spec.category == category)
        if category not in names and (len(members) > 1 or len(specs) > 1):
            groups.append(Group(category, members))
    if "all" not in {group.name for group in groups}:
        groups.append(Group("all", tuple(specs)))
    return groups if len(specs) > 1 else groups[:1]


def _usable(group: Group, metric: str) -> bool:
    if metric == "steps_to_threshold":
        return all(spec.threshold is not None for spec in group.environments)
    return group.single or all(spec.range is not None or spec.success is not None for spec in group.environments)


def _runs(loaded: LoadedStudy, table: pd.DataFrame) -> pd.DataFrame:
    thresholds = {spec.label: spec.threshold for spec in loaded.study.environments}
    rows = []
    for key, run in table.groupby(["environment", "variant", "seed"], sort=False):
        environment, variant, seed = key
        steps, scores = run["step"].to_numpy(), run["score"].to_numpy()
        threshold = thresholds[environment]
        reaching: tuple[float, bool | None] = (math.nan, None)
        if threshold is not None:
            reaching = statistics.steps_to_threshold(steps, scores, threshold)
        rows.append([environment, variant, seed, statistics.area_under_curve(steps, scores),
                     statistics.final_performance(steps, scores), *reaching])  # fmt: skip
    return pd.DataFrame(rows, columns=["environment", "variant", "seed", *METRICS, "reached"])


def _values(runs: pd.DataFrame, group: Group, variant: str, metric: str) -> list[pd.Series[float]]:
    """Per environment a series over seeds; on one scale if there are several environments."""
    found = []
    for spec in group.environments:
        mine = runs[(runs["environment"] == spec.label) & (runs["variant"] == variant)]
        values = mine.set_index("seed")[metric].astype("float64")
        if not group.single and metric != "steps_to_threshold":
            low, high = spec.range or (0.0, 1.0)
            values = (values - low) / (high - low)
        found.append(values)
    return found


def _reached(runs: pd.DataFrame, group: Group, variant: str) -> float | None:
    names = [spec.label for spec in group.environments]
    mine = runs[runs["environment"].isin(names) & (runs["variant"] == variant)]
    return float(mine["reached"].astype("float64").mean()) if len(mine) else None


def _pairs(runs: pd.DataFrame, group: Group, metric: str, ours: str, theirs: str) -> tuple[list[FloatArray], list[FloatArray]]:
    a, b = [], []
    for mine, other in zip(_values(runs, group, ours, metric), _values(runs, group, theirs, metric), strict=True):
        seeds = [seed for seed in mine.index if seed in other.index]
        a.append(mine.loc[seeds].to_numpy())
        b.append(other.loc[seeds].to_numpy())
    return a, b


def _compare(loaded: LoadedStudy, runs: pd.DataFrame, group: Group, metric: str, ours: str, theirs: str) -> dict[str, Any]:
    a, b = _pairs(runs, group, metric, ours, theirs)
    resamples, better = loaded.study.resamples, BETTER[metric]
    sign = 1.0 if better == "higher" else -1.0
    difference = statistics.paired_difference(a, b, resamples)
    reduction = statistics.paired_reduction(a, b, resamples)
    probability = statistics.improvement_probability([sign * x for x in a], [sign * x for x in b], resamples)
    row: dict[str, Any] = {"group": group.name, "metric": metric, "variant": ours, "against": theirs}
    for name, estimate in (("difference", difference), ("reduction", reduction), ("probability", probability)):
        row |= {f"{name}_value": estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return {**row, "pairs": difference.runs, "verdict": statistics.verdict(difference, better)}


def _curves(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for key, scores in table.groupby(["environment", "variant", "step"], sort=False)["score"]:
        estimate = statistics.iqm_interval([scores.to_numpy()], CURVE_RESAMPLES)
        rows.append([*key, estimate.value, estimate.low, estimate.high, estimate.runs])
    return pd.DataFrame(rows, columns=["environment", "variant", "step", "value", "low", "high", "runs"])


def _target(loaded: LoadedStudy, runs: pd.DataFrame, groups: Sequence[Group], target: TargetSpec) -> dict[str, Any]:
    group = next((one for one in groups if one.name == target.environments), None)
    if group is None:  # "all" or a category, of the only environment
        group = groups[0]
    value = _target_value(loaded, runs, group, target).value if _usable(group, target.metric) else math.nan
    if not math.isfinite(value):
        return {"name": target.label, "value": None, "limit": target.limit, "better": target.better, "met": False}
    checked = Target(target.label, value, target.limit, target.better)
    return {**asdict(checked), "met": checked.met}


def _target_value(loaded: LoadedStudy, runs: pd.DataFrame, group: Group, target: TargetSpec) -> Estimate:
    resamples = loaded.study.resamples
    if target.against is None:
        return statistics.iqm_interval([s.to_numpy() for s in _values(runs, group, target.variant, target.metric)], resamples)
    a, b = _pairs(runs, group, target.metric, target.variant, target.against)
    if target.statistic == "probability_of_improvement":
        sign = 1.0 if BETTER[target.metric] == "higher" else -1.0
        return statistics.improvement_probability([sign * x for x in a], [sign * x for x in b], resamples)
    compute: Callable[..., Estimate] = (
        statistics.paired_difference if target.statistic == "difference" else statistics.paired_reduction
    )
    return compute(a, b, resamples)


def pairing(cells: Sequence[Cell], results: Mapping[str, dict[str, Any]]) -> str:
    """
    :param cells: the grid
    :param results: key -> result of the finished ones
    :return: in a sentence, whether the runs of each environment and seed began with the same network and the same actions
    """
    begun: dict[tuple[str, int, str], set[str]] = {}
    actions: dict[tuple[str, int, str], set[str]] = {}
    for cell in cells:
        result = results.get(cell.key)
        if result is not None:
            # hyper-parameters that a variant changes may change the network
            algorithm = str(cell.algorithm)
            starts = cell.algorithm["hyperparameters"].get("learning_starts", 100)
            explored = result["first_actions"][: int(starts) // int(cell.env["n_envs"])] if isinstance(starts, int) else []
            begun.setdefault((cell.environment, cell.seed, algorithm), set()).add(result["initial"])
            actions.setdefault((cell.environment, cell.seed, algorithm), set()).add(str(explored))
    odd = [key for key in begun if len(begun[key]) > 1 or len(actions[key]) > 1]
    if not odd:
        return "For every environment and seed, all variants began with the same networks and the same exploratory actions."
    names = ", ".join(f"{environment} seed {seed}" for environment, seed, _ in odd[:5])
    return f"NOT PAIRED: variants began with different networks or actions in {names}; were they run with the same versions?"


def as_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """:return: rows as plain values, None for what is not a number"""
    return [
        {key: None if isinstance(v, float | np.floating) and not math.isfinite(v) else v for key, v in row.items()}
        for row in frame.to_dict("records")
    ]
