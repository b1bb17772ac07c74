"""The page of a study: verdicts first, then what they rest on."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sb3_nser.study import figures
from sb3_nser.study.analysis import Analysis, diagnostics, groups_of, pairing
from sb3_nser.study.cells import Cell
from sb3_nser.study.load import LoadedStudy
from sb3_nser.study.page import Block, Details, Items, Picture, Pictures, Section, Table, Text, number, with_interval
from sb3_nser.study.spec import METRICS, EnvironmentSpec
from sb3_nser.study.statistics import MIN_SEEDS

Results = Mapping[str, dict[str, Any]]


def lead(loaded: LoadedStudy, results: Results, failures: Mapping[str, str]) -> str:
    """:return: what was compared, in two sentences"""
    study, cells = loaded.study, loaded.cells
    text = (
        f"{study.algorithm.name} with {_count(len(loaded.variants), 'replay variant')} on "
        f"{_count(len(study.environments), 'environment')}, {_count(len(study.seeds), 'seed')} each: {len(results)} of "
        f"{len(cells)} runs are finished"
    )
    return text + (f", {len(failures)} failed." if failures else ".")


def sections(
    loaded: LoadedStudy, results: Results, failures: Mapping[str, str], table: pd.DataFrame, analysis: Analysis
) -> list[Section]:
    """:return: the whole page"""
    found = [_verdicts(loaded, results, failures, analysis)]
    if loaded.study.targets:
        found.append(_targets(analysis))
    found += [_environment(loaded, spec, analysis) for spec in loaded.study.environments]
    groups = [group for group in groups_of(loaded) if not group.single]
    if groups:
        found.append(Section("Environments together", [block for g in groups for block in _numbers(loaded, g.name, analysis)]))
    rules = _rules(loaded, results)
    if rules.blocks:
        found.append(rules)
    found += [_diagnostics(table), _cost(loaded, results), _definitions(loaded, analysis), _again(loaded, results)]
    return found


def _verdicts(loaded: LoadedStudy, results: Results, failures: Mapping[str, str], analysis: Analysis) -> Section:
    blocks: list[Block] = []
    names = {cell.key: f"{cell.environment}, {cell.variant}, seed {cell.seed}" for cell in loaded.cells}
    if failures:
        blocks.append(Text(f"{_count(len(failures), 'run')} failed; the numbers below are without them.", strong=True))
        blocks.append(Items([f"{names[key]}: {error}" for key, error in failures.items()]))
    missing = len(loaded.cells) - len(results) - len(failures)
    if missing:
        blocks.append(
            Text(f"{_count(missing, 'run')} of {len(loaded.cells)} not run yet: this report is a partial one.", strong=True)
        )
    if len(loaded.study.seeds) < MIN_SEEDS:
        blocks.append(
            Text(
                f"Fewer than {MIN_SEEDS} seeds say nothing about which variant is better; curves and differences are noise.",
                strong=True,
            )
        )
    together = pairing(loaded.cells, results)
    blocks.append(Text(together, strong=together.startswith("NOT")))
    if _mixed_versions(results):
        blocks.append(Text("Runs were made with different versions; see the last section.", strong=True))
    found = analysis.comparisons[analysis.comparisons["metric"] == "auc"]
    for group in dict.fromkeys(found["group"]):
        mine = found[found["group"] == group]
        others = [variant.name for variant in loaded.variants if variant.name in set(mine["against"])]
        rows = []
        for variant in dict.fromkeys(mine["variant"]):
            row: list[object] = [variant]
            for other in others:
                one = mine[(mine["variant"] == variant) & (mine["against"] == other)]
                row.append("–" if one.empty else _verdict_cell(one.iloc[0]))
            rows.append(row)
        caption = f"{group}: area under the curve, paired difference of IQMs with its 95 % interval"
        blocks.append(Table(["variant", *(f"against {other}" for other in others)], rows, caption))
    return Section("Verdicts", blocks)


def _verdict_cell(row: pd.Series[Any]) -> str:
    return f"{row['verdict']}: {with_interval(row['difference_value'], row['difference_low'], row['difference_high'])}"


def _targets(analysis: Analysis) -> Section:
    rows = [
        (
            t["name"],
            number(t["value"], 4),
            f"{'≥' if t['better'] == 'higher' else '≤'} {t['limit']:g}",
            "met" if t["met"] else "not met",
        )
        for t in analysis.targets
    ]
    return Section("Targets", [Table(["target", "value", "limit", ""], rows)])


def _environment(loaded: LoadedStudy, spec: EnvironmentSpec, analysis: Analysis) -> Section:
    names = [variant.name for variant in loaded.variants]
    label, file = spec.label, re.sub(r"[^A-Za-z0-9_.\-]", "_", spec.label)
    measure = "success rate" if spec.success is not None else "return"
    curve = analysis.curves[analysis.curves["environment"] == label]
    if curve.empty:
        return Section(label, [Text("No run is finished.")])
    words = "; ".join(f"{name} ends at {number(_last(curve, name))}" for name in names)
    pictures = [
        Picture(
            figures.curves(curve, names, f"{label}: greedy {measure}", measure, spec.threshold),
            f"Greedy {measure} over environment steps on {label}, interquartile mean: {words}.",
            f"{file}-curve",
        )
    ]
    for metric in METRICS:
        rows = analysis.summary[(analysis.summary["group"] == label) & (analysis.summary["metric"] == metric)]
        if not rows.empty:
            title = figures.TITLES[metric]
            unit = "environment steps" if metric == "steps_to_threshold" else measure
            drawn = figures.intervals(rows, names, f"{label}: {title}", f"IQM of {unit}")
            pictures.append(
                Picture(drawn, f"{title} of each variant on {label}; the numbers are in the table below.", f"{file}-{metric}")
            )
    compared = analysis.comparisons[(analysis.comparisons["group"] == label) & (analysis.comparisons["metric"] == "auc")]
    for other in dict.fromkeys(compared["against"]):
        drawn = figures.differences(
            compared[compared["against"] == other], names, f"{label}: against {other}", "difference of the area"
        )
        alt = f"Paired difference of the area of each variant from {other} on {label}; numbers in the table of verdicts."
        pictures.append(Picture(drawn, alt, f"{file}-against-{re.sub(r'[^A-Za-z0-9_.-]', '_', other)}"))
    return Section(label, [Pictures(pictures), *_numbers(loaded, label, analysis)])


def _numbers(loaded: LoadedStudy, group: str, analysis: Analysis) -> list[Block]:
    mine = analysis.summary[analysis.summary["group"] == group]
    metrics = [metric for metric in METRICS if metric in set(mine["metric"])]
    if not metrics:
        return [Text(f"{group}: the environments have no common scale; give each a range to look at them together.")]
    rows = []
    for variant in loaded.variants:
        row: list[object] = [variant.name]
        for metric in metrics:
            one = mine[(mine["variant"] == variant.name) & (mine["metric"] == metric)].iloc[0]
            text = with_interval(one["value"], one["low"], one["high"])
            if metric == "steps_to_threshold" and one["reached"] is not None and not math.isnan(one["reached"]):
                text += f"; {100 * one['reached']:.0f} % of runs reach it"
            row.append(text)
        rows.append([*row, int(one["runs"])])
    head = ["variant", *(figures.TITLES[metric] for metric in metrics), "runs"]
    tables: list[Block] = [Table(head, rows, f"{group}: IQM and 95 % interval")]
    compared = analysis.comparisons[analysis.comparisons["group"] == group]
    if not compared.empty:
        lines = [
            (
                f"{row['variant']} against {row['against']}",
                figures.TITLES[row["metric"]],
                with_interval(row["difference_value"], row["difference_low"], row["difference_high"]),
                with_interval(row["probability_value"], row["probability_low"], row["probability_high"]),
                row["verdict"],
                row["pairs"],
            )
            for _, row in compared.iterrows()
        ]
        head = ["comparison", "metric", "difference", "probability of improvement", "verdict", "pairs"]
        tables.append(Details(f"{group}: all {len(lines)} comparisons", [Table(head, lines)]))
    return tables


def _rules(loaded: LoadedStudy, results: Results) -> Section:
    section = Section("Rules")
    for spec in loaded.study.environments:
        for variant in loaded.variants:
            cells = [c for c in loaded.cells if c.environment == spec.label and c.variant == variant.name and c.key in results]
            runs = [(cell, results[cell.key]) for cell in cells]
            if any(run["rules"] for _, run in runs):
                section.blocks.append(Details(f"{spec.label}, {variant.name}", _rules_of(spec, variant.name, runs)))
    if section.blocks:
        section.blocks.insert(0, Text("What was proposed, what the data said, and when each rule was in force."))
    return section


def _rules_of(spec: EnvironmentSpec, variant: str, runs: Sequence[tuple[Cell, dict[str, Any]]]) -> list[Block]:
    heard: dict[str, list[dict[str, Any]]] = {}
    for _, run in runs:
        for rule in run["rules"]:
            heard.setdefault(rule["rule"], []).append(rule)
    in_force = {text: sum(text in (run["evaluations"][-1]["rules_active"] or ()) for _, run in runs) for text in heard}
    rows = []
    for text in sorted(heard, key=lambda text: (-in_force[text], -len(heard[text]), text)):
        lifts = [rule["lift"] for rule in heard[text] if rule["lift"] is not None]
        rows.append(
            (text, f"{in_force[text]} of {len(runs)} runs", f"{len(heard[text])}", number(np.mean(lifts) if lifts else None))
        )
    head = ["rule", "in force at the end", "runs that proposed it", "mean lift"]
    blocks: list[Block] = [
        Table(head, rows[:40], f"{len(heard)} different rules" + (", the first 40" if len(rows) > 40 else ""))
    ]
    cell, run = runs[0]
    spans: dict[str, list[int]] = {}
    for one in run["evaluations"]:
        for text in one["rules_active"] or ():
            spans.setdefault(text, []).append(one["step"])
    if spans:
        steps = [one["step"] for one in run["evaluations"]]
        short = {f"rule {k + 1}": at for k, at in enumerate(spans.values())}
        rounds = [one["step"] for one in run["rounds"]]
        drawn = figures.timeline(short, steps, rounds, f"{spec.label}, {variant}, seed {cell.seed}")
        words = "; ".join(
            f"rule {k + 1} ({text}) in {len(at)} of {len(steps)} evaluations" for k, (text, at) in enumerate(spans.items())
        )
        file = re.sub(r"[^A-Za-z0-9_.\-]", "_", f"{spec.label}-{variant}")
        blocks.append(Pictures([Picture(drawn, f"When each rule was in force: {words}.", f"{file}-rules")]))
        blocks.append(Text("Bars: in force, as seen at each evaluation. Dashed lines: an answer was applied. The rules are:"))
        blocks.append(Items([f"rule {k + 1}: {text}" for k, text in enumerate(spans)], code=True))
    return blocks


def _diagnostics(table: pd.DataFrame) -> Section:
    frame = diagnostics(table)
    rows = [
        (f"{row['environment']}, {row['variant']}", *(number(value) for value in row.iloc[2:])) for _, row in frame.iterrows()
    ]
    head = [
        "run",
        "ESS / batch",
        "coverage",
        "mean score",
        "rule fraction",
        "rules in force",
        "value at the start",
        "discounted return",
        "updates",
    ]
    text = (
        "ESS / batch is the effective sample size of a batch over its length (1 for uniform draws); coverage, the share of "
        "the buffer that as many draws as it holds transitions would reach (0.63 for uniform draws). A value far above the "
        "discounted return at the end of training is over-estimation. Means over seeds; the first five also over evaluations."
    )
    return Section("Diagnostics", [Text(text), Table(head, rows)])


def _cost(loaded: LoadedStudy, results: Results) -> Section:
    costs: dict[tuple[str, str], list[dict[str, float]]] = {}
    for cell in loaded.cells:
        if cell.key in results:
            costs.setdefault((cell.environment, cell.variant), []).append(results[cell.key]["cost"])
    uniform = next((variant.name for variant in loaded.variants if variant.kind == "uniform"), None)
    rows = []
    for (environment, variant), found in costs.items():
        pace = float(np.median([one["steps_per_second"] for one in found]))
        base = costs.get((environment, uniform or ""))
        relative = None if base is None else float(np.median([one["steps_per_second"] for one in base])) / pace
        llm = [number(np.mean([one[key] for one in found])) if key in found[0] else "–"
               for key in ("llm_calls", "llm_failures", "llm_seconds", "seconds_waited")]  # fmt: skip
        rows.append((f"{environment}, {variant}", number(pace), number(relative), *llm))
    head = ["run", "steps per second", "time, uniform = 1", "calls", "failed", "seconds of the calls", "seconds waited"]
    text = (
        "Environment steps per second of training, evaluations not counted, median over seeds; calls are means per run. Runs "
        "that share a machine slow each other down, so small differences of time mean nothing. Rules from trees and from "
        "chance are calls too, without a model. A record tells the seconds of the run in which it was made."
    )
    return Section("Cost", [Text(text), Table(head, rows)])


def _definitions(loaded: LoadedStudy, analysis: Analysis) -> Section:
    study = loaded.study
    own = len(analysis.comparisons)
    return Section(
        "How it was measured",
        [
            Items(
                [
                    f"Greedy evaluation every {study.evaluation.every} steps over {study.evaluation.episodes} episodes, whose "
                    "seeds training never uses; the same ones at every evaluation of a run and for every variant of a seed.",
                    "Area under the curve: mean score over the step budget (trapezoidal rule). Final performance: mean of the "
                    "evaluations in the last tenth. Steps to threshold: the first evaluation that reaches it; a run that "
                    "never does counts with the whole budget, which makes differences look smaller than they are.",
                    "IQM: mean of the middle half of the runs. Intervals: 95 % percentile bootstrap, runs resampled within "
                    f"each environment, {study.resamples} resamples; differences resample pairs of runs with the same seed.",
                    "Probability of improvement: chance that a run of one variant beats a run of the other, ties for a half.",
                    f"A verdict is better or worse if the interval of the paired difference leaves 0 out, and needs "
                    f"{MIN_SEEDS} pairs. There are {own} comparisons on this page: about one in twenty of those "
                    "without any effect will leave 0 out by chance.",
                ]
            )
        ],
    )


def _again(loaded: LoadedStudy, results: Results) -> Section:
    versions: dict[str, set[str]] = {}
    for result in results.values():
        for name, version in result["versions"].items():
            if version is not None:
                versions.setdefault(name, set()).add(version)
    rows = [(name, ", ".join(sorted(found))) for name, found in versions.items()]
    commands = ["sb3-nser compare study.yaml --out NEW_FOLDER", "sb3-nser report FOLDER"]
    if loaded.cells:
        commands.append(f"python -m sb3_nser.study.worker FOLDER/cells/{loaded.cells[0].key}/cell.json ONE_RUN")
    blocks: list[Block] = [
        Text("The study, this page anew from what is there, and one run alone:"),
        Items(commands, code=True),
        Table(["package", "version"], rows),
        Details("study.yaml", [Items([loaded.text], code=True)]),
    ]
    return Section("Reproduce it", blocks)


def _mixed_versions(results: Results) -> bool:
    return len({str(sorted(result["versions"].items(), key=str)) for result in results.values()}) > 1


def _last(curve: pd.DataFrame, variant: str) -> float | None:
    mine = curve[curve["variant"] == variant]
    return None if mine.empty else float(mine.sort_values("step")["value"].iloc[-1])


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
