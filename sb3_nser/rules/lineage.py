"""Where a rule comes from: its proposer's words, what was repaired in them, what the fit made of the thresholds."""

from __future__ import annotations

from collections.abc import Sequence

from sb3_nser.rules.entry import Entry, moved_rule

MAX_LINEAGE = 8
"""Most steps that an entry remembers: the first one and the newest."""
MAX_STEP_CHARACTERS = 1_000


def repaired_from(origin: Entry, changes: Sequence[str]) -> tuple[str, ...]:
    """
    The lineage of a rule that was repaired.

    :param origin: the entry of the rule that it was made from
    :param changes: what was changed, in order: ``added carrying is nothing``
    :return: for ``Entry.lineage``: the first proposal with its source, then one step per change
    """
    steps = [*(origin.lineage or [f"{origin.rule.source}: {origin.rule}"]), *(f"repaired: {change}" for change in changes)]
    if len(steps) > MAX_LINEAGE:
        steps = [steps[0], *steps[1 - MAX_LINEAGE :]]
    return tuple(step[:MAX_STEP_CHARACTERS] for step in steps)


def whole_lineage(entry: Entry) -> tuple[str, ...]:
    """
    :return: from the proposal to the rule that counts: ``llm: IF …``, ``repaired: added …``, and ``fitted: IF …`` where the
        fit has moved a threshold
    """
    steps = entry.lineage or (f"{entry.rule.source}: {entry.rule}",)
    if entry.fitted:
        moved = moved_rule(entry.rule, entry.fitted)
        if moved.key != entry.rule.key:
            steps = (*steps, f"fitted: {moved}")
    return tuple(steps)


def repair_words(entry: Entry) -> str:
    """:return: ``repaired from 'IF …' (added …)``; empty for a rule that stands as it was proposed"""
    if not entry.lineage:
        return ""
    origin = entry.lineage[0].partition(": ")[2]
    changes = ", ".join(step.partition(": ")[2] for step in entry.lineage[1:])
    return f"repaired from '{origin}' ({changes})"
