"""Where the three stages meet: rules on top of the priorities for any supported algorithm."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sb3_nser.arguments import as_bool, as_int, as_number, closest
from sb3_nser.errors import ConfigurationError, LLMUnavailableError, warn_user
from sb3_nser.induction import BackgroundCalls, RecordedCalls, RecordWriter, RuleInducer
from sb3_nser.induction.budget import CallBudget, WarnOnce
from sb3_nser.induction.choice import choose_inducer, warn_of_unread_hints
from sb3_nser.induction.formalize import check_hint
from sb3_nser.induction.persistence import load_rules, restore, save_rules
from sb3_nser.induction.prompts import FORMS
from sb3_nser.induction.repair import MAX_BEAM
from sb3_nser.induction.session import InductionRound, InductionSession
from sb3_nser.induction.settings import SessionSettings, check_types, string_tuple
from sb3_nser.induction.watch import RulesWatch
from sb3_nser.induction.worker import CallRunner
from sb3_nser.logic import build_bank, scorer
from sb3_nser.replay import PriorityCallback, Transitions
from sb3_nser.rules import AdmissionPolicy, RuleBook
from sb3_nser.vocabulary import Vocabulary, env_id_of, vocabulary_of


class RuleInductionCallback(PriorityCallback):
    """Asks a language model (or another inducer) for rules, lets the data judge them, and lets the admitted ones reweight
    replay.

    Every ``every`` environment steps the rules are judged on the newest episodes, and those episodes are turned into a prompt;
    the model answers in a background thread while training goes on; the answer is applied between gradient steps. Trouble
    with the model after training has started never stops training: the rules so far stay, one warning is given per cause, and
    ``nser/llm_failures`` counts.

    Evidence for the defaults (docs): what a proposed rule has to pass keeps 99 % of wrong rules out and lets 88 % of right
    ones in (page "Benchmarks", eight environments, scripted players); what rules judged every 2500 or 5000 steps do to
    learning stands on the page "Results". Where an argument was varied, it says so. The others were set by judgement, among
    them the limits of cost (``max_calls``, ``max_tokens``, ``deadline``, ``num_ctx``, ``num_predict``), of size
    (``max_rules``, ``max_transitions``) and of trust (``prior_rule_fraction``).

    :param llm: model name as ``ollama list`` shows it. The default was not measured; those that were have 0.5 and 1.5 billion
        parameters, and the larger one did no better ("Benchmarks")
    :param every: environment steps between questions, at least 1; rounds without a new rule double the spacing, at most
        eightfold
    :param first: environment step of the first question; default ``every``
    :param host: the server; default the environment variable ``OLLAMA_HOST``, else 127.0.0.1:11434
    :param vocabulary: ``"auto"`` (by environment id, else automatic names; see ``vocabulary_of`` for wrappers), the
        name of a registered vocabulary, or a ``Vocabulary``
    :param task: the task in one or two sentences; default the vocabulary's own
    :param hints: a sentence, or a list of sentences, of the user's advice. The run's first calls translate them into rules,
        one call each (source ``user_hint``), judged like any other; later calls show them to the model. Inducers that read no
        prompt cannot use them, which is warned about
    :param rules_per_call: rules asked for in one call, 1 to 8; more cost more time and repeat themselves
    :param calls_per_round: questions asked one after the other, 1 to 8, before their rules are judged together. More pools
        answers of several seeds and prompt forms, and spends ``max_calls`` sooner; within a round the model does not hear how
        its rules did. Two found a confirmed rule on more problems than one (report half of "Benchmarks"); one is cheaper
    :param repair: True looks for a better rule next to each proposed one that the data do not support, by changing at most two
        conditions; what it finds has to pass the same judgement (see ``sb3_nser.induction.repair``). It raised the share of
        problems with a confirmed rule for small models, and for random rules too (report half of "Benchmarks")
    :param repair_beam: candidates that search keeps after each change, 1 to 32; more finds better ones and takes longer
    :param max_rules: most rules that weigh on replay at one time
    :param prior_rule_fraction: share of the draws that rules decide at most, 0 to 1, while all of them count on the model's
        word alone, as before the first reward of a sparse task; the buffer's ``rule_fraction`` holds as soon as the data
        support one of them, or you have pinned one. Higher trusts the model more
    :param max_calls: most calls of one run; 0 asks nothing (rules then come from ``rules_file`` alone)
    :param max_tokens: most tokens of one run, prompts and replies together
    :param deadline: seconds for one whole call; the first may take three times as long (the model has to load)
    :param blocking: True waits for each answer, so that a run is reproducible bit by bit without a record
    :param num_ctx: context window in tokens, sent with every call
    :param num_predict: most tokens of one reply
    :param temperature: randomness of the model, 0 to 2
    :param seed: base seed of the calls (call k uses ``seed + k``) and of the fitting
    :param keep_alive: how long the server keeps the model loaded
    :param prompt_forms: forms used in turn, of ``"evidence"``, ``"names"`` (both show little at a time and suit small models),
        ``"free"`` (shows everything, the model composes conditions itself) and ``"rich"`` (the same with ranges and facts that
        held earlier in the episode); default what suits the vocabulary, chosen with small models on six problems
    :param max_transitions: newest transitions that rules are fitted and judged on
    :param rules_file: YAML file of rules that are loaded at training start (``pinned: true`` rules are never pruned)
    :param save_rules: YAML file to which the rule book is written whenever it changes
    :param watch: True takes over edits to ``rules_file`` and ``save_rules`` while training runs
    :param record: JSONL file to which every call is appended
    :param replay_record: answer from this record instead of asking a model
    :param run: name of this run in a record; default the environment id
    :param require_llm: True raises at training start if no server answers or it lacks the model; False warns and trains on
    :param strict: True raises ``InductionError`` when a call fails (for debugging)
    :param inducer: who proposes rules: ``"ollama"`` (the default), ``"openai"`` (any OpenAI-compatible server at ``host``),
        ``"tree"`` (decision trees, no model), ``"random"`` (a control), or anything that implements ``RuleInducer``. Where
        there is reward, more of the trees' rules were confirmed than of small models' ("Benchmarks"); before the first
        reward they propose none. How fast DQN learns did not tell rules of trees, of a model and by chance apart
        (DoorKey-6x6, fifteen seeds, "Results"). ``llm``, ``host`` and the settings of a call count for the first two only
    :param policy: thresholds of admission and pruning
    :param on_round: called with an ``InductionRound`` after each answer
    :param verbose: 1 prints the rules in force after each answer
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
        rules_per_call: int = 4,
        calls_per_round: int = 1,
        repair: bool = True,
        repair_beam: int = 4,
        max_rules: int = 16,
        prior_rule_fraction: float = 0.1,
        max_calls: int = 20,
        max_tokens: int = 200_000,
        deadline: float = 120.0,
        blocking: bool = False,
        num_ctx: int = 4096,
        num_predict: int = 600,
        temperature: float = 0.3,
        seed: int = 0,
        keep_alive: str | float = "30m",
        prompt_forms: str | Sequence[str] | None = None,
        max_transitions: int = 20_000,
        rules_file: str | os.PathLike[str] | None = None,
        save_rules: str | os.PathLike[str] | None = None,
        watch: bool = False,
        record: str | os.PathLike[str] | None = None,
        replay_record: str | os.PathLike[str] | None = None,
        run: str | None = None,
        require_llm: bool = True,
        strict: bool = False,
        inducer: RuleInducer | str | None = None,
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
        every = as_int("every", every, 1)
        self.budget = CallBudget(
            every,
            every if first is None else as_int("first", first, 0),
            max_calls=as_int("max_calls", max_calls, 0),
            max_tokens=as_int("max_tokens", max_tokens, 0),
        )
        self.settings = SessionSettings(
            rules_per_call=as_int("rules_per_call", rules_per_call, 1, 8),
            hints=tuple(check_hint(hint) for hint in string_tuple("hints", hints)),
            prompt_forms=string_tuple("prompt_forms", prompt_forms),
            max_transitions=as_int("max_transitions", max_transitions, 100),
            seed=as_int("seed", seed, 0),
            strict=as_bool("strict", strict),
            calls_per_round=as_int("calls_per_round", calls_per_round, 1, 8),
            repair_beam=as_int("repair_beam", repair_beam, 1, MAX_BEAM) * as_bool("repair", repair),
        )
        for form in self.settings.prompt_forms:
            if form not in FORMS:
                raise ConfigurationError(f"prompt_forms={prompt_forms!r}: {form!r} is not one of {', '.join(FORMS)}.")
        check_types(
            {"rules_file": rules_file, "save_rules": save_rules, "record": record, "replay_record": replay_record},
            {"task": task, "run": run},
            on_round,
            inducer,
            policy,
        )
        if save_rules is not None and os.path.isdir(save_rules):
            raise ConfigurationError(f"save_rules={os.fspath(save_rules)!r} is a folder; name a file in it.")
        self.policy = policy or AdmissionPolicy(max_rules=as_int("max_rules", max_rules, 1))
        self.inducer = choose_inducer(
            inducer,
            llm,
            host,
            deadline=deadline,
            num_ctx=num_ctx,
            num_predict=num_predict,
            temperature=temperature,
            seed=self.settings.seed,
            keep_alive=keep_alive,
        )
        self.prior_rule_fraction = as_number("prior_rule_fraction", prior_rule_fraction, 0.0, 1.0)
        warn_of_unread_hints(self.inducer, self.settings.hints)
        self._blocking = as_bool("blocking", blocking)
        self._require_llm = as_bool("require_llm", require_llm)
        self._vocabulary_given, self._task = vocabulary, task
        self._rules_file, self._save_rules = rules_file, save_rules
        self._watched = as_bool("watch", watch)
        if self._watched and rules_file is None and save_rules is None:
            raise ConfigurationError("watch=True needs a file to watch: give rules_file or save_rules.")
        self._record_path, self._replay_path, self._run = record, replay_record, run
        self._on_round = on_round
        self._warn = WarnOnce()
        self._session: InductionSession | None = None
        self._watch: RulesWatch | None = None
        self._beginnings = 0

    @property
    def session(self) -> InductionSession:
        """
        The run's conversation with the model; stays after training has ended.

        :raises ConfigurationError: before training has started
        """
        if self._session is None:
            raise ConfigurationError("rules and vocabulary exist once training has started: model.learn(..., callback=...).")
        return self._session

    @property
    def book(self) -> RuleBook:
        """Every rule that was proposed, with its status and evidence; exists once training has started."""
        return self.session.book

    @property
    def vocabulary(self) -> Vocabulary:
        """The names rules speak in; chosen at training start."""
        return self.session.vocabulary

    def _on_training_start(self) -> None:
        super()._on_training_start()
        saved = self.buffer.rule_state
        try:
            self._session = self._begin()
        except BaseException:
            super()._on_training_end()  # no hook stays behind on a model that will not train
            raise
        # the very rules that scored the rows already, in this process or before they were saved
        self._ground(keep_scores=saved is not None and saved.get("book") == self._session.state()["book"])
        self._log()

    def _on_rollout_end(self) -> None:
        super()._on_rollout_end()
        session, step, gamma = self.session, self.num_timesteps, float(getattr(self.model, "gamma", 0.99))
        self._take_edits()
        if session.busy:
            self._tell(session.pick_up(self.buffer, step, gamma, wait=False))
        if not session.busy and self.budget.due(step):
            if session.turn(self.buffer, step, gamma):
                self._ground()
            if self.verbose >= 1:
                asked = f"asked {self.inducer.describe()}" if session.busy else "nobody asked"
                judged = f"{len(session.book)} {'rule' if len(session.book) == 1 else 'rules'} judged"
                print(f"[nser] step {step}: {judged}, {len(session.in_force())} in force, {asked}")
            # not only if blocking: a record may hold an answer that was applied at the step of its question
            self._tell(session.pick_up(self.buffer, step, gamma, wait=self._blocking))
            self._log()

    def _on_training_end(self) -> None:
        super()._on_training_end()
        if self._session is None:  # rl_zoo3 ends a training that never began
            return
        unanswered = self._session.close()
        self._take_edits(final=True)
        if unanswered is not None and self.budget.calls == 1 and self._replay_path is None:
            warn_user(
                "training ended before the model had answered its first question, so none of its rules could count; train "
                "longer, ask earlier (first=), use a faster model, or wait for its answers (blocking=True)."
            )
        self._save()

    def _begin(self) -> InductionSession:
        buffer, env_id = self.buffer, env_id_of(self.training_env)
        vocabulary = vocabulary_of(self.training_env, self._vocabulary_given)
        if self._task:
            vocabulary = dataclasses.replace(vocabulary, task=self._task)
        # learn(reset_num_timesteps=True) begins a new run: spacing and limits start anew. The rules stay with the buffer, as
        # the transitions do that they were learnt from.
        fresh = self.num_timesteps == 0
        saved = restore(buffer.rule_state, self.policy)
        book = saved.book
        self.budget.reset()
        if not fresh:
            self.budget.restore(saved.budget)
        if self._watched:
            self._watch = RulesWatch(self._rules_file, self._save_rules, vocabulary, self._warn)
        if self._rules_file is not None:
            load_rules(self._rules_file, book, vocabulary, resumed=buffer.rule_state is not None)
        if self.budget.max_calls == 0 and not len(book):
            warn_user("max_calls=0 and no rules_file with rules: there are no rules, and nobody will be asked for any.")
        run = self._run or env_id or vocabulary.name
        self._beginnings += fresh
        if self._replay_path is not None and self._beginnings > 1:
            run = f"{run}#{self._beginnings}"  # as the record named the second run of one script
        writer = None
        if self._record_path is not None:
            writer = RecordWriter(self._record_path, run if fresh else saved.run or run, fresh)
        session = InductionSession(
            vocabulary, book, self.budget, self._calls(run), self.inducer, self.settings, self._warn, writer
        )
        session.refused = list(saved.refused)
        session.rehearse()
        return session

    def _calls(self, run: str) -> CallRunner:
        if self._replay_path is not None:
            return RecordedCalls(self._replay_path, run)
        if self.budget.max_calls > 0:
            try:
                worry = self.inducer.check()
            except LLMUnavailableError as error:
                if self._require_llm:
                    raise
                worry = str(error)
            if worry:
                self._warn("check", worry)
        return BackgroundCalls(self.inducer)

    def _ground(self, keep_scores: bool = False) -> None:
        """
        Hand the scorer of the active rules, and the session's state as plain JSON, to the buffer.

        :param keep_scores: whether the rows have been scored by these rules already
        """
        session = self.session
        active = session.book.active()
        if active:
            bank = build_bank(active, session.vocabulary)
            score = scorer(bank, session.vocabulary)

            def score_transitions(rows: Transitions) -> np.ndarray:
                return score(rows.observations, rows.next_observations, rows.actions, rows.episodes, rows.n_envs)

            limit = self.prior_rule_fraction if all(entry.on_prior for entry in active) else 1.0
            self.buffer.set_scorer(
                score_transitions, session.state(), keep_scores=keep_scores, history=bank.history, limit=limit
            )
        else:
            self.buffer.set_scorer(None, session.state())
        self._save()

    def _log(self) -> None:
        session, budget = self.session, self.budget
        counts = session.book.counts()
        for name, value in (
            ("rules_active", counts["active"]),
            ("rules_on_prior", counts["on_prior"]),
            ("rules_pruned", counts["pruned"]),
            ("rules_rejected", counts["rejected"]),
            ("llm_calls", budget.calls),
            ("llm_failures", budget.failures),
            ("llm_seconds", budget.seconds),
            ("llm_tokens", budget.tokens),
            ("seconds_waited", session.seconds_waited),
        ):
            self.logger.record(f"nser/{name}", value)

    def _tell(self, news: InductionRound | None) -> None:
        if news is None:
            return
        self._ground()
        self._log()
        # two blanks: TensorBoard reads Markdown
        text = "  \n".join(news.active or ("no rule is active",))
        self.logger.record("nser/rules", text, exclude=("stdout", "log", "json", "csv"))
        if self.verbose >= 1:
            print("[nser]", *news.lines(), sep="\n  ")
        if self._on_round is not None:
            self._on_round(news)

    def _take_edits(self, final: bool = False) -> None:
        changes = self._watch.poll(self.session.book, final) if self._watch is not None else []
        if changes:
            self._ground()
            self._log()
            if self.verbose >= 1:
                print(f"[nser] step {self.num_timesteps}: rules were edited", *changes, sep="\n  ")

    def _save(self) -> None:
        if self._watch is not None:
            self._watch.save(self.session.book)
        elif self._save_rules is not None:
            save_rules(self._save_rules, self.session.book, self._warn)
