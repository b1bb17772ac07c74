"""The asking half of the induction benchmark: independent questions about recorded problems, each answer kept in a record, so
that a run that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sb3_nser.bench.problems import Problem
from sb3_nser.induction import InductionFailure, InductionReply, InductionRequest, Outcome, RecordWriter, RuleInducer
from sb3_nser.induction.data import collect
from sb3_nser.induction.episodes import Experience
from sb3_nser.induction.prompts import PromptSettings
from sb3_nser.induction.questions import question
from sb3_nser.induction.record import RecordEntry, prompt_hash, read_record
from sb3_nser.logic import Dataset
from sb3_nser.rules import Rule
from sb3_nser.rules.schema import conforms, parse_reply

RULES_PER_CALL = 4
EVERYTHING = 1_000_000
DEFAULT_BUDGET = 9_000


@dataclass(frozen=True)
class Answer:
    """
    One answer, read.

    :param number: number of the call
    :param form: its prompt form
    :param rules: the usable rules
    :param written: rules in the answer, usable or not; a failed call counts as many as were asked for
    :param valid: whether the call succeeded, kept to the schema, and all of its rules are usable
    :param failure: why there is no answer, empty if there is one
    :param seconds: wall-clock seconds of the call
    :param tokens: of prompt and reply
    """

    number: int
    form: str
    rules: tuple[Rule, ...]
    written: int
    valid: bool
    failure: str
    seconds: float
    tokens: int


@dataclass(frozen=True)
class Asked:
    """
    A problem ready to be asked about.

    :param problem: the problem
    :param experience: its episodes as columns
    :param dataset: the same, with the split that the judge uses
    """

    problem: Problem
    experience: Experience
    dataset: Dataset

    @classmethod
    def of(cls, problem: Problem, seed: int = 0) -> Asked:
        """:param seed: of the split into fitting and held-out episodes"""
        seen = collect(problem.source(), problem.vocabulary, problem.gamma, EVERYTHING)
        dataset = Dataset.build(seen.tensors(), seen.actions, seen.returns, seen.episode_ids, seed=seed)
        return cls(problem, seen, dataset)

    def request(self, number: int, budget: int) -> InductionRequest:
        """:return: question ``number``; nothing in it depends on earlier answers"""
        learnt_from = self.experience.part(~self.dataset.held_out)
        return question(self.problem.vocabulary, learnt_from, PromptSettings(budget, RULES_PER_CALL, number=number))


class Answers:
    """
    Asks, or reads what was answered before.

    :param inducer: who is asked
    :param record: JSONL file of earlier answers, to which new ones are appended; None keeps none
    """

    def __init__(self, inducer: RuleInducer, record: Path | None = None) -> None:
        self.inducer, self._record = inducer, record
        self._known: dict[tuple[str, int, str], RecordEntry] = {}
        self._read_record()

    def _read_record(self) -> None:
        if self._record is None or not self._record.exists():
            return
        for entry in read_record(self._record, argument="--record"):
            if entry.model == getattr(self.inducer, "model", None) and entry.failure_cause is None:
                self._known[entry.run, entry.number, entry.prompt_sha256] = entry

    def ask(self, asked: Asked, number: int, tell: Callable[[str], None] = lambda line: None) -> Answer:
        """
        :param asked: the problem
        :param number: number of the call, counted from 0
        :param tell: gets one line per call that was really made
        :return: the answer
        """
        request = asked.request(number, int(getattr(self.inducer, "prompt_budget", DEFAULT_BUDGET)))
        known = self._known.get((asked.problem.name, number, prompt_hash(request)))
        if known is not None:
            tokens = (known.prompt_tokens, known.reply_tokens)
            reply = InductionReply(known.reply or "", known.model, known.digest, known.seconds, *tokens)
            return _read(request, Outcome(request, reply=reply))
        try:
            outcome = Outcome(request, reply=self.inducer.propose(request))
        except InductionFailure as failure:
            outcome = Outcome(request, failure=failure)
        answer = _read(request, outcome)
        if getattr(self.inducer, "model", None) is None:
            return answer  # made again in no time
        if self._record is not None:
            RecordWriter(self._record, asked.problem.name, fresh=False).write(request, outcome, 0, {})
            self._read_record()  # what is asked twice is answered once
        tell(f"{self.inducer.describe()}: {asked.problem.name}, call {number + 1}: {answer.seconds:.1f} s")
        return answer


def _read(request: InductionRequest, outcome: Outcome) -> Answer:
    number, form = request.number, request.form
    if outcome.reply is None:
        failure = outcome.failure.message if outcome.failure else "no answer"
        return Answer(number, form, (), request.max_rules, False, failure, outcome.seconds, 0)
    reply = outcome.reply
    tokens = reply.prompt_tokens + reply.reply_tokens
    if reply.rules is not None:
        return Answer(number, form, reply.rules, len(reply.rules), True, "", reply.seconds, tokens)
    assert request.vocabulary is not None  # every question of this module has one
    parsed = parse_reply(reply.text, request.vocabulary, request.max_rules)
    if parsed.error:
        return Answer(number, form, (), request.max_rules, False, parsed.error, reply.seconds, tokens)
    written = len(parsed.rules) + len(parsed.refused)
    valid = not parsed.refused and bool(parsed.rules) and _conforms(reply.text, request)
    return Answer(number, form, parsed.rules, written, valid, "", reply.seconds, tokens)


def _conforms(text: str, request: InductionRequest) -> bool:
    return conforms(json.loads(text), request.schema)
