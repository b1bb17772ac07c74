"""One training run's conversation with an inducer: ask, pick up, judge, remember. Knows nothing of SB3."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch as th

from sb3_nser.errors import ConfigurationError, InductionError
from sb3_nser.induction.base import InductionFailure, InductionRequest, Outcome, RuleInducer
from sb3_nser.induction.budget import CallBudget, WarnOnce
from sb3_nser.induction.data import EpisodeSource, collect, no_experience
from sb3_nser.induction.episodes import Experience
from sb3_nser.induction.formalize import FORM, as_hint, hint_request
from sb3_nser.induction.prompts import PromptSettings, build_messages, conditions_for, forms_for
from sb3_nser.induction.record import RecordWriter
from sb3_nser.induction.settings import SessionSettings
from sb3_nser.induction.worker import CallRunner
from sb3_nser.logic import Dataset, judge
from sb3_nser.rules import Entry, RuleBook, moved_rule
from sb3_nser.rules.check import object_features
from sb3_nser.rules.evidence import describe_lift, percent
from sb3_nser.rules.schema import parse_reply, reply_schema
from sb3_nser.vocabulary import Vocabulary

MAX_REFUSED = 4
"""Sentences on unusable rules that the next prompt repeats, the newest ones."""
DEFAULT_PROMPT_BUDGET = 9_000
"""Characters of a prompt for an inducer that names no limit of its own."""


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


class InductionSession:
    """
    :param vocabulary: the names rules speak in
    :param book: the rules so far
    :param budget: spacing and limits of the calls
    :param calls: where questions go, live or recorded
    :param inducer: who answers; asked only for its name and its prompt budget
    :param settings: validated settings
    :param warn: gives one warning per cause
    :param writer: the record, None for none
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        book: RuleBook,
        budget: CallBudget,
        calls: CallRunner,
        inducer: RuleInducer,
        settings: SessionSettings,
        warn: WarnOnce,
        writer: RecordWriter | None = None,
    ) -> None:
        self.vocabulary, self.book, self.budget = vocabulary, book, budget
        self.seconds_waited = 0.0
        self.refused: list[str] = []  # what was wrong with rules that could not be used, for the next prompt
        self._calls, self._inducer, self._settings = calls, inducer, settings
        self._warn, self._writer = warn, writer

    @property
    def busy(self) -> bool:
        """True while a question waits for its answer."""
        return self._calls.busy

    def state(self) -> dict[str, Any]:
        """:return: rule book, budget, refusals and name in the record as plain JSON, to be saved with the replay buffer"""
        run = self._writer.run if self._writer is not None else None
        return {"book": self.book.to_dict(), "budget": self.budget.state(), "run": run, "refused": list(self.refused)}

    def rehearse(self) -> None:
        """
        Build the prompts of an empty experience, so that what cannot fit is known before training.

        :raises ConfigurationError: if task and names alone do not fit into the context window
        """
        nothing = no_experience(self.vocabulary)
        for form in self._settings.prompt_forms or forms_for(self.vocabulary):
            self._messages(nothing, form, 0)
        for number in range(len(self._settings.hints)):
            self._hint_request(number, 0, nothing)

    def turn(self, source: EpisodeSource, step: int, gamma: float) -> bool:
        """
        Judge the known rules on today's episodes, then, if the limits allow, hand in the next question, in which the model
        hears today's numbers.

        :param source: the replay buffer
        :param step: environment step
        :param gamma: discount of the returns
        :return: True if the rules in force, or their weights, may have changed
        """
        started = time.perf_counter()
        experience = self._collect(source, gamma)
        judged = self._judge(experience, step)
        if self.budget.stopped:
            self.budget.passed(step)
        else:
            self._ask(experience, step)
        self.seconds_waited += time.perf_counter() - started
        return judged

    def _ask(self, experience: Experience, step: int) -> None:
        settings = self._settings
        number = self.budget.calls
        if number < len(settings.hints):
            self.budget.asked(step)
            self._calls.submit(self._hint_request(number, step, experience))
            return
        forms = settings.prompt_forms or forms_for(self.vocabulary)
        form = forms[number % len(forms)]
        try:
            messages, prompt = self._messages(experience, form, number)
        except ConfigurationError as error:  # fitted when training began, but other features are shown now
            self.budget.asked(step)
            self._failed(InductionFailure("context", str(error)))
            return
        ready_made = conditions_for(self.vocabulary, experience, form, prompt)
        schema = reply_schema(self.vocabulary, settings.rules_per_call, conditions=ready_made, rich=form == "rich")
        self.budget.asked(step)
        learnt_from = experience.part(~self._dataset(experience).held_out) if len(experience) else experience
        self._calls.submit(
            InductionRequest(number, step, messages, schema, settings.rules_per_call, form, self.vocabulary, learnt_from)
        )

    def _hint_request(self, number: int, step: int, experience: Experience) -> InductionRequest:
        """The first calls of a run translate the user's hints, one each."""
        hint, budget = self._settings.hints[number], self._prompt_budget
        return hint_request(self.vocabulary, hint, experience, budget=budget, number=number, step=step)

    @property
    def _prompt_budget(self) -> int:
        return int(getattr(self._inducer, "prompt_budget", DEFAULT_PROMPT_BUDGET))

    def _messages(self, experience: Experience, form: str, number: int) -> tuple[tuple[dict[str, str], ...], PromptSettings]:
        prompt = PromptSettings(self._prompt_budget, self._settings.rules_per_call, self._settings.hints, number)
        feedback = [*self.book.feedback_lines(limit=12), *self.refused]
        return build_messages(self.vocabulary, experience, feedback, form, prompt), prompt

    def pick_up(self, source: EpisodeSource, step: int, gamma: float, wait: bool) -> InductionRound | None:
        """
        Apply the answer to the running question, if it is there.

        :param source: the replay buffer
        :param step: environment step
        :param gamma: discount of the returns
        :param wait: True waits for the answer until the deadline
        :return: what happened, None if there is no answer yet
        :raises InductionError: if the call failed and ``strict`` is set; everything else is in order then
        """
        started = time.perf_counter()
        outcome = self._calls.poll(step, wait)
        if outcome is None:
            self.seconds_waited += time.perf_counter() - started
            return None
        verdicts, failure = self._apply(outcome, source, step, gamma)
        if self._writer is not None:
            self._writer.write(outcome.request, outcome, step, verdicts)
        self.seconds_waited += time.perf_counter() - started
        if failure is not None and self._settings.strict:
            raise InductionError(failure.message) from (outcome.original or failure)
        message = failure.message if failure else ""
        return InductionRound(step, outcome.request.step, verdicts, self.in_force(), message, outcome.seconds)

    def close(self) -> InductionRequest | None:
        """
        Give up a running question; the record says that it got no answer.

        :return: that question, None if none was running
        """
        request = self._calls.close()
        if request is not None and self._writer is not None:
            self._writer.write(request, None, None, {})
        return request

    def in_force(self) -> tuple[str, ...]:
        """:return: the active rules as they weigh now: fitted thresholds, confidence, evidence in words"""
        lines = []
        for entry in self.book.active():
            rule = moved_rule(entry.rule, entry.fitted) if entry.fitted else entry.rule
            lines.append(f"{rule}  ({_measured(entry)}, confidence {entry.confidence:.2f})")
        return tuple(lines)

    def _apply(
        self, outcome: Outcome, source: EpisodeSource, step: int, gamma: float
    ) -> tuple[dict[str, str], InductionFailure | None]:
        if outcome.failure is not None:
            return {}, self._failed(outcome.failure)
        assert outcome.reply is not None  # an outcome has one of the two
        reply = outcome.reply
        parsed = parse_reply(reply.text, self.vocabulary, outcome.request.max_rules) if reply.rules is None else None
        if parsed is not None and parsed.error:
            shown = " ".join(reply.text.split())[:80]
            sentence = f"{reply.model} did not honour the schema: {parsed.error}; it begins {shown!r}."
            return {}, self._failed(InductionFailure("prose", sentence, reply.seconds))
        hint = outcome.request.form == FORM and parsed is not None  # an inducer that reads no prompt translates none
        if hint and parsed is not None:
            parsed = as_hint(parsed, self._settings.hints[outcome.request.number])
        for note in reply.notes:
            self._warn(note[:40], f"{self._inducer.describe()}: {note}")
        rules = list(reply.rules or () if parsed is None else parsed.rules)
        proposal = self.book.propose(rules, step, self.vocabulary)
        self.budget.answered(reply.prompt_tokens + reply.reply_tokens, reply.seconds, len(proposal.new))
        if hint:
            self.budget.next_step = step  # the agent's own episodes need not wait for the hints
        self._judge(self._collect(source, gamma), step)
        verdicts = {str(rule): _verdict(self.book[rule.key]) for rule in rules}
        if parsed is not None:
            verdicts |= {sentence: "refused" for sentence in parsed.refused}
            self._remember(parsed.refused)
        return verdicts, None

    def _remember(self, sentences: Sequence[str]) -> None:
        """Keep what the model should hear of rules it wrote in vain: which name nobody knows, and the closest one."""
        heard = [f"refused: {sentence.partition(': ')[2] or sentence}" for sentence in sentences]
        older = [line for line in self.refused if line not in heard]
        self.refused = [*older, *dict.fromkeys(heard)][-MAX_REFUSED:]

    def _failed(self, failure: InductionFailure) -> InductionFailure:
        self.budget.failed(failure.seconds)
        self._warn(failure.cause, f"{failure.message} Training goes on with the rules so far.")
        if self.budget.failures_in_a_row >= self.budget.max_failures:
            self._warn("stopped", f"{self.budget.stopped}; the model is not asked again in this run.")
        return failure

    def _collect(self, source: EpisodeSource, gamma: float) -> Experience:
        objects = object_features((entry.rule for entry in self.book.candidates()), self.vocabulary)
        return collect(source, self.vocabulary, gamma, self._settings.max_transitions, objects)

    def _judge(self, experience: Experience, step: int) -> bool:
        """Fit every candidate on part of the episodes and let the other part decide, once per rule and step."""
        candidates = self.book.candidates()
        due = {entry.key for entry in candidates if not entry.history or entry.history[-1][0] != step}
        if not due or not len(experience):
            return False
        dataset = self._dataset(experience)
        with _one_thread():
            judgements = judge(candidates, self.vocabulary, dataset, self.book.policy, seed=self._settings.seed)
        self.book.judge_all([item for item in judgements if item.key in due], step)
        return True

    def _dataset(self, experience: Experience) -> Dataset:
        """:return: the same split into fitting and held-out episodes for whoever learns and whoever judges"""
        columns, ids = experience.tensors(), experience.episode_ids
        returns, gamma, seed = experience.returns, experience.gamma, self._settings.seed
        return Dataset.build(columns, experience.actions, returns, ids, seed=seed, gamma=gamma)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The fit's tensors are small: more threads gain nothing, and collapse beside a model server that wants the cores too."""
    threads = th.get_num_threads()
    th.set_num_threads(1)
    try:
        yield
    finally:
        th.set_num_threads(threads)


def _verdict(entry: Entry) -> str:
    repeats = f"; proposed {entry.times_proposed} times" if entry.times_proposed > 1 else ""
    return f"{entry.status}: {entry.reason} ({_measured(entry)}){repeats}"


def _measured(entry: Entry) -> str:
    """Lift and firing rate in a few words; the whole evidence stands in the rule book."""
    evidence = entry.evidence
    if evidence is None:
        return "not measured yet"
    rate = f"fires in {percent(evidence.body_rate)}"
    if evidence.verdict in ("never_fires", "always_fires"):
        return rate
    if evidence.verdict == "no_evidence":
        return f"{rate}, {evidence.support} rows with the action and {evidence.contrast} without"
    return f"{describe_lift(evidence)}, {rate}"
