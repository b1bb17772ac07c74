"""A rule book as a table for people, and as flat JSON for programs."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterable, Sequence

from sb3_nser.errors import printable
from sb3_nser.rules.entry import Entry, moved_rule
from sb3_nser.rules.evidence import percent
from sb3_nser.rules.lineage import repair_words, whole_lineage

_TITLES = ("state", "confidence", "lift", "interval", "fires", "acts", "origin", "rule")


def summary(entry: Entry) -> dict[str, typing.Any]:
    """:return: what a reader wants to know of one rule, as plain JSON values; None for what was not measured"""
    evidence, rule = entry.evidence, entry.rule
    measured = evidence is not None and math.isfinite(evidence.lift)
    bounded = evidence is not None and math.isfinite(evidence.low) and math.isfinite(evidence.high)
    return {
        "rule": str(rule),
        "fitted_rule": str(moved_rule(rule, entry.fitted)) if entry.fitted else None,
        "state": state(entry),
        "reason": entry.reason,
        "confidence": entry.confidence,
        "lift": evidence.lift if evidence is not None and measured else None,
        "low": evidence.low if evidence is not None and bounded else None,
        "high": evidence.high if evidence is not None and bounded else None,
        "level": evidence.level if evidence is not None else None,
        "body_rate": evidence.body_rate if evidence is not None else None,
        "head_rate": evidence.head_rate if evidence is not None and math.isfinite(evidence.head_rate) else None,
        "origin": rule.source,
        "lineage": list(whole_lineage(entry)),
        "why": rule.why,
        "id": rule.id,
    }


def state(entry: Entry) -> str:
    """:return: one word: ``off``, ``pinned``, ``prior`` (admitted on the proposer's word), or the status"""
    if not entry.rule.enabled:
        return "off"
    if entry.rule.pinned and entry.status == "admitted":
        return "pinned"
    return "prior" if entry.on_prior else entry.status


def table(entries: Iterable[Entry], reasons: bool = False) -> list[str]:
    """
    :param entries: the rules, in the order in which they are shown
    :param reasons: True adds a line with each rule's reason and its proposer's
    :return: lines: a head, then one per rule, one more where it was repaired, and one more where the fitted thresholds are
        others than the written ones
    """
    rows = [(entry, _cells(entry)) for entry in entries]
    widths = [max([len(title), *(len(cells[at]) for _, cells in rows)]) for at, title in enumerate(_TITLES)]
    lines = [_line(_TITLES, widths)]
    indent = " " * (sum(widths[:-1]) + 2 * (len(widths) - 1))
    for entry, cells in rows:
        lines.append(_line(cells, widths))
        rule = entry.rule
        if entry.lineage:
            lines.append(f"{indent}{printable(repair_words(entry), 2000)}")
        if entry.fitted and moved_rule(rule, entry.fitted).key != rule.key:
            lines.append(f"{indent}fitted: {moved_rule(rule, entry.fitted)}")
        if reasons:
            lines.append(f"{indent}{printable(entry.reason)}{'; ' + printable(rule.why) if rule.why else ''}")
    return lines


def _cells(entry: Entry) -> tuple[str, ...]:
    found = summary(entry)
    lift, low, high, fires, acts = (found[name] for name in ("lift", "low", "high", "body_rate", "head_rate"))
    return (
        found["state"],
        f"{entry.confidence:.2f}",
        "-" if lift is None else f"{lift:+.3g}",
        "-" if low is None else f"[{low:+.3g}, {high:+.3g}]",
        "-" if fires is None else percent(fires),
        "-" if acts is None else percent(acts),
        printable(found["origin"], 32) or "-",
        printable(found["rule"], 2000),
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
