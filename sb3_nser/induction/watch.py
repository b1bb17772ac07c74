"""Edits to rules files while training runs: found by looking at the file, applied to the rule book, never to half a file."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.budget import WarnOnce
from sb3_nser.induction.persistence import read_rules, read_text, with_owners_flags, write_rules
from sb3_nser.rules import Entry, RuleBook
from sb3_nser.rules.book import owners_word
from sb3_nser.rules.files import entry_from_dict, entry_to_dict
from sb3_nser.vocabulary import Vocabulary

SETTLE = 0.25
"""Seconds for which a changed file must lie still before it is read: editors write in several steps."""
SHARE = 0.01
"""Most of the time that looking may take."""

Signature = tuple[int, int, int]


class RulesWatch:
    """
    Keeps a rule book and the files that a person may edit together.

    What the person changed since the file was last read or written is carried over to the book, and beats what the book says;
    what they left alone stays as the book has it. A file that cannot be read, that names unknown things or is empty changes
    nothing, is warned about once per cause, and is not written to until it can be read again.

    :param rules_file: file the rules were loaded from, None for none
    :param save_rules: file the book is written to, None for none; may be the same
    :param vocabulary: the names rules must use
    :param warn: gives one warning per cause
    """

    def __init__(
        self,
        rules_file: str | os.PathLike[str] | None,
        save_rules: str | os.PathLike[str] | None,
        vocabulary: Vocabulary,
        warn: WarnOnce,
    ) -> None:
        self._warn = warn
        self._files: list[_WatchedFile] = []
        self._out: _WatchedFile | None = None
        if rules_file is not None:
            self._files.append(_WatchedFile(Path(rules_file), "rules_file", vocabulary, warn))
        if save_rules is not None:
            same = [file for file in self._files if file.path.resolve() == Path(save_rules).resolve()]
            self._out = same[0] if same else _WatchedFile(Path(save_rules), "save_rules", vocabulary, warn)
            self._files += [] if same else [self._out]
        self._late = False
        self._not_before = 0.0

    def poll(self, book: RuleBook, final: bool = False) -> list[str]:
        """
        Look at the files; costs a few microseconds if nothing has changed, and at most a hundredth of the time.

        :param book: gets what was edited
        :param final: True waits until a file that is being written lies still
        :return: what was changed, in words; empty if nothing was
        """
        started = time.monotonic()
        if started < self._not_before and not final:
            return []
        changes: list[str] = []
        for file in self._files:
            changes += file.poll(book, final)
        if self._late and not changes:
            self.save(book)
        ended = time.monotonic()
        self._not_before = ended + (ended - started) * (1.0 / SHARE - 1.0)
        return changes

    def save(self, book: RuleBook) -> None:
        """
        Write the book, unless the file holds an edit that is not applied yet: then once it is.

        :param book: what to write
        """
        if self._out is None:
            return
        self._late = not self._out.undisturbed
        if self._late:
            return
        try:
            self._out.write(book.to_yaml())
        except OSError as error:
            self._warn("save_rules", f"save_rules={str(self._out.path)!r} cannot be written: {error}")


class _WatchedFile:
    """One file and what was last known of it."""

    def __init__(self, path: Path, argument: str, vocabulary: Vocabulary, warn: WarnOnce) -> None:
        self.path, self._argument, self._vocabulary, self._warn = path, argument, vocabulary, warn
        self._seen = _signature(path)
        self._text = ""
        self._broken = False
        self._pending: tuple[Signature | None, float] | None = None
        if self._seen is not None:
            try:
                self._text = read_text(path, argument)
            except ConfigurationError:  # whoever loads it will say so; nobody does if it is only written to
                pass
        self._digest = _digest(self._text)

    @property
    def undisturbed(self) -> bool:
        """True if the file holds what it was last known to hold, and may be written to."""
        found = _signature(self.path)
        return found is None or (found == self._seen and not self._broken)

    def write(self, text: str) -> None:
        self._seen = write_rules(self.path, text)
        self._text, self._digest, self._broken, self._pending = text, _digest(text), False, None

    def poll(self, book: RuleBook, final: bool) -> list[str]:
        found = _signature(self.path)
        if found == self._seen:
            self._pending = None
            return []
        now = time.monotonic()
        if self._pending is None or self._pending[0] != found:
            self._pending = (found, now)
        left = self._pending[1] + SETTLE - now
        if left > 0.0:
            if not final:
                return []
            time.sleep(left)
            if _signature(self.path) != found:
                self._tell(ConfigurationError(f"{self._argument}={str(self.path)!r} was still being written at the end."))
                return []
        self._seen, self._pending = found, None
        try:
            return self._take(book)
        except ConfigurationError as error:
            self._broken = True
            self._tell(error)
            return []

    def _take(self, book: RuleBook) -> list[str]:
        text = read_text(self.path, self._argument)
        digest = _digest(text)
        if digest == self._digest:
            self._broken = False
            return []
        if not text.strip() and self._text.strip():
            raise ConfigurationError(
                f"{self._argument}={str(self.path)!r} is empty now; write 'rules: []' to delete all rules, or "
                "'enabled: false' to switch one off."
            )
        entries = {entry.key: entry for entry in read_rules(self.path, self._vocabulary, self._argument, text)}
        try:
            before = {entry.key: entry for entry in RuleBook.from_yaml(self._text).entries}
        except ConfigurationError:  # a file of other contents, which was never read
            before = {}
        self._text, self._digest, self._broken = text, digest, False
        return merge(book, before, entries)

    def _tell(self, error: ConfigurationError) -> None:
        self._warn(f"watch: {error}", f"{error} Training goes on with the rules so far.")


def merge(book: RuleBook, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """
    Carry what a person has changed in a file over to a rule book.

    :param book: gets the changes
    :param before: the file's entries by key as they were
    :param after: as they are now
    :return: the changes in words
    """
    changes = []
    for key in before:
        if key not in after and key in book:
            book.remove(key)
            changes.append(f"deleted: {before[key].rule}")
    for key, entry in after.items():
        if key not in before:
            book.adopt(with_owners_flags(book[key], entry) if key in book else entry)
            changes.append(f"{'added, pinned' if entry.rule.pinned else 'added'}: {entry.rule}")
            continue
        old, new = entry_to_dict(before[key]), entry_to_dict(entry)
        edited = {name: value for name, value in new.items() if value != old[name]}
        if not edited:
            continue
        known = entry_to_dict(book[key]) if key in book else new
        book.adopt(owners_word(entry_from_dict({**known, **edited})))
        changes.append(f"{_what(old, new)}: {entry.rule}")
    return changes


def _what(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """:return: an edit in a word or two"""
    words = []
    for flag, on, off in (("pinned", "pinned", "no longer pinned"), ("enabled", "switched on", "switched off")):
        if old["rule"][flag] != new["rule"][flag]:
            words.append(on if new["rule"][flag] else off)
    return ", ".join(words) or "edited"


def _signature(path: Path) -> Signature | None:
    """:return: what changes with a file's contents, None if there is no file"""
    try:
        stat = os.stat(path)
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino  # all three survive a renaming


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
