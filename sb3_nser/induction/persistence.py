"""Rules that outlive a session: in a YAML file for people, and in the state that is saved with the replay buffer."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.induction.budget import WarnOnce
from sb3_nser.rules import AdmissionPolicy, Entry, RuleBook, problems
from sb3_nser.rules.book import owners_word
from sb3_nser.rules.files import MAX_YAML
from sb3_nser.vocabulary import Vocabulary


@dataclass(frozen=True)
class SavedState:
    """What a replay buffer kept of an earlier part of the run."""

    book: RuleBook
    budget: dict[str, Any]
    run: str | None
    refused: tuple[str, ...] = ()


def restore(state: dict[str, Any] | None, policy: AdmissionPolicy) -> SavedState:
    """
    :param state: what ``InductionSession.state`` returned, None for nothing
    :param policy: today's thresholds
    :return: the rule book and counters of then, or empty ones
    :raises ConfigurationError: if the state is not one (a damaged or foreign file)
    """
    if state is None:
        return SavedState(RuleBook(policy), {}, None)
    try:
        book = RuleBook.from_dict(state["book"])
        budget = {str(name): value + 0 for name, value in state["budget"].items()}
        if not all(math.isfinite(value) for value in budget.values()):
            raise ValueError("a counter is not finite")
        run = state.get("run")
        refused = tuple(printable(line) for line in state.get("refused", ()))[:16]
    except Exception as error:
        raise ConfigurationError(
            f"the rules saved with the replay buffer cannot be read ({printable(error, 120)}); set buffer.rule_state = None "
            "to begin without them."
        ) from error
    book.policy = policy
    return SavedState(book, budget, run if isinstance(run, str) else None, refused)


def load_rules(
    file: str | os.PathLike[str], book: RuleBook, vocabulary: Vocabulary, resumed: bool = False, argument: str = "rules_file"
) -> None:
    """
    Take the rules of a YAML file, perhaps edited by a person, into a book.

    :param file: as ``RuleBook.to_yaml`` writes it
    :param book: gets the entries; one with the same key is replaced
    :param vocabulary: the names the rules must use
    :param resumed: True if the book goes on from an earlier part of the run: of a rule that it knows, only what the owner
        decides (``pinned``, ``enabled``) is taken from the file, and what was learnt about it stays
    :param argument: name of the argument that gave the file, for messages
    :raises ConfigurationError: if the file cannot be read, or a rule speaks of things the vocabulary does not know
    """
    for entry in read_rules(file, vocabulary, argument):
        if resumed and entry.key in book:
            entry = with_owners_flags(book[entry.key], entry)
        book.adopt(entry)


def read_text(file: str | os.PathLike[str], argument: str = "rules_file") -> str:
    """
    :param file: a YAML file of rules
    :param argument: name of the argument that gave it, for messages
    :return: its text
    :raises ConfigurationError: if it cannot be read, is no text, or is far too large
    """
    if not str(file):
        raise ConfigurationError(f"{argument}='' names no file; give a YAML file of rules.")
    try:
        with Path(file).open("rb") as handle:
            data = handle.read(4 * MAX_YAML + 1)
        if len(data) > 4 * MAX_YAML:
            raise ConfigurationError(f"{argument}={str(file)!r} has more than {MAX_YAML} characters; that is no rules file.")
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or printable(error, 120)
        raise ConfigurationError(f"{argument}={str(file)!r} cannot be read ({reason}); give a YAML file of rules.") from None


def read_rules(
    file: str | os.PathLike[str], vocabulary: Vocabulary | None, argument: str = "rules_file", text: str | None = None
) -> tuple[Entry, ...]:
    """
    :param file: a YAML file of rules
    :param vocabulary: the names the rules must use, None if unknown
    :param argument: name of the argument that gave it, for messages
    :param text: its contents, if they have been read already
    :return: its entries, checked
    :raises ConfigurationError: as ``load_rules``
    """
    contents = read_text(file, argument) if text is None else text
    try:
        entries = RuleBook.from_yaml(contents).entries
    except ConfigurationError as error:
        raise ConfigurationError(f"{argument}={str(file)!r}: {error}") from None
    if vocabulary is None:
        return entries
    checked = []
    for entry in entries:
        wrong = problems(entry.rule, vocabulary)
        if wrong and (entry.status != "invalid" or entry.rule.pinned):
            raise ConfigurationError(f"{argument}={str(file)!r}, rule '{entry.rule}': {' '.join(wrong)}")
        if not wrong and entry.status == "invalid":  # it was, in another vocabulary
            entry = owners_word(Entry(entry.rule))
        checked.append(entry)
    return tuple(checked)


def with_owners_flags(known: Entry, written: Entry) -> Entry:
    """:return: what is known of a rule, with ``pinned`` and ``enabled`` as its owner has written them"""
    flags = {"pinned": written.rule.pinned, "enabled": written.rule.enabled}
    if flags == {"pinned": known.rule.pinned, "enabled": known.rule.enabled}:
        return known
    return owners_word(replace(known, rule=known.rule.model_copy(update=flags)))


def save_rules(file: str | os.PathLike[str], book: RuleBook, warn: WarnOnce) -> None:
    """Write the book as YAML; a reader never sees half a file; trouble is warned about once."""
    try:
        write_rules(file, book.to_yaml())
    except OSError as error:
        warn("save_rules", f"save_rules={os.fspath(file)!r} cannot be written: {error}")


def write_rules(file: str | os.PathLike[str], text: str) -> tuple[int, int, int]:
    """
    Put a text in a file's place at once: whoever reads sees the old text or the new one. A link stays one, and who may read
    the file stays as it was.

    :param file: where to; folders are made
    :param text: the new contents
    :return: modification time in nanoseconds, size and inode of what was written
    :raises OSError: if it cannot be written
    """
    path = Path(os.path.realpath(file))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        with contextlib.suppress(OSError):  # there is no file yet, or none of this sort of disk can have a mode
            draft.chmod(path.stat().st_mode & 0o777)
        stat = os.stat(draft)  # before the renaming: what comes after it may be somebody else's
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
