"""Whether the evidence tells right rules from wrong ones: hand-written rules, judged by the product's own path.

A run: a half-skilled player fills a real ``NSERReplayBuffer``; all rules of the environment, in random order, are proposed to
a ``RuleBook`` at once and judged every 5,000 steps by ``InductionSession.turn``, as ``RuleInductionCallback`` does it; what
the book says at the end is counted.
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
from sb3_nser.logic.threads import one_torch_thread
from sb3_nser.rules import AdmissionPolicy, Entry, RuleBook, describe_evidence, moved_rule, parse_rule
from sb3_nser.vocabulary import Vocabulary, vocabulary_of

EVERY = 5_000
"""Environment steps between two judgements."""
GAMMA = 0.99
WRONG_LIMIT, RIGHT_LIMIT = 0.95, 0.80
"""Share of the wrong rules that must not be admitted, and of the right ones that must be."""
FIRST_SEED = 200
"""Seed of the first run; the judging was developed on seeds below"""

NOTES = (
    "'data': admitted because the data support it; 'word': in force on its author's word, for there are too few rows to "
    "judge; 'rejected' includes pruned. The two shares count both kinds of admission. A rule that waits may still be "
    "admitted later.",
    "Behaviour: a scripted controller that acts at random with a probability that falls from 1 to 0.3 over the steps, as the "
    "exploration of a training run does.",
    "The judging was improved while looking at the environments 'developed on', with other seeds; those 'kept aside' were "
    "first judged when it was finished.",
)

GROUPS = ("admitted", "on_prior", "waiting", "rejected")
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
        """``admitted`` (by the data), ``on_prior`` (counts on its author's word), ``waiting`` or ``rejected`` (or pruned)."""
        status = self.entry.status
        if status == "admitted":
            return "on_prior" if self.entry.on_prior else "admitted"
        return status if status == "waiting" else "rejected"

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
    """:return: ``right`` and ``wrong`` -> admitted, on_prior, waiting, rejected and all (``rules``)"""
    counts = {True: Counter[str](), False: Counter[str]()}
    for one in verdicts:
        counts[one.right][one.group] += 1
    return {
        name: {group: counts[right][group] for group in GROUPS} | {"rules": counts[right].total()}
        for name, right in (("right", True), ("wrong", False))
    }


def shares(counts: Counts) -> tuple[float, float]:
    """
    :return: share of the right rules that were admitted, and of the wrong ones that were not. A rule that counts on its
        author's word is admitted
    """
    right, wrong = counts["right"], counts["wrong"]
    in_force = {name: one["admitted"] + one["on_prior"] for name, one in counts.items()}
    return in_force["right"] / max(1, right["rules"]), 1.0 - in_force["wrong"] / max(1, wrong["rules"])


def measure(env_ids: Sequence[str], steps: int, seeds: int, command: str, details: bool = False) -> Report:
    """
    :param env_ids: names of ``PROBLEMS``
    :param steps: environment steps per run
    :param seeds: runs per environment
    :param command: what the user typed, for the report
    :param details: whether the report lists every rule of every run
    """
    started = time.perf_counter()
    verdicts: list[Verdict] = []
    seconds: dict[str, float] = {}
    with one_torch_thread():
        for env_id in env_ids:
            began = time.perf_counter()
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                verdicts += run_problem(PROBLEMS[env_id], steps, seed)
            seconds[env_id] = round(time.perf_counter() - began, 1)
    parts = {env_id: [one for one in verdicts if one.env_id == env_id] for env_id in env_ids}
    halves = {
        name: [one for one in verdicts if PROBLEMS[one.env_id].developed is developed]
        for name, developed in (("developed on", True), ("kept aside", False))
    }
    groups = {**parts, **{name: part for name, part in halves.items() if part}, "all": verdicts}
    counts = {name: confusion(part) for name, part in groups.items()}
    targets = []
    for name in [name for name in counts if name not in parts]:
        right, wrong = shares(counts[name])
        targets.append(Target(f"right rules admitted, {name}", right, RIGHT_LIMIT, "higher"))
        targets.append(Target(f"wrong rules not admitted, {name}", wrong, WRONG_LIMIT, "higher"))
    extra: dict[str, Any] = {
        "steps": steps,
        "seeds": list(range(FIRST_SEED, FIRST_SEED + seeds)),
        "seconds": round(time.perf_counter() - started, 1),
        "seconds_per_environment": seconds,
        "exploration": [FIRST_EPSILON, LAST_EPSILON],
        "developed_on": [env_id for env_id in env_ids if PROBLEMS[env_id].developed],
        "kept_aside": [env_id for env_id in env_ids if not PROBLEMS[env_id].developed],
        "policy": AdmissionPolicy().to_dict(),
        "confusion": counts,
        "rules": [one.as_dict() for one in verdicts],
    }
    tables = [_confusion_table(counts), *([_details(verdicts)] if details else ())]
    return Report(command, (), targets, extra, NOTES, tables=tables)


def _confusion_table(counts: dict[str, Counts]) -> str:
    lines = []
    for name, part in counts.items():
        right, wrong = shares(part)
        lines.append(
            [
                name,
                *(" / ".join(str(part[side][group]) for group in GROUPS) for side in ("right", "wrong")),
                f"{100 * right:.0f} %",
                f"{100 * wrong:.0f} %",
            ]
        )
    head = ("environment", "right: data / word / waiting / rejected", "wrong: data / word / waiting / rejected",
            "right admitted", "wrong not admitted")  # fmt: skip
    return table(head, lines)


def _details(verdicts: Iterable[Verdict]) -> str:
    lines = [
        (
            one.env_id,
            str(one.seed),
            "right" if one.right else "wrong",
            str(one.entry.rule),
            one.group,
            describe_evidence(one.entry.evidence),
        )
        for one in verdicts
    ]
    return table(("environment", "seed", "label", "rule", "status", "evidence"), lines)
