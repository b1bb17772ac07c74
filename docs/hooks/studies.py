"""Fills the results page from the files that ``sb3-nser compare`` wrote, so that no figure is copied by hand.

A line ``<!-- summary FOLDER metrics=auc,final groups=A,B -->`` becomes the interquartile means of ``FOLDER/summary.csv``,
``<!-- comparisons FOLDER against=uniform metric=auc -->`` the paired comparisons of ``FOLDER/comparisons.csv``,
and ``<!-- diagnostics FOLDER -->`` ``FOLDER/diagnostics.csv``. ``variants=`` and ``groups=`` choose rows; several
values are separated by commas, and ``~`` stands for a space. Targets are filled in by benchmarks.py.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_MARKER = re.compile(r"^<!-- (\w+) ([\w/]+)((?: [^\s=]+=[^\s]+)*) -->$", re.MULTILINE)
_TITLES = {"auc": "area under the curve", "final": "final performance", "steps_to_threshold": "steps to threshold"}
_DIAGNOSTICS = {
    "ess": "ESS / batch",
    "coverage": "coverage",
    "mean_score": "mean score",
    "value": "value at the start",
    "discounted_return": "discounted return that follows",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs' event: replaces the markers of one page."""
    folder = Path(page.file.abs_src_path).parent

    def fill(found: re.Match[str]) -> str:
        kind, name = found[1], found[2]
        options = {key: value.replace("~", " ").split(",") for key, value in (part.split("=", 1) for part in found[3].split())}
        if kind not in _KINDS:
            raise PluginError(f"{page.file.src_path}: there is no table {kind!r}; there are {', '.join(_KINDS)}")
        file, make = _KINDS[kind]
        with (folder / name / file).open(encoding="utf-8", newline="") as handle:
            return make(list(csv.DictReader(handle)), options)

    return _MARKER.sub(fill, markdown)


def _summary(rows: list[dict[str, str]], options: dict[str, list[str]]) -> str:
    metrics = options.get("metrics", list(_TITLES))
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = defaultdict(dict)
    for row in _chosen(rows, options):
        found[row["group"], row["variant"]][row["metric"]] = row
    head = ["environment", "variant", *(_TITLES[metric] for metric in metrics), "runs"]
    body = []
    for (group, variant), mine in found.items():
        runs = next(iter(mine.values()))["runs"]
        body.append([group, variant, *(_interval(mine.get(m), "value", "low", "high") for m in metrics), runs])
    return _table(head, body)


def _comparisons(rows: list[dict[str, str]], options: dict[str, list[str]]) -> str:
    metric = options.get("metric", ["auc"])[0]
    against = options.get("against", ["uniform"])
    fewer = metric == "steps_to_threshold"  # of an area, which is better the higher it is, a reduction says nothing
    body = [
        [
            row["group"],
            f"{row['variant']} against {row['against']}",
            _interval(row, "difference_value", "difference_low", "difference_high"),
            *([_interval(row, "reduction_value", "reduction_low", "reduction_high", percent=True)] if fewer else []),
            _interval(row, "probability_value", "probability_low", "probability_high"),
            row["verdict"],
        ]
        for row in _chosen(rows, options)
        if row["metric"] == metric and row["against"] in against
    ]
    head = [f"difference of {_TITLES[metric]}", *(["reduction"] if fewer else []), "P(improvement)", "verdict"]
    return _table(["environment", "variant", *head], body)


def _diagnostics(rows: list[dict[str, str]], options: dict[str, list[str]]) -> str:
    rows = _chosen([{**row, "group": row["environment"]} for row in rows], options)
    body = [[row["group"], row["variant"], *(_number(float(row[name] or "nan")) for name in _DIAGNOSTICS)] for row in rows]
    return _table(["environment", "variant", *_DIAGNOSTICS.values()], body)


def _chosen(rows: list[dict[str, str]], options: dict[str, list[str]]) -> list[dict[str, str]]:
    groups, variants = options.get("groups"), options.get("variants")
    kept = [row for row in rows if (not groups or row["group"] in groups) and (not variants or row["variant"] in variants)]
    if not kept:
        raise PluginError(f"no row has groups={groups}, variants={variants}")
    return kept


def _interval(row: dict[str, str] | None, value: str, low: str, high: str, percent: bool = False) -> str:
    if row is None or not row[value]:
        return "–"
    numbers = [float(row[name]) if row[name] else math.nan for name in (value, low, high)]
    if percent:
        return f"{100 * numbers[0]:.0f} % [{100 * numbers[1]:.0f}, {100 * numbers[2]:.0f}]"
    return f"{_number(numbers[0])} [{_number(numbers[1])}, {_number(numbers[2])}]"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_KINDS: dict[str, Any] = {
    "summary": ("summary.csv", _summary),
    "comparisons": ("comparisons.csv", _comparisons),
    "diagnostics": ("diagnostics.csv", _diagnostics),
}
