"""The rule book: every rule that was ever proposed, whether it counts, and why. Pure data: no torch, JSON and YAML both
ways."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import files
from sb3_nser.rules.check import conflicts, contradictions, problems
from sb3_nser.rules.entry import (
    PINNED_REASON,
    STATUSES,
    AdmissionPolicy,
    Entry,
    Fitted,
    Judgement,
    chance_findings,
    decide,
    moved_rule,
)
from sb3_nser.rules.evidence import Evidence, describe_lift, percent
from sb3_nser.rules.lineage import repair_words
from sb3_nser.rules.model import Rule
from sb3_nser.rules.normal import packed, thresholds

if typing.TYPE_CHECKING:
    from sb3_nser.vocabulary.features import Vocabulary

BOOK_VERSION = 1


@dataclass(frozen=True)
class Proposal:
    """
    What became of one batch of proposed rules.

    :param new: rules the book did not know
    :param repeated: rules it knew already (equal keys); counted, without any effect on priorities
    :param invalid: rules that cannot be grounded, with the reasons
    :param conflicts: pairs among the new rules and the rules that count or wait which ask for different things in the same
        states
    """

    new: tuple[Rule, ...] = ()
    repeated: tuple[Rule, ...] = ()
    invalid: tuple[tuple[Rule, str], ...] = ()
    conflicts: tuple[tuple[Rule, Rule, str], ...] = ()


class RuleBook:
    """
    Entries by rule key, and the policy that admits and prunes them.

    :param policy: thresholds; the defaults are meant to be left alone
    :param entries: entries to begin with
    """

    def __init__(self, policy: AdmissionPolicy | None = None, entries: Iterable[Entry] = ()) -> None:
        self.policy = policy or AdmissionPolicy()
        self._entries: dict[str, Entry] = {entry.key: entry for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuleBook) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries in order of first proposal."""
        return tuple(self._entries.values())

    def propose(self, rules: Iterable[Rule], step: int, vocabulary: Vocabulary | None = None) -> Proposal:
        """
        Enter proposed rules. A known rule (literals in another order, 0.10 for 0.1) is counted and changes nothing else,
        except that a user may pin it.

        :param rules: the proposed rules
        :param step: environment step
        :param vocabulary: if given, rules it cannot ground are entered as ``invalid``
        :return: what became of them
        """
        new: list[Rule] = []
        repeated: list[Rule] = []
        invalid: list[tuple[Rule, str]] = []
        for rule in rules:
            known = self._entries.get(rule.key)
            if known is not None:
                repeated.append(rule)
                self._entries[rule.key] = self._repeat(known, rule)
                continue
            wrong = problems(rule, vocabulary) if vocabulary is not None else contradictions(rule.literals)
            if wrong:
                reason = " ".join(wrong)
                invalid.append((rule, reason))
                self._entries[rule.key] = Entry(rule, "invalid", reason=reason, first_step=int(step))
                continue
            new.append(rule)
            self._entries[rule.key] = owners_word(Entry(rule, first_step=int(step)))
        self._forget()
        fresh = {rule.key for rule in new}
        clashes = [item for item in self.conflicts() if item[0].key in fresh or item[1].key in fresh]
        return Proposal(tuple(new), tuple(repeated), tuple(invalid), tuple(clashes))

    def adopt(self, entry: Entry) -> None:
        """
        Take over an entry of another book, in place of an entry with the same key.

        :param entry: for example one read from an edited ``rules.yaml``
        """
        self._entries[entry.key] = entry

    def remove(self, key: str) -> None:
        """
        Forget a rule, as if it had never been proposed. One that shall not come back is better switched off
        (``enabled: false``), which is remembered.

        :param key: the rule's key; an unknown one is passed over
        """
        self._entries.pop(key, None)

    def judge(self, key: str, evidence: Evidence, fitted: Fitted | None, step: int, duplicate_of: str | None = None) -> Entry:
        """
        Decide about one rule.

        :param key: the rule's key
        :param evidence: what the data say
        :param fitted: fitted values, or None to keep the last ones
        :param step: environment step
        :param duplicate_of: key of a rule that fires on the same rows, or None
        :return: the new entry
        :raises ConfigurationError: if the book does not know the key
        """
        return self.judge_all([Judgement(key, evidence, fitted, duplicate_of=duplicate_of)], step)[0]

    def judge_all(self, results: Iterable[Judgement], step: int) -> list[Entry]:
        """
        Decide about several rules.

        :param results: one judgement per rule
        :param step: environment step
        :return: the new entries, in the order of the results
        :raises ConfigurationError: if the book does not know a key
        """
        results = list(results)
        for judgement in results:
            if judgement.key not in self._entries:
                raise ConfigurationError(f"the book has no rule '{judgement.key}'; propose it before judging it.")
        chance = chance_findings([(self._entries[item.key], item.evidence) for item in results], self.policy)
        decided = []
        for judgement in results:
            entry = self._entries[judgement.key]
            other = self._entries.get(judgement.duplicate_of) if judgement.duplicate_of else None
            repeated = other.rule.id if other is not None else None
            entry = decide(entry, judgement, self.policy, step, repeated, by_chance=entry.key in chance)
            self._entries[judgement.key] = entry
            decided.append(entry.key)
        self._settle_contradictions()
        return [self._entries[key] for key in decided]

    def active(self) -> list[Entry]:
        """
        :return: the rules that count: admitted and enabled. All pinned ones come first, however many; others, the highest
            lower bound first, fill up to ``max_rules``
        """
        usable = [entry for entry in self._entries.values() if entry.status == "admitted" and entry.rule.enabled]
        usable.sort(key=lambda entry: (not entry.rule.pinned, -entry.lower_bound, -entry.confidence, entry.key))
        pinned = sum(entry.rule.pinned for entry in usable)
        return usable[: max(self.policy.max_rules, pinned)]

    def candidates(self) -> list[Entry]:
        """:return: the rules worth judging: admitted or waiting, and enabled; admitted ones first, older ones first."""
        usable = [e for e in self._entries.values() if e.status in ("admitted", "waiting") and e.rule.enabled]
        return sorted(usable, key=lambda entry: (not entry.rule.pinned, entry.status != "admitted", entry.on_prior))

    def conflicts(self) -> list[tuple[Rule, Rule, str]]:
        """:return: conflicting pairs among the candidates; in no way dependent on the order of proposal."""
        return conflicts(entry.rule for entry in self.candidates())

    def counts(self) -> dict[str, int]:
        """:return: number of rules per status, plus ``active``, ``on_prior``, ``proposed`` and ``repeated``."""
        tally = Counter(entry.status for entry in self._entries.values())
        proposed = sum(entry.times_proposed for entry in self._entries.values())
        return {
            **{status: tally.get(status, 0) for status in STATUSES},  # type: ignore[call-overload]
            "active": len(self.active()),
            "on_prior": sum(entry.on_prior for entry in self.active()),
            "proposed": proposed,
            "repeated": proposed - len(self._entries),
        }

    def feedback_lines(self, limit: int = 12) -> list[str]:
        """
        What the proposer is told next time.

        :param limit: most lines to return; a third of them is kept for rules that do not count, if there are any, first those
            that are proposed again and again
        :return: one line per rule: ``IF … THEN …: kept, lift +3.2 [+1.1, +5], fires in 12 %; proposed 3 times``
        """
        kept = self.active()
        active = {entry.key for entry in kept}
        others = [entry for entry in self._entries.values() if entry.key not in active]
        others.sort(key=lambda entry: (-entry.times_proposed, -_last_step(entry), entry.key))
        room = max(limit - min(len(others), limit // 3), 0)
        kept = kept[:room]
        return [_feedback(entry) for entry in [*kept, *others[: max(limit - len(kept), 0)]]]

    def to_dict(self) -> dict[str, typing.Any]:
        """:return: the whole book as plain JSON values."""
        entries = [files.entry_to_dict(entry) for entry in self._entries.values()]
        return {"version": BOOK_VERSION, "policy": self.policy.to_dict(), "entries": entries}

    @classmethod
    def from_dict(cls, data: Mapping[str, typing.Any]) -> RuleBook:
        """
        :param data: what ``to_dict`` returned, possibly after a trip through JSON
        :return: an equal book
        :raises ConfigurationError: if the version is unknown or something does not fit
        """
        version = data.get("version") if isinstance(data, Mapping) else None
        if version != BOOK_VERSION:
            raise ConfigurationError(f"rule book version {version!r} cannot be read; this release reads {BOOK_VERSION}.")
        policy = AdmissionPolicy.from_dict(data.get("policy") or {})
        return cls(policy, [files.entry_from_dict(item) for item in data.get("entries") or []])

    def to_yaml(self) -> str:
        """:return: the book as text that a person can read, edit and load again; rules that count come first."""
        return files.dump_yaml(self.ranked())

    def ranked(self) -> list[Entry]:
        """:return: all entries, those that count first, then by status"""
        active = self.active()
        first = {entry.key for entry in active}
        rest = [entry for entry in self._entries.values() if entry.key not in first]
        rest.sort(key=lambda entry: STATUSES.index(entry.status))
        return [*active, *rest]

    @classmethod
    def from_yaml(cls, text: str, policy: AdmissionPolicy | None = None) -> RuleBook:
        """
        Read a book that a person may have edited: ``pinned: true``, ``enabled: false``, another rule text, new rules. A
        changed text makes a new rule, whose old evidence no longer counts.

        :param text: YAML; only plain data is read, nothing is executed
        :param policy: thresholds
        :raises ConfigurationError: a sentence that names the rule and the key
        """
        return cls(policy, [owners_word(entry) for entry in files.load_yaml(text)])

    def _settle_contradictions(self) -> None:
        """
        Of two rules that ask for different things in the same states, one that rests on the proposer's word alone gives way to
        one that the data support; of two that rest on it both, the one proposed less often; where that is even, both.
        """
        admitted = [entry for entry in self._entries.values() if entry.status == "admitted"]
        reasons: dict[str, str] = {}
        for first, second, _ in conflicts(entry.rule for entry in admitted):
            for mine, other in ((first, second), (second, first)):
                entry, rival = self._entries[mine.key], self._entries[other.key]
                weaker = not rival.on_prior or rival.times_proposed >= entry.times_proposed
                if entry.on_prior and not entry.rule.pinned and weaker:
                    reasons[mine.key] = f"no evidence yet, and it contradicts {other.id}"
        for key, reason in reasons.items():
            entry = self._entries[key]
            self._entries[key] = replace(entry, status="waiting", confidence=0.0, on_prior=False, reason=reason)

    def _repeat(self, known: Entry, rule: Rule) -> Entry:
        known = replace(known, times_proposed=known.times_proposed + 1)
        if rule.pinned and not known.rule.pinned:
            known = replace(known, rule=known.rule.model_copy(update={"pinned": True, "confidence": rule.confidence}))
        return owners_word(known)

    def _forget(self) -> None:
        excess = len(self._entries) - self.policy.max_entries
        if excess <= 0:
            return
        rank = {"invalid": 0, "rejected": 1, "pruned": 2, "waiting": 3}
        # a rule that its owner pinned or switched off stays known, or the next proposal would undo that
        droppable = [e for e in self._entries.values() if e.status in rank and e.rule.enabled and not e.rule.pinned]
        for entry in sorted(droppable, key=lambda item: (rank[item.status], item.first_step))[:excess]:
            del self._entries[entry.key]


def owners_word(entry: Entry) -> Entry:
    """
    :return: the entry as its owner's ``pinned`` demands: a pinned rule counts from the start; one that counted only because
        it was pinned, and is so no longer, has to earn its place
    """
    if entry.rule.pinned and entry.status not in ("admitted", "invalid"):
        confidence = entry.rule.confidence
        return replace(entry, status="admitted", confidence=confidence, on_prior=False, reason=PINNED_REASON)
    if not entry.rule.pinned and entry.status == "admitted" and entry.reason == PINNED_REASON:
        return replace(entry, status="waiting", confidence=0.0, misses=0, reason="no longer pinned: waits to be judged")
    return entry


def _unmoved(rule: Rule) -> Fitted:
    theta = [packed(item, thresholds(item)) for item in rule.literals]
    return {"theta": theta, "head_theta": rule.head.value}


def _last_step(entry: Entry) -> int:
    return max((step for step, _ in entry.history), default=entry.first_step)


def _feedback(entry: Entry) -> str:
    repeats = f"; proposed {entry.times_proposed} times" if entry.times_proposed > 1 else ""
    made = f"; {repair_words(entry)}" if entry.lineage else ""
    return _standing(entry) + repeats + made


def _standing(entry: Entry) -> str:
    evidence = entry.evidence
    measured = f", {describe_lift(evidence)}" if evidence is not None and evidence.low == evidence.low else ""
    rate = "" if evidence is None else f", fires in {percent(evidence.body_rate)}"
    if not entry.rule.enabled:
        return f"{entry.rule}: the user has switched it off"
    moved = moved_rule(entry.rule, entry.fitted)
    if measured and str(moved) != str(
        moved_rule(entry.rule, _unmoved(entry.rule))
    ):  # the figures belong to the fitted thresholds
        measured += f" as '{moved}'"
    if entry.status == "admitted":
        word = "kept" if not entry.on_prior else "kept on your word, no evidence yet" if not measured else "kept on your word"
        return f"{entry.rule}: {word}{measured}{rate}"
    if entry.status == "waiting":
        return f"{entry.rule}: {entry.reason}{measured}" + ("" if entry.reason == "never fires" else rate)
    return f"{entry.rule}: {entry.status}, {entry.reason}{measured}{rate}"
