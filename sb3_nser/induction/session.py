"""One training run's conversation with an inducer: ask, pick up, judge, remember. Knows nothing of SB3."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sb3_nser.errors import ConfigurationError, InductionError
from sb3_nser.induction.base import InductionFailure, InductionRequest, Outcome, RuleInducer, reads_prompt
from sb3_nser.induction.budget import CallBudget, WarnOnce
from sb3_nser.induction.data import EpisodeSource, collect, no_experience
from sb3_nser.induction.episodes import Experience
from sb3_nser.induction.formalize import FORM, as_hint, hint_request
from sb3_nser.induction.prompts import PromptSettings, forms_for
from sb3_nser.induction.questions import question
from sb3_nser.induction.record import RecordWriter
from sb3_nser.induction.repair import repair
from sb3_nser.induction.rounds import InductionRound as InductionRound
from sb3_nser.induction.rounds import ReadAnswer, Round, measured, verdict
from sb3_nser.induction.settings import SessionSettings
from sb3_nser.induction.worker import CallRunner
from sb3_nser.logic import Dataset, judge
from sb3_nser.logic.threads import one_torch_thread
from sb3_nser.rules import Entry, Rule, RuleBook, moved_rule
from sb3_nser.rules.check import object_features
from sb3_nser.rules.lineage import repaired_from
from sb3_nser.rules.schema import parse_reply
from sb3_nser.vocabulary import Vocabulary

MAX_REFUSED = 4
"""Sentences on unusable rules that the next prompt repeats, the newest ones."""
DEFAULT_PROMPT_BUDGET = 9_000
"""Characters of a prompt for an inducer that names no limit of its own."""


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
        self._hints = settings.hints if reads_prompt(inducer) else ()
        self._round = Round()
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
            self._question(nothing, 0, 0, (form,))
        for number in range(len(self._hints)):
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
        judged, _ = self._judge(experience, step)
        if self.budget.stopped:
            self.budget.passed(step)
        else:
            self._round = Round(left=self._settings.calls_per_round, requested=step)
            self._ask(experience, step)
        self.seconds_waited += time.perf_counter() - started
        return judged

    def _ask(self, experience: Experience, step: int) -> None:
        number = self.budget.calls
        self._round.left -= 1
        if number < len(self._hints):
            self.budget.asked(step)
            self._calls.submit(self._hint_request(number, step, experience))
            return
        # those that will judge the rules are not shown either: what is counted in a prompt is copied into rules
        learnt_from = experience.part(~self._dataset(experience).held_out) if len(experience) else experience
        try:
            request = self._question(learnt_from, number, step, self._settings.prompt_forms)
        except ConfigurationError as error:  # fitted when training began, but other features are shown now
            self.budget.asked(step)
            self._failed(InductionFailure("context", str(error)))
            return
        self.budget.asked(step)
        self._calls.submit(request)

    def _hint_request(self, number: int, step: int, experience: Experience) -> InductionRequest:
        """The first calls of a run translate the user's hints, one each."""
        hint, budget = self._hints[number], self._prompt_budget
        return hint_request(self.vocabulary, hint, experience, budget=budget, number=number, step=step)

    @property
    def _prompt_budget(self) -> int:
        return int(getattr(self._inducer, "prompt_budget", DEFAULT_PROMPT_BUDGET))

    def _question(self, learnt_from: Experience, number: int, step: int, forms: Sequence[str]) -> InductionRequest:
        prompt = PromptSettings(self._prompt_budget, self._settings.rules_per_call, self._hints, number)
        feedback = [*self.book.feedback_lines(limit=12), *self.refused]
        return question(self.vocabulary, learnt_from, prompt, forms=forms, feedback=feedback, step=step)

    def pick_up(self, source: EpisodeSource, step: int, gamma: float, wait: bool) -> InductionRound | None:
        """
        Enter the answer to the running question, if it is there, and ask the round's next one; after its last one, repair and
        judge what the round has brought.

        :param source: the replay buffer
        :param step: environment step
        :param gamma: discount of the returns
        :param wait: True waits for the answers until their deadlines
        :return: what happened, None while the round goes on
        :raises InductionError: if a call failed and ``strict`` is set; everything else is in order then
        """
        started = time.perf_counter()
        news: InductionRound | None = None
        while news is None:
            outcome = self._calls.poll(step, wait)
            if outcome is None:
                break
            news = self._pool(outcome, source, step, gamma)
        self.seconds_waited += time.perf_counter() - started
        return news

    def _pool(self, outcome: Outcome, source: EpisodeSource, step: int, gamma: float) -> InductionRound | None:
        """Add an answer to the round. While the round goes on, the next question is under way when this returns."""
        pooled = self._round
        answer = self._read(outcome)
        pooled.add(answer, outcome.seconds)
        if answer.failure is None:
            answer.new = len(self.book.propose(answer.rules, step, self.vocabulary).new)
        more = pooled.left > 0 and not (answer.failure is not None and self._settings.strict)
        reply = outcome.reply
        if reply is not None and answer.failure is None:
            self.budget.answered(reply.prompt_tokens + reply.reply_tokens, reply.seconds, None if more else pooled.new)
            if answer.hint:
                self.budget.next_step = step  # the agent's own episodes need not wait for the hints
        experience: Experience | None = None
        if more and not self.budget.stopped:
            experience = self._collect(source, gamma)
            self._ask(experience, step)
            if self._calls.busy:
                self._write(outcome, step, dict.fromkeys(map(str, answer.rules), "to be judged when the round is complete"))
                return None
        return self._conclude(outcome, experience, source, step, gamma)

    def _conclude(
        self, outcome: Outcome, experience: Experience | None, source: EpisodeSource, step: int, gamma: float
    ) -> InductionRound:
        pooled = self._round
        verdicts: dict[str, str] = {}
        if pooled.answered:
            if experience is None:
                experience = self._collect(source, gamma)
            repaired = self._judge(experience, step, pooled.rules)[1]
            judged = [rule for rule in (*pooled.rules, *repaired) if rule.key in self.book]
            verdicts = {str(rule): verdict(self.book[rule.key]) for rule in judged}
            verdicts |= dict.fromkeys(pooled.refused, "refused")
        self._write(outcome, step, verdicts)
        failure = pooled.failure
        if failure is not None and self._settings.strict:
            raise InductionError(failure.message) from (outcome.original or failure)
        message = failure.message if failure is not None and not pooled.answered else ""
        return InductionRound(step, pooled.requested, verdicts, self.in_force(), message, pooled.seconds)

    def _write(self, outcome: Outcome, step: int, verdicts: dict[str, str]) -> None:
        if self._writer is not None:
            self._writer.write(outcome.request, outcome, step, verdicts)

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
            lines.append(f"{rule}  ({measured(entry)}, confidence {entry.confidence:.2f})")
        return tuple(lines)

    def _read(self, outcome: Outcome) -> ReadAnswer:
        """:return: the rules of one answer, or why there are none"""
        if outcome.failure is not None:
            return ReadAnswer(failure=self._failed(outcome.failure))
        assert outcome.reply is not None  # an outcome has one of the two
        reply = outcome.reply
        parsed = parse_reply(reply.text, self.vocabulary, outcome.request.max_rules) if reply.rules is None else None
        if parsed is not None and parsed.error:
            shown = " ".join(reply.text.split())[:80]
            sentence = f"{reply.model} did not honour the schema: {parsed.error}; it begins {shown!r}."
            return ReadAnswer(failure=self._failed(InductionFailure("prose", sentence, reply.seconds)))
        for note in reply.notes:
            self._warn(note[:40], f"{self._inducer.describe()}: {note}")
        if parsed is None:
            return ReadAnswer(list(reply.rules or ()))
        hint = outcome.request.form == FORM
        if hint:
            parsed = as_hint(parsed, self._hints[outcome.request.number])
        self._remember(parsed.refused)
        return ReadAnswer(list(parsed.rules), list(parsed.refused), hint)

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

    def _judge(self, experience: Experience, step: int, proposed: Sequence[Rule] = ()) -> tuple[bool, list[Rule]]:
        """
        Fit every candidate on part of the episodes and let the other part decide, once per rule and step.

        :param proposed: rules of this round, of which near misses are repaired first
        :return: whether anything was judged, and the repaired rules
        """
        if not len(experience):
            return False, []
        dataset = self._dataset(experience)
        with one_torch_thread():
            repaired = self._repair(dataset, step, proposed)
            candidates = self.book.candidates()
            due = {entry.key for entry in candidates if not entry.history or entry.history[-1][0] != step}
            if due:
                judgements = judge(candidates, self.vocabulary, dataset, self.book.policy, seed=self._settings.seed)
                self.book.judge_all([item for item in judgements if item.key in due], step)
        return bool(due), repaired

    def _repair(self, dataset: Dataset, step: int, proposed: Sequence[Rule]) -> list[Rule]:
        """Enter repaired forms of this round's near misses into the book, to be judged like any other rule."""
        beam, unique = self._settings.repair_beam, {rule.key: rule for rule in proposed}
        entries = [self.book[key] for key in unique if key in self.book]
        open_to_it = [entry.rule for entry in entries if entry.rule.enabled and not entry.rule.pinned]
        if not beam or not open_to_it:
            return []
        support, known = self.book.policy.min_support, {entry.key for entry in self.book.entries}
        found = repair(open_to_it, self.vocabulary, dataset, beam=beam, min_support=support, known=known)
        for item in found:
            lineage = repaired_from(self.book[item.origin.key], item.changes)
            self.book.adopt(Entry(item.rule, first_step=step, lineage=lineage))
        return [item.rule for item in found]

    def _dataset(self, experience: Experience) -> Dataset:
        """:return: the same split into fitting and held-out episodes for whoever learns and whoever judges"""
        columns, ids = experience.tensors(), experience.episode_ids
        returns, gamma, seed = experience.returns, experience.gamma, self._settings.seed
        return Dataset.build(columns, experience.actions, returns, ids, seed=seed, gamma=gamma)
