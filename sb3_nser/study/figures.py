"""Pictures of a study and of a run: narrow enough for a phone, told apart by line and marker as well as by colour."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import matplotlib.ticker
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

# from the colour-blind-safe sets of Wong (2011) and Tol (2021), and black; contrast with white at least 3 to 1
COLOURS = ("#000000", "#0072B2", "#D55E00", "#117733", "#AA4499", "#332288", "#7F6A00", "#882255", "#44758F", "#8C564B")
_LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_MARKERS = "osD^vPX*<>"
_SVG: Any = {"svg.hashsalt": "sb3-nser", "svg.fonttype": "path"}
_WIDTH = 4.3
_VERDICTS = {
    "supported": ("#117733", "^"),
    "refuted": ("#D55E00", "v"),
    "inconclusive": ("#332288", "o"),
    "no_evidence": ("#666666", "x"),
    "never_fires": ("#666666", "_"),
    "always_fires": ("#666666", "|"),
}
TITLES = {"auc": "area under the curve", "final": "final performance", "steps_to_threshold": "steps to threshold"}


def style(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """:return: name -> arguments of matplotlib's lines; the same variant looks the same in every picture"""
    return {
        name: {
            "color": COLOURS[k % len(COLOURS)],
            "linestyle": _LINES[k % len(_LINES)],
            "marker": _MARKERS[k % len(_MARKERS)],
        }
        for k, name in enumerate(names)
    }


