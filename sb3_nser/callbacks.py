"""Where the three stages meet: priorities for any supported algorithm, and rules on top of them."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_nser.arguments import as_bool, as_int, as_number, closest
from sb3_nser.errors import ConfigurationError, InductionError, LLMUnavailableError
from sb3_nser.induction import (
    BackgroundCalls,
    InductionFailure,
    InductionRequest,
    OllamaInducer,
    Outcome,
    RecordedCalls,
    RecordWriter,
    RuleInducer,
)
from sb3_nser.induction.data import collect
from sb3_nser.induction.prompts import FORMS, PromptSettings, build_messages, forms_for
from sb3_nser.induction.session import CallBudget, WarnOnce
from sb3_nser.induction.worker import CallRunner
from sb3_nser.logic import Dataset, build_bank, judge, scorer
from sb3_nser.replay import LearnerLink, NSERReplayBuffer, Transitions
from sb3_nser.rules import AdmissionPolicy, Entry, RuleBook, describe_evidence, moved_rule, problems
from sb3_nser.rules.schema import parse_reply, reply_schema
from sb3_nser.vocabulary import Vocabulary, env_id_of, vocabulary_for

LOG_EVERY = 500
"""Environment steps between two looks at the costly scalars (mean score); the cheap ones are recorded at every rollout."""


class PriorityCallback(BaseCallback):
    """Prioritised replay for any supported off-policy algorithm: TD errors become priorities, weights scale the loss.

    SB3's ``train()`` stays as it is; hooks on the critic do both (see :class:`~sb3_nser.replay.LearnerLink`). They are
    installed when training starts and removed when it ends. The model must use :class:`~sb3_nser.NSERReplayBuffer`.

    :param verbose: 0 silent, 1 information, 2 debug
    :raises ConfigurationError: at training start, if the model uses another buffer class
    :raises UnsupportedError: at training start, if the algorithm is not supported
    """

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._link: LearnerLink | None = None
        self._next_log = 0

    @property
    def buffer(self) -> NSERReplayBuffer:
        """The model's replay buffer, looked up afresh: ``load_replay_buffer`` replaces it."""
        buffer = getattr(self.model, "replay_buffer", None)
        assert isinstance(buffer, NSERReplayBuffer)  # LearnerLink.install has checked it
        return buffer

    def _on_training_start(self) -> None:
        self._link = LearnerLink(self.model)
        self._link.install()
        self.buffer.set_progress(self._progress(), restart=self.num_timesteps == 0)
        self._next_log = self.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        # the last moment before train(): everything collected so far is stored
        buffer = self.buffer
        buffer.set_progress(self._progress())
        if self.num_timesteps < self._next_log:
            return
        self._next_log = self.num_timesteps + LOG_EVERY
        self.logger.record("nser/beta", buffer.beta_now)
        self.logger.record("nser/rule_fraction", buffer.rule_fraction_now)
        self.logger.record("nser/ess", buffer.effective_sample_size)
        self.logger.record("nser/mean_score", buffer.mean_score)
        self.logger.record("nser/stale_writes", buffer.stale_writes)

    def _on_training_end(self) -> None:
        if self._link is not None:
            self._link.remove()

    def _progress(self) -> float:
        return 1.0 - float(self.model._current_progress_remaining)


