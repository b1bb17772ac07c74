"""What a benchmark found, as a table and as JSON. Nothing in it names the machine, its user or its folders."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import sb3_nser

PACKAGES = ("numpy", "torch", "numba", "stable_baselines3")


@dataclass(frozen=True)
class Measurement:
    """
    How long one operation took.

    :param name: the operation
    :param backend: ``"sb3"`` for SB3's own buffer, else ``"numba"`` or ``"numpy"``
    :param rows: transitions in the full buffer
    :param median_us: median over all rounds, microseconds
    :param quartiles_us: first and third quartile, microseconds
    :param ratio_to_sb3: median over rounds of the ratio to SB3 in the same round; ``None`` where SB3 has no counterpart
    """

    name: str
    backend: str
    rows: int
    median_us: float
    quartiles_us: tuple[float, float]
    ratio_to_sb3: float | None


@dataclass(frozen=True)
class Target:
    """
    A limit the project has set itself.

    :param name: what is limited
    :param value: what was found
    :param limit: still allowed
    :param better: which direction is better
    """

    name: str
    value: float
    limit: float
    better: Literal["higher", "lower"] = "lower"

    @property
    def met(self) -> bool:
        """Whether the limit is kept."""
        return self.value <= self.limit if self.better == "lower" else self.value >= self.limit


@dataclass(frozen=True)
class Report:
    """
    Results of one benchmark and where they come from.

    :param command: what was run
    :param measurements: times
    :param targets: limits and whether they are kept
    :param extra: what else was found, plain JSON data
    :param notes: sentences for the reader of the table
    :param count: what ``rows`` of a measurement counts
    :param tables: Markdown tables of what is no time, shown first
    """

    command: str
    measurements: Sequence[Measurement]
    targets: Sequence[Target]
    extra: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    count: str = "rows"
    tables: Sequence[str] = ()
    date: str = field(default_factory=lambda: datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"))

    def as_json(self) -> str:
        """:return: everything, for a program to read"""
        content = {
            "command": self.command,
            "date": self.date,
            "versions": versions(),
            "python": platform.python_version(),
            "machine": {"architecture": platform.machine(), "cpus": os.cpu_count(), "load_average": _load()},
            "measurements": [asdict(one) for one in self.measurements],
            **self.extra,
            "targets": [{**asdict(one), "met": one.met} for one in self.targets],
        }
        return json.dumps(content, indent=2, allow_nan=False) + "\n"

    def as_text(self) -> str:
        """:return: tables that read well and are Markdown too"""
        times = [times_table(self.measurements, self.count)] if self.measurements else []
        limits = [targets_table(self.targets)] if self.targets else []
        return "\n\n".join([*self.tables, *times, *limits, *self.notes])


def times_table(measurements: Sequence[Measurement], count: str = "rows") -> str:
    """
    :param measurements: in the order of the lines
    :param count: what their ``rows`` count
    :return: a Markdown table
    """
    lines = [
        (
            one.name,
            one.backend,
            f"{one.rows:,}",
            duration(one.median_us),
            " – ".join(duration(value) for value in one.quartiles_us),
            "" if one.ratio_to_sb3 is None else f"{one.ratio_to_sb3:.2f}",
        )
        for one in measurements
    ]
    return table(("operation", "backend", count, "median", "middle half", "ratio to SB3"), lines)


def targets_table(targets: Sequence[Target]) -> str:
    """
    :param targets: in the order of the lines
    :return: a Markdown table
    """
    lines = [
        (one.name, f"{one.value:.4g}", f"{'≤' if one.better == 'lower' else '≥'} {one.limit:g}", "yes" if one.met else "no")
        for one in targets
    ]
    return table(("target", "value", "limit", "met"), lines)


def versions() -> dict[str, str | None]:
    """:return: this package and those it was measured with; ``None`` for one that is not installed"""
    found: dict[str, str | None] = {"sb3_nser": sb3_nser.__version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # not on Windows


def duration(microseconds: float) -> str:
    """
    :param microseconds: a time
    :return: the same with a unit that suits it
    """
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} µs"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """
    :param head: names of the columns
    :param lines: cells
    :return: a Markdown table with columns of even width
    """
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    rows = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *lines)]
    rows.insert(1, " | ".join("-" * width for width in widths))
    return "\n".join(f"| {row} |" for row in rows)