def curves(frame: pd.DataFrame, names: Sequence[str], title: str, ylabel: str, threshold: float | None = None) -> Figure:
    """
    :param frame: rows of one environment: ``variant, step, value, low, high``
    :param names: all variants, in order
    :param title: of the picture
    :param ylabel: what is measured
    :param threshold: drawn as a line, None for none
    :return: the sample-efficiency curve: IQM with its interval over environment steps
    """
    figure, axes = _figure(3.1)
    looks = style(names)
    for k, name in enumerate(names):
        mine = frame[frame["variant"] == name].sort_values("step")
        if mine.empty:
            continue
        every = max(1, len(mine) // 6)
        axes.plot(mine["step"], mine["value"], label=name, lw=1.5, ms=4, markevery=(k % every, every), **looks[name])
        axes.fill_between(mine["step"], mine["low"], mine["high"], color=looks[name]["color"], alpha=0.1, lw=0)
    if threshold is not None:
        axes.axhline(threshold, color="#666666", lw=0.8, ls=":")
    _label(axes, title, "environment steps", ylabel)
    _legend(figure, axes)
    return figure


def intervals(rows: pd.DataFrame, names: Sequence[str], title: str, label: str) -> Figure:
    """
    :param rows: ``variant, value, low, high``
    :param names: all variants, in order
    :param title: of the picture
    :param label: what is measured
    :return: one point with an interval per variant
    """
    found = rows.set_index("variant")
    shown = [name for name in names if name in found.index and np.isfinite(float(found.loc[name, "value"]))]
    labels = [_wrapped(name) for name in shown]
    lines = max((label.count("\n") + 1 for label in labels), default=1)
    figure, axes = _figure(0.9 + (0.12 + 0.14 * lines) * max(1, len(shown)))
    looks = style(names)
    for k, name in enumerate(shown):
        value, low, high = (float(found.loc[name, column]) for column in ("value", "low", "high"))
        look = looks[name]
        if np.isfinite(low):
            axes.plot([low, high], [k, k], color=look["color"], lw=4, alpha=0.35, solid_capstyle="butt")
        axes.plot([value], [k], color=look["color"], marker=look["marker"], ms=6, ls="none")
    axes.set_yticks(range(len(shown)), labels)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    _label(axes, title, label, "")
    return figure


def differences(rows: pd.DataFrame, names: Sequence[str], title: str, label: str) -> Figure:
    """
    :param rows: ``variant, difference_value, difference_low, difference_high``, against one other variant
    :param names: all variants, in order
    :param title: of the picture
    :param label: what is measured
    :return: paired differences with intervals, and a line at 0
    """
    columns = {f"difference_{part}": part for part in ("value", "low", "high")}
    figure = intervals(rows[["variant", *columns]].rename(columns=columns), names, title, label)
    figure.axes[0].axvline(0.0, color="#666666", lw=0.8, ls=":")
    return figure


def timeline(spans: Mapping[str, Sequence[int]], steps: Sequence[int], rounds: Sequence[int], title: str) -> Figure:
    """
    :param spans: rule (a short name) -> steps at which it was in force
    :param steps: all steps at which this was looked at
    :param rounds: steps at which an answer was applied
    :param title: of the picture
    :return: when which rule was in force
    """
    figure, axes = _figure(0.9 + 0.24 * max(1, len(spans)))
    for k, active in enumerate(spans.values()):
        bars = [(a, b - a) for a, b in zip(steps, [*steps[1:], steps[-1]], strict=True) if a in set(active)]
        axes.broken_barh(bars, (k - 0.35, 0.7), color=COLOURS[1])
    for step in rounds:
        axes.axvline(step, color=COLOURS[2], lw=0.8, ls="--")
    axes.set_yticks(range(len(spans)), list(spans))
    axes.set_ylim(len(spans) - 0.4, -0.6)
    axes.set_xlim(min(steps, default=0), max(steps, default=1) or 1)
    _label(axes, title, "environment steps", "")
    return figure


def judgements(histories: Mapping[str, Sequence[tuple[int, str]]], title: str) -> Figure:
    """
    :param histories: rule (a short name) -> (step, verdict) of its judgements
    :param title: of the picture
    :return: one row of marks per rule
    """
    figure, axes = _figure(1.3 + 0.24 * max(1, len(histories)))
    verdicts = list(dict.fromkeys(verdict for history in histories.values() for _, verdict in history))
    for verdict in verdicts:
        points = [(step, k) for k, history in enumerate(histories.values()) for step, given in history if given == verdict]
        color, marker = _VERDICTS.get(verdict, ("#666666", "."))
        steps, rows = zip(*points, strict=True)
        axes.plot(steps, rows, color=color, marker=marker, ms=5, ls="none", label=verdict.replace("_", " "))
    axes.set_yticks(range(len(histories)), list(histories))
    axes.set_ylim(len(histories) - 0.4, -0.6)
    _label(axes, title, "environment steps", "")
    _legend(figure, axes)
    return figure


def series(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str) -> Figure:
    """
    :param lines: name -> (steps, values)
    :param title: of the picture
    :return: values over environment steps
    """
    figure, axes = _figure(2.6)
    looks = style(list(lines))
    for name, (steps, values) in lines.items():
        look = {**looks[name], "marker": None if len(steps) > 30 else looks[name]["marker"]}
        axes.plot(steps, values, label=name, lw=1.3, ms=4, **look)
    _label(axes, title, "environment steps", "")
    if len(lines) > 1:
        _legend(figure, axes)
    return figure


def svg(figure: Figure) -> str:
    """:return: the picture as an ``<svg>`` element whose width follows the page, the same bytes for the same data"""
    with matplotlib.rc_context(_SVG):
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def png(figure: Figure) -> bytes:
    """:return: the picture as PNG"""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=200, metadata={"Software": None})
    return stream.getvalue()


def _figure(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize=9)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_short))
    return figure, axes


def _short(value: float, _: object) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _label(axes: Any, title: str, xlabel: str, ylabel: str) -> None:
    axes.figure.suptitle(title, fontsize=10, x=0.01, ha="left")  # over the whole width, however long the names beside it
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)


def _wrapped(name: str) -> str:
    """A variant's name in lines that leave room for the picture: names of sweeps are long."""
    return "\n".join(textwrap.wrap(name, 26, break_on_hyphens=False))


def _legend(figure: Figure, axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    labels = ["\n".join(textwrap.wrap(name, 60, break_on_hyphens=False)) for name in names]
    if labels:
        columns = 1 if max(map(len, labels)) > 28 else 2
        rows = sum(label.count("\n") + 1 for label in labels) / columns
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.16 * max(0.0, rows - 3.0))  # many variants must not squeeze the picture
        figure.legend(handles, labels, loc="outside lower left", fontsize=8, ncols=columns, frameon=False, handlelength=3)
