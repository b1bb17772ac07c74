"""Everything that is wrong with a rules file, not only the first thing."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.rules.check import conflict_sentence, conflicts, contradictions, problems
from sb3_nser.rules.entry import Entry
from sb3_nser.rules.files import read_items

if typing.TYPE_CHECKING:
    from sb3_nser.vocabulary.features import Vocabulary

Kind = typing.Literal["unreadable", "invalid", "duplicate", "contradiction", "firing"]


@dataclass(frozen=True)
class Finding:
    """
    One thing that is wrong.

    :param kind: ``unreadable`` (no rule), ``invalid`` (names the vocabulary does not know, or conditions that cannot hold at
        once), ``duplicate``, ``contradiction`` (of two rules), ``firing`` (never or always fires)
    :param rules: places in the file of the rules it is about, counted from 1; empty if it is about the file
    :param message: one sentence
    """

    kind: Kind
    rules: tuple[int, ...]
    message: str

    def to_dict(self) -> dict[str, typing.Any]:
        """:return: plain JSON values"""
        return {**asdict(self), "rules": list(self.rules)}


def review(text: str, vocabulary: Vocabulary | None = None) -> tuple[list[tuple[int, Entry]], list[Finding]]:
    """
    Look for everything that is wrong with a rules file without looking at any data. Rules that the book itself has marked as
    invalid, and the contradictions of rules that do not count (refused or switched off), are no mistakes of the file.

    :param text: the contents of a ``rules.yaml``
    :param vocabulary: names the rules may use; without it, only what a rule says about itself is checked
    :return: the rules that are in order, with their places in the file, and what was found, in file order
    """
    try:
        items = read_items(text)
    except ConfigurationError as error:
        return [], [Finding("unreadable", (), str(error))]
    sound: dict[str, tuple[int, Entry]] = {}
    found: list[Finding] = []
    for number, item in enumerate(items, start=1):
        if isinstance(item, ConfigurationError):
            found.append(Finding("unreadable", (number,), str(item)))
            continue
        first = sound.get(item.key)
        if first is not None:
            message = f"'{item.rule}' says the same as rule {first[0]}; only the first counts."
            found.append(Finding("duplicate", (first[0], number), message))
            continue
        wrong = problems(item.rule, vocabulary) if vocabulary is not None else contradictions(item.rule.literals)
        if not wrong:
            sound[item.key] = (number, item)
        elif item.status != "invalid" or item.rule.pinned:
            found.append(Finding("invalid", (number,), printable(f"'{item.rule}': {' '.join(wrong)}", 1000)))
    rules = list(sound.values())
    return rules, found + _contradictions(rules)


def _contradictions(rules: Sequence[tuple[int, Entry]]) -> list[Finding]:
    counting = [entry for _, entry in rules if entry.rule.enabled and entry.status in ("admitted", "waiting")]
    place = {entry.key: number for number, entry in rules}
    pairs = [sorted((one, other), key=lambda rule: place[rule.key]) for one, other, _ in conflicts(e.rule for e in counting)]
    found = [
        Finding("contradiction", (place[one.key], place[other.key]), conflict_sentence(one, other)) for one, other in pairs
    ]
    return sorted(found, key=lambda finding: finding.rules)