@dataclass(frozen=True)
class InductionRound:
    """What happened when an answer (or a failure) was applied; handed to ``on_round`` and to nobody else.

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


class RuleInductionCallback(PriorityCallback):
    """Asks a language model for rules, lets the data judge them, and lets the admitted ones reweight replay.

    Every ``every`` environment steps the newest episodes are turned into a prompt; the model answers in a background thread
    while training goes on; the answer is applied between gradient steps. Trouble with the model after training has started
    never stops training: the rules so far stay, one warning is given per cause, and ``nser/llm_failures`` counts.

    :param llm: model name as ``ollama list`` shows it
    :param every: environment steps between questions, at least 1; rounds without a new rule double the spacing, at most
        eightfold
    :param first: environment step of the first question; default ``every``
    :param host: the server; default the environment variable ``OLLAMA_HOST``, else 127.0.0.1:11434
    :param vocabulary: ``"auto"`` (by environment id, else automatic names), the name of a registered vocabulary, or a
        :class:`~sb3_nser.vocabulary.Vocabulary`
    :param task: the task in one or two sentences; default the vocabulary's own
    :param hints: a sentence, or a list of sentences, that the model is shown as the user's hints
    :param rules_per_call: rules asked for in one call, 1 to 8; more cost more time and repeat themselves
    :param max_rules: most rules that weigh on replay at one time
    :param max_calls: most calls of one run
    :param max_tokens: most tokens of one run, prompts and replies together
    :param deadline: seconds for one whole call; the first may take three times as long (the model has to load)
    :param blocking: True waits for each answer, so that a run is reproducible bit by bit without a record
    :param num_ctx: context window in tokens, sent with every call
    :param num_predict: most tokens of one reply
    :param temperature: randomness of the model, 0 to 2
    :param seed: base seed of the calls (call k uses ``seed + k``) and of the fitting
    :param keep_alive: how long the server keeps the model loaded
    :param prompt_forms: forms used in turn, of ``"evidence"`` and ``"names"``; default what suits the vocabulary
    :param max_transitions: newest transitions that rules are fitted and judged on
    :param rules_file: YAML file of rules that are loaded at training start (``pinned: true`` rules are never pruned)
    :param save_rules: YAML file to which the rule book is written whenever it changes
    :param record: JSONL file to which every call is appended
    :param replay_record: answer from this record instead of asking a model
    :param run: name of this run in a record; default the environment id
    :param require_llm: True raises at training start if no server answers or it lacks the model; False warns and trains on
    :param strict: True raises :class:`~sb3_nser.errors.InductionError` when a call fails (for debugging)
    :param inducer: anything that implements :class:`~sb3_nser.induction.RuleInducer`, instead of ``llm``
    :param policy: thresholds of admission and pruning
    :param on_round: called with an :class:`InductionRound` after each answer
    :param verbose: 1 prints rules as they are admitted, 2 also why others were not
    :raises ConfigurationError: for an unknown keyword or a value out of range
    """

    def __init__(
        self,
        llm: str = "qwen3:4b",
        every: int = 5_000,
        *,
        first: int | None = None,
        host: str | None = None,
        vocabulary: str | Vocabulary = "auto",
        task: str | None = None,
        hints: str | Sequence[str] = (),
        rules_per_call: int = 3,
        max_rules: int = 16,
        max_calls: int = 20,
        max_tokens: int = 200_000,
        deadline: float = 120.0,
        blocking: bool = False,
        num_ctx: int = 4096,
        num_predict: int = 600,
        temperature: float = 0.3,
        seed: int = 0,
        keep_alive: str | float = "30m",
        prompt_forms: Sequence[str] | None = None,
        max_transitions: int = 20_000,
        rules_file: str | os.PathLike[str] | None = None,
        save_rules: str | os.PathLike[str] | None = None,
        record: str | os.PathLike[str] | None = None,
        replay_record: str | os.PathLike[str] | None = None,
        run: str | None = None,
        require_llm: bool = True,
        strict: bool = False,
        inducer: RuleInducer | None = None,
        policy: AdmissionPolicy | None = None,
        on_round: Callable[[InductionRound], None] | None = None,
        verbose: int = 0,
        **unknown: Any,
    ) -> None:
        super().__init__(verbose)
        if unknown:
            name = next(iter(unknown))
            known = [key for key in RuleInductionCallback.__init__.__annotations__ if key not in ("unknown", "return")]
            raise ConfigurationError(f"RuleInductionCallback has no argument {name!r}.{closest(name, known)}")
        self.every = as_int("every", every, 1)
        first = self.every if first is None else as_int("first", first, 0)
        self.budget = CallBudget(
            self.every, first, max_calls=as_int("max_calls", max_calls, 0), max_tokens=as_int("max_tokens", max_tokens, 0)
        )
        self.blocking, self.strict = as_bool("blocking", blocking), as_bool("strict", strict)
        self.require_llm = as_bool("require_llm", require_llm)
        self.rules_per_call = as_int("rules_per_call", rules_per_call, 1, 8)
        self.max_transitions = as_int("max_transitions", max_transitions, 100)
        self.seed = as_int("seed", seed, 0)
        self.hints = (hints,) if isinstance(hints, str) else tuple(hints)
        self.prompt_forms = (prompt_forms,) if isinstance(prompt_forms, str) else tuple(prompt_forms or ())
        for form in self.prompt_forms:
            if form not in FORMS:
                raise ConfigurationError(f"prompt_forms={prompt_forms!r}: {form!r} is not one of {', '.join(FORMS)}.")
        self.policy = policy or AdmissionPolicy(max_rules=as_int("max_rules", max_rules, 1))
        self.inducer: RuleInducer = inducer or OllamaInducer(
            llm,
            host,
            deadline=as_number("deadline", deadline, 0.0, open_low=True),
            num_ctx=num_ctx,
            num_predict=num_predict,
            temperature=temperature,
            seed=self.seed,
            keep_alive=keep_alive,
        )
        self._vocabulary_given, self._task = vocabulary, task
        self._rules_file, self._save_rules = rules_file, save_rules
        self._record_path, self._replay_path, self._run = record, replay_record, run
        self._on_round = on_round
        self._warn = WarnOnce()
        self._calls: CallRunner | None = None
        self._writer: RecordWriter | None = None
        self._waited = 0.0
        self._book: RuleBook | None = None
        self._vocabulary: Vocabulary | None = None

    @property
    def book(self) -> RuleBook:
        """
        Every rule that was proposed, with its status and evidence.

        :raises ConfigurationError: before training has started
        """
        if self._book is None:
            raise ConfigurationError("the rule book exists once training has started; call model.learn(callback=...) first.")
        return self._book

    @property
    def vocabulary(self) -> Vocabulary:
        """
        The names rules speak in.

        :raises ConfigurationError: before training has started
        """
        if self._vocabulary is None:
            raise ConfigurationError("the vocabulary is chosen at training start; call model.learn(callback=...) first.")
        return self._vocabulary

    @property
    def seconds_waited(self) -> float:
        """Wall-clock seconds that training stood still for induction: waiting for answers, fitting and judging."""
        return self._waited

    # ------------------------------------------------------------------ hooks of SB3

    def _on_training_start(self) -> None:
        super()._on_training_start()
        buffer = self.buffer
        env_id = env_id_of(self.training_env)
        vocabulary = vocabulary_for(buffer.observation_space, buffer.action_space, env_id, self._vocabulary_given)
        self._vocabulary = dataclasses.replace(vocabulary, task=self._task) if self._task else vocabulary
        run = self._run or env_id or vocabulary.name
        self._restore_book(fresh=self.num_timesteps == 0)
        self._start_calls(run)
        if self._record_path is not None:
            self._writer = RecordWriter(self._record_path, run, fresh=self.num_timesteps == 0)
        self._ground()

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        calls = self._calls
        if calls is None:
            return
        if calls.busy:
            self._pick_up(wait=False)
        if not calls.busy and self.budget.due(self.num_timesteps):
            self._ask(calls)
            if self.blocking and self._replay_path is None:
                self._pick_up(wait=True)

    def _on_training_end(self) -> None:
        super()._on_training_end()
        if self._calls is not None:
            request = self._calls.close()
            if request is not None and self._writer is not None:
                self._writer.write(request, None, None, {})
        self._save()

    # ------------------------------------------------------------------ start

    def _restore_book(self, fresh: bool) -> None:
        state = self.buffer.rule_state
        if fresh and self._book is not None:
            self._book, state = None, None  # a second learn() from step 0 is a new run
            self.budget.reset()
        if self._book is not None:
            return
        if state is not None:
            self._book = RuleBook.from_dict(state["book"])
            self._book.policy = self.policy
            self.budget.restore(state["budget"])
        else:
            self._book = RuleBook(self.policy)
        if self._rules_file is not None:
            self._load_rules(self._rules_file, self._book)

    def _load_rules(self, file: str | os.PathLike[str], book: RuleBook) -> None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"rules_file={str(file)!r} cannot be read ({error}).") from None
        for entry in RuleBook.from_yaml(text, self.policy).entries:
            wrong = problems(entry.rule, self.vocabulary)
            if wrong and entry.status != "invalid":
                raise ConfigurationError(f"rules_file={str(file)!r}, rule '{entry.rule}': {' '.join(wrong)}")
            book.adopt(entry)

    def _start_calls(self, run: str) -> None:
        if self._calls is not None and self._calls.busy:
            self._calls.close()
        if self._replay_path is not None:
            self._calls = RecordedCalls(self._replay_path, run)
            return
        self._calls = BackgroundCalls(self.inducer)
        try:
            worry = self.inducer.check()
        except LLMUnavailableError as error:
            if self.require_llm:
                if self._link is not None:
                    self._link.remove()
                raise
            worry = str(error)
        if worry:
            self._warn("check", worry)

    # ------------------------------------------------------------------ ask and apply

    def _ask(self, calls: CallRunner) -> None:
        started = time.perf_counter()
        number = self.budget.calls
        forms = self.prompt_forms or forms_for(self.vocabulary)
        form = forms[number % len(forms)]
        experience = collect(self.buffer, self.vocabulary, self._gamma, self.max_transitions)
        if len(self.book) and len(experience):
            self._judge()  # what is in force is judged afresh, so that the model hears today's numbers
        budget = getattr(self.inducer, "prompt_budget", 9_000)
        messages = build_messages(
            self.vocabulary,
            experience,
            self.book.feedback_lines(limit=12),
            form,
            PromptSettings(budget, self.rules_per_call, self.hints),
        )
        schema = reply_schema(self.vocabulary, self.rules_per_call)
        request = InductionRequest(number, self.num_timesteps, messages, schema, self.rules_per_call, form)
        self.budget.asked(self.num_timesteps)
        calls.submit(request)
        self._waited += time.perf_counter() - started

    def _pick_up(self, wait: bool) -> None:
        assert self._calls is not None
        started = time.perf_counter()
        outcome = self._calls.poll(self.num_timesteps, wait)
        if outcome is not None:
            verdicts, failure = self._apply(outcome)
            self._ground()
            if self._writer is not None:
                self._writer.write(outcome.request, outcome, self.num_timesteps, verdicts)
            self._save()
        self._waited += time.perf_counter() - started
        if outcome is None:
            return
        self._log_rules()
        if self._on_round is not None:
            active = tuple(_in_force(entry) for entry in self.book.active())
            step, requested = self.num_timesteps, outcome.request.step
            message = failure.message if failure else ""
            self._on_round(InductionRound(step, requested, verdicts, active, message, outcome.seconds))
        if failure is not None and self.strict:
            raise InductionError(failure.message) from (outcome.original or failure)

    def _apply(self, outcome: Outcome) -> tuple[dict[str, str], InductionFailure | None]:
        if outcome.failure is not None:
            return {}, self._failed(outcome.failure)
        assert outcome.reply is not None  # an outcome has one of the two
        reply = outcome.reply
        parsed = parse_reply(reply.text, self.vocabulary, outcome.request.max_rules) if reply.rules is None else None
        if parsed is not None and parsed.error:
            shown = " ".join(reply.text.split())[:80]
            sentence = f"{reply.model} did not honour the schema: {parsed.error}; it begins {shown!r}."
            return {}, self._failed(InductionFailure("prose", sentence, reply.seconds))
        for note in reply.notes:
            self._warn(note[:40], f"{self.inducer.describe()}: {note}")
        rules = list(reply.rules if parsed is None else parsed.rules)
        proposal = self.book.propose(rules, self.num_timesteps, self.vocabulary)
        self.budget.answered(reply.prompt_tokens + reply.reply_tokens, reply.seconds, len(proposal.new))
        self._judge()
        verdicts = {str(rule): _verdict(self.book[rule.key]) for rule in rules}
        if parsed is not None:
            verdicts |= {sentence: "refused" for sentence in parsed.refused}
        return verdicts, None

    def _failed(self, failure: InductionFailure) -> InductionFailure:
        self.budget.failed(failure.seconds)
        self._warn(failure.cause, f"{failure.message} Training goes on with the rules so far.")
        if self.budget.failures_in_a_row >= self.budget.max_failures:
            self._warn("stopped", f"{self.budget.stopped}; the model is not asked again in this run.")
        return failure

    # ------------------------------------------------------------------ judge and ground

    @property
    def _gamma(self) -> float:
        return float(getattr(self.model, "gamma", 0.99))

    def _judge(self) -> None:
        """Fit every candidate on part of the newest episodes and let the other part decide."""
        experience = collect(self.buffer, self.vocabulary, self._gamma, self.max_transitions)
        candidates = self.book.candidates()
        if not candidates or not len(experience):
            return
        dataset = Dataset.build(
            experience.columns, experience.actions, experience.returns, experience.episode_ids, seed=self.seed
        )
        self.book.judge_all(judge(candidates, self.vocabulary, dataset, self.policy), self.num_timesteps)

    def _ground(self) -> None:
        """Hand the scorer of the active rules, and the book as plain JSON, to the buffer."""
        active = self.book.active()
        state = {"book": self.book.to_dict(), "budget": self.budget.state()}
        if active:
            score = scorer(build_bank(active, self.vocabulary), self.vocabulary)

            def score_transitions(rows: Transitions) -> Any:
                return score(rows.observations, rows.next_observations, rows.actions)

            self.buffer.set_scorer(score_transitions, state)
        else:
            self.buffer.set_scorer(None, state)
        self.buffer.rescore()
        self._log_scalars()

    # ------------------------------------------------------------------ tell

    def _log_scalars(self) -> None:
        counts, budget = self.book.counts(), self.budget
        self.logger.record("nser/rules_active", len(self.book.active()))
        self.logger.record("nser/rules_pruned", counts.get("pruned", 0))
        self.logger.record("nser/rules_rejected", counts.get("rejected", 0))
        self.logger.record("nser/llm_calls", budget.calls)
        self.logger.record("nser/llm_failures", budget.failures)
        self.logger.record("nser/llm_seconds", budget.seconds)
        self.logger.record("nser/llm_tokens", budget.tokens)
        self.logger.record("nser/seconds_waited", self._waited)

    def _log_rules(self) -> None:
        lines = [_in_force(entry) for entry in self.book.active()] or ["no rule is active"]
        text = "  \n".join(lines)  # two blanks: TensorBoard reads Markdown
        self.logger.record("nser/rules", text, exclude=("stdout", "log", "json", "csv"))
        if self.verbose >= 1:
            print(f"[nser] step {self.num_timesteps}: {len(self.book.active())} active rules", *lines, sep="\n  ")

    def _save(self) -> None:
        if self._save_rules is None:
            return
        path = Path(self._save_rules)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(path.name + ".tmp")
            draft.write_text(self.book.to_yaml(), encoding="utf-8")
            draft.replace(path)  # a reader never sees half a file
        except OSError as error:
            self._warn("save_rules", f"save_rules={str(path)!r} cannot be written: {error}")


def _in_force(entry: Entry) -> str:
    """An active rule as it weighs now: fitted thresholds, confidence, evidence in words."""
    rule = moved_rule(entry.rule, entry.fitted) if entry.fitted else entry.rule
    evidence = describe_evidence(entry.evidence) if entry.evidence else "not measured yet"
    return f"{rule}  (confidence {entry.confidence:.2f}; {evidence})"


def _verdict(entry: Entry) -> str:
    evidence = f"; {describe_evidence(entry.evidence)}" if entry.evidence else ""
    repeats = f", proposed {entry.times_proposed} times" if entry.times_proposed > 1 else ""
    return f"{entry.status}: {entry.reason}{repeats}{evidence}"
