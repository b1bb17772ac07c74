"""Rules that outlive a session: in a YAML file for people, and in the state that is saved with the replay buffer."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.induction.budget import WarnOnce
from sb3_nser.rules import AdmissionPolicy, RuleBook, problems
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


def load_rules(file: str | os.PathLike[str], book: RuleBook, vocabulary: Vocabulary) -> None:
    """
    Take the rules of a YAML file, perhaps edited by a person, into a book.

    :param file: as ``RuleBook.to_yaml`` writes it
    :param book: gets the entries; one with the same key is replaced
    :param vocabulary: the names the rules must use
    :raises ConfigurationError: if the file cannot be read, or a rule speaks of things the vocabulary does not know
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"rules_file={str(file)!r} cannot be read ({reason}); give a YAML file of rules.") from None
    try:
        loaded = RuleBook.from_yaml(text, book.policy)
    except ConfigurationError as error:
        raise ConfigurationError(f"rules_file={str(file)!r}: {error}") from None
    for entry in loaded.entries:
        wrong = problems(entry.rule, vocabulary)
        if wrong and entry.status != "invalid":
            raise ConfigurationError(f"rules_file={str(file)!r}, rule '{entry.rule}': {' '.join(wrong)}")
        book.adopt(entry)


def save_rules(file: str | os.PathLike[str], book: RuleBook, warn: WarnOnce) -> None:
    """Write the book as YAML; a reader never sees half a file; trouble is warned about once."""
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".tmp")
        draft.write_text(book.to_yaml(), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        warn("save_rules", f"save_rules={str(path)!r} cannot be written: {error}")
