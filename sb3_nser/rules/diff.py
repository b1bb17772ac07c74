"""What differs between two rule books, whatever the order of rules and conditions and however numbers are written."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass

from sb3_nser.rules.entry import Entry, moved_rule
from sb3_nser.rules.model import format_number

_NUMBER = re.compile(r"(?<![\w.+-])(?<!is )[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


@dataclass(frozen=True)
class Change:
    """
    One rule that both books have.

    :param rule: canonical text in the second book
    :param fields: field -> (value in the first book, value in the second) as text; ``rule`` if only its numbers differ
    """

    rule: str
    fields: dict[str, tuple[str, str]]


@dataclass(frozen=True)
class BookDiff:
    """
    :param added: canonical texts of the rules that only the second book has, sorted
    :param removed: those that only the first has
    :param changed: rules that both have, with what differs
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def to_dict(self) -> dict[str, typing.Any]:
        """:return: plain JSON values"""
        changed = [
            {"rule": change.rule, "fields": {name: list(pair) for name, pair in change.fields.items()}}
            for change in self.changed
        ]
        return {"added": list(self.added), "removed": list(self.removed), "changed": changed}

    def lines(self) -> list[str]:
        """:return: the differences in words, ``-`` and ``+`` as in a diff, ``~`` for a changed rule"""
        out = [f"- {rule}" for rule in self.removed] + [f"+ {rule}" for rule in self.added]
        for change in self.changed:
            out.append(f"~ {change.rule}")
            out += [f"    {name}: {old} -> {new}" for name, (old, new) in change.fields.items()]
        return out


def diff(first: Iterable[Entry], second: Iterable[Entry]) -> BookDiff:
    """
    Compare two books by the rules' canonical form. Compared are the rules, thresholds as written and as fitted, status,
    confidence, prior and the owner's flags; not the evidence, which differs between any two runs.

    :param first: entries of the first book
    :param second: entries of the second
    :return: the differences; false if there are none
    """
    old = {entry.key: entry for entry in first}
    new = {entry.key: entry for entry in second}
    pairs = [(old[key], new[key]) for key in old if key in new]
    moved, gone, come = _moved(
        [e for key, e in old.items() if key not in new], [e for key, e in new.items() if key not in old]
    )
    changed = [Change(b.key, fields) for a, b in (*pairs, *moved) if (fields := _fields(a, b))]
    return BookDiff(
        tuple(sorted(entry.key for entry in come)),
        tuple(sorted(entry.key for entry in gone)),
        tuple(sorted(changed, key=lambda change: change.rule)),
    )


def _moved(gone: list[Entry], come: list[Entry]) -> tuple[list[tuple[Entry, Entry]], list[Entry], list[Entry]]:
    """:return: pairs that differ in numbers only, in the order of these; and what is left on either side"""
    pairs: list[tuple[Entry, Entry]] = []
    for shape in sorted({_shape(entry) for entry in gone}):
        mine = sorted((e for e in gone if _shape(e) == shape), key=_numbers)
        theirs = sorted((e for e in come if _shape(e) == shape), key=_numbers)
        pairs += zip(mine, theirs, strict=False)
    paired = {id(entry) for pair in pairs for entry in pair}
    return pairs, [e for e in gone if id(e) not in paired], [e for e in come if id(e) not in paired]


def _shape(entry: Entry) -> str:
    return _NUMBER.sub("#", entry.key)


def _numbers(entry: Entry) -> list[float]:
    return [float(text) for text in _NUMBER.findall(entry.key)]


def _fields(first: Entry, second: Entry) -> dict[str, tuple[str, str]]:
    one, other = _compared(first), _compared(second)
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def _compared(entry: Entry) -> dict[str, str]:
    rule = entry.rule
    return {
        "rule": entry.key,
        "status": entry.status,
        "confidence": format_number(entry.confidence),
        "fitted_rule": moved_rule(rule, entry.fitted).key if entry.fitted else "not fitted",
        "prior": format_number(rule.confidence),
        "pinned": "true" if rule.pinned else "false",
        "enabled": "true" if rule.enabled else "false",
    }
