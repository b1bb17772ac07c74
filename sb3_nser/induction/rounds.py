"""What one round of questions has brought, before its rules are judged, and in words after."""

from __future__ import annotations

from dataclasses import dataclass, field

from sb3_nser.induction.base import InductionFailure
from sb3_nser.rules import Entry, Rule
from sb3_nser.rules.evidence import describe_lift, percent
from sb3_nser.rules.lineage import repair_words


@dataclass
class ReadAnswer:
    """
    One answer after reading.

    :param rules: usable rules
    :param refused: sentences on those that are not
    :param hint: True if the question was to translate a hint
    :param failure: why there is no answer, None if there is one
    :param new: rules that the book did not know
    """

    rules: list[Rule] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    hint: bool = False
    failure: InductionFailure | None = None
    new: int = 0


@dataclass
class Round:
    """
    :param left: questions that are still to be asked
    :param requested: environment step at which the first one was asked
    :param answers: what came back so far
    :param seconds: of all its calls together
    """

    left: int = 0
    requested: int = 0
    answers: list[ReadAnswer] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, answer: ReadAnswer, seconds: float) -> None:
        """Take in an answer or a failure."""
        self.answers.append(answer)
        self.seconds += seconds

    @property
    def answered(self) -> bool:
        """Whether any call has brought an answer."""
        return any(answer.failure is None for answer in self.answers)

    @property
    def rules(self) -> list[Rule]:
        """All usable rules, in order."""
        return [rule for answer in self.answers for rule in answer.rules]

    @property
    def refused(self) -> list[str]:
        """What was wrong with the others."""
        return [sentence for answer in self.answers for sentence in answer.refused]

    @property
    def new(self) -> int:
        """Rules that were new to the book."""
        return sum(answer.new for answer in self.answers)

    @property
    def failure(self) -> InductionFailure | None:
        """The last failure, None if no call failed."""
        return next((answer.failure for answer in reversed(self.answers) if answer.failure is not None), None)


@dataclass(frozen=True)
class InductionRound:
    """What happened when an answer (or a failure) was applied; handed to ``on_round``.

    :param step: environment step
    :param requested: environment step at which the question was asked
    :param verdicts: rule text -> what became of it, for the rules of this answer
    :param active: texts of the rules that now weigh on replay, with their evidence in words
    :param failure: the sentence of a failed call, empty if it succeeded
    :param seconds: wall-clock seconds of the call
    """

    step: int
    requested: int
    verdicts: dict[str, str]
    active: tuple[str, ...]
    failure: str
    seconds: float

    def lines(self) -> list[str]:
        """:return: the round in words, one line per rule and verdict"""
        head = f"step {self.step} (asked at {self.requested}, {self.seconds:.0f} s)"
        if self.failure:
            return [f"{head}: no rules: {self.failure}"]
        out = [f"{head}: the model proposed" if self.verdicts else f"{head}: no rule was proposed"]
        for rule, verdict in self.verdicts.items():
            out += [f"  {rule}", f"      {verdict}"]
        return [*out, f"in force now: {len(self.active)}", *(f"  {line}" for line in self.active)]


def verdict(entry: Entry) -> str:
    """:return: what became of a rule, in a line"""
    repeats = f"; proposed {entry.times_proposed} times" if entry.times_proposed > 1 else ""
    made = f"; {repair_words(entry)}" if entry.lineage else ""
    return f"{entry.status}: {entry.reason} ({measured(entry)}){repeats}{made}"


def measured(entry: Entry) -> str:
    """:return: lift and firing rate in a few words; the whole evidence stands in the rule book"""
    evidence = entry.evidence
    if evidence is None:
        return "not measured yet"
    rate = f"fires in {percent(evidence.body_rate)}"
    if evidence.verdict in ("never_fires", "always_fires"):
        return rate
    if evidence.verdict == "no_evidence":
        return f"{rate}, {evidence.support} rows with the action and {evidence.contrast} without"
    return f"{describe_lift(evidence)}, {rate}"
