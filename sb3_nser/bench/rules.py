"""Whether the evidence tells right rules from wrong ones: hand-written rules, judged by the product's own path.

A run: a half-skilled player fills a real ``NSERReplayBuffer``; all rules of the environment, in random order, are proposed to a
``RuleBook`` at once and judged every 5,000 steps by ``InductionSession.turn``, as ``RuleInductionCallback`` does it; what the
book says at the end is counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_nser.bench.report import Report, Target, table
from sb3_nser.bench.rule_players import FIRST_EPSILON, LAST_EPSILON, play
from sb3_nser.bench.rule_problems import PROBLEMS, RuleProblem
from sb3_nser.induction import BackgroundCalls, RandomInducer
from sb3_nser.induction.budget import CallBudget, WarnOnce
from sb3_nser.induction.session import InductionSession
from sb3_nser.induction.settings import SessionSettings
from sb3_nser.rules import AdmissionPolicy, Entry, RuleBook, describe_evidence, moved_rule, parse_rule
from sb3_nser.vocabulary import Vocabulary, vocabulary_of

EVERY = 5_000
"""Environment steps between two judgements."""
GAMMA = 0.99
WRONG_LIMIT, RIGHT_LIMIT = 0.95, 0.80
"""Share of the wrong rules that must not be admitted, and of the right ones that must be."""
FIRST_SEED = 100
"""Seed of the first run; the judging was developed on seeds below."""

GROUPS = ("admitted", "waiting", "rejected")
Counts = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Verdict:
    """
    What became of one rule in one run.

    :param env_id: the environment
    :param seed: of the run
    :param right: what the rule's author says
    :param entry: the rule book's entry after the last judgement
    """

    env_id: str
    seed: int
    right: bool
    entry: Entry

    @property
    def group(self) -> str:
        """``admitted``, ``waiting`` or ``rejected`` (refused at once, or pruned after it had counted)."""
        status = self.entry.status
        return status if status in ("admitted", "waiting") else "rejected"

    def as_dict(self) -> dict[str, Any]:
        """:return: plain JSON"""
        evidence = self.entry.evidence
        measured = {} if evidence is None else evidence.to_dict()
        return {
            "env": self.env_id,
            "seed": self.seed,
            "right": self.right,
            "rule": str(self.entry.rule),
            "fitted_rule": str(moved_rule(self.entry.rule, self.entry.fitted)),
            "status": self.entry.status,
            "on_prior": self.entry.on_prior,
            "reason": self.entry.reason,
            "history": [verdict for _, verdict in self.entry.history],
            **measured,
        }


def run_problem(problem: RuleProblem, steps: int, seed: int, policy: AdmissionPolicy | None = None) -> list[Verdict]:
    """
    One run of one environment.

    :param problem: environment and rules
    :param steps: environment steps
    :param seed: of the player, of the order of the rules and of the judging
    :param policy: thresholds of admission
    :return: one verdict per rule
    """
    labels = {parse_rule(text).key: True for text in problem.right} | {parse_rule(text).key: False for text in problem.wrong}
    rules = [parse_rule(text) for text in (*problem.right, *problem.wrong)]
    order = np.random.default_rng(seed).permutation(len(rules))
    session: InductionSession | None = None
    for step, buffer, env in play(problem.env_id, steps, seed, EVERY):
        if session is None:
            session = _session(vocabulary_of(env), RuleBook(policy), seed)
            session.book.propose([rules[at] for at in order], 0, session.vocabulary)
        session.turn(buffer, step, GAMMA)
    assert session is not None  # there is at least one step
    return [Verdict(problem.env_id, seed, labels[entry.key], entry) for entry in session.book.entries]


def _session(vocabulary: Vocabulary, book: RuleBook, seed: int) -> InductionSession:
    """:return: a session that judges and asks nobody"""
    inducer, budget = RandomInducer(), CallBudget(EVERY, EVERY, max_calls=0, max_tokens=1)
    settings = SessionSettings(1, (), (), max_transitions=20_000, seed=seed, strict=False)
    return InductionSession(vocabulary, book, budget, BackgroundCalls(inducer), inducer, settings, WarnOnce())


def confusion(verdicts: Iterable[Verdict]) -> Counts:
    """:return: ``right`` and ``wrong`` -> admitted, waiting, rejected and all (``rules``)"""
    counts = {True: Counter[str](), False: Counter[str]()}
    for one in verdicts:
        counts[one.right][one.group] += 1
    return {
        name: {group: counts[right][group] for group in GROUPS} | {"rules": counts[right].total()}
        for name, right in (("right", True), ("wrong", False))
    }


def shares(counts: Counts) -> tuple[float, float]:
    """:return: share of the right rules that were admitted, and of the wrong ones that were not; 1 of none"""
    right, wrong = counts["right"], counts["wrong"]
    return right["admitted"] / max(1, right["rules"]), 1.0 - wrong["admitted"] / max(1, wrong["rules"])
