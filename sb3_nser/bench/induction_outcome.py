"""The judging half of the induction benchmark: what each step between a model's answer and a rule that counts adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sb3_nser.bench.induction_calls import EVERYTHING, Answer, Asked
from sb3_nser.bench.problems import RecordedSource
from sb3_nser.induction.data import collect
from sb3_nser.induction.repair import repair
from sb3_nser.logic import Dataset, judge
from sb3_nser.rules import AdmissionPolicy, Entry, Evidence, Rule

STEPS = ("one call", "pooled", "repaired", "fitted")
"""Each holds what the one before it holds: the first call's rules as written, those of all calls, their repairs as well, and
all of them with fitted thresholds."""


@dataclass(frozen=True)
class Judged:
    """
    One rule after one step.

    :param rule: as it would count
    :param held_out: on the episodes that admit rules
    :param fresh: on episodes that neither inducer, repair, fit nor admission has seen
    :param admitted: whether the admission policy takes it: supported on held-out episodes and no duplicate
    """

    rule: Rule
    held_out: Evidence
    fresh: Evidence
    admitted: bool

    @property
    def positive(self) -> bool:
        """Whether its held-out lift is above 0, surely or not; rules that could not be measured are not."""
        return self.held_out.verdict in ("supported", "inconclusive") and self.held_out.lift > 0.0

    @property
    def confirmed(self) -> bool:
        """Whether it is admitted, and the interval on fresh episodes is above 0 as well."""
        return self.admitted and self.fresh.verdict == "supported"


@dataclass(frozen=True)
class StepOutcome:
    """
    One step on one problem.

    :param rules: rules judged
    :param positive: those with a held-out lift above 0
    :param admitted: those that the policy takes
    :param confirmed: those that the fresh episodes confirm
    :param best: fresh lift, in standard deviations of the fresh returns, of the admitted rule with the highest lower bound; 0
        if none is admitted
    :param best_rule: that rule, empty if none is admitted
    """

    rules: int
    positive: int
    admitted: int
    confirmed: int
    best: float = 0.0
    best_rule: str = ""


@dataclass(frozen=True)
class Yardstick:
    """
    A problem with all that is needed to judge rules on it.

    :param asked: the problem as inducers see it
    :param fresh: fitting episodes, and the fresh ones in place of the held-out ones
    :param spread: standard deviation of the fresh returns
    """

    asked: Asked
    fresh: Dataset
    spread: float

    @classmethod
    def of(cls, asked: Asked) -> Yardstick:
        """:param asked: a problem, split as the judge splits it"""
        problem = asked.problem
        both = sorted([*problem.episodes, *problem.fresh], key=lambda episode: int(episode.indices[0]))
        everything = RecordedSource(problem.rows, tuple(both))
        seen = collect(everything, problem.vocabulary, problem.gamma, EVERYTHING)
        is_fresh = np.isin(
            np.concatenate([episode.indices for episode in both]),
            np.concatenate([episode.indices for episode in problem.fresh]),
        )
        kept = is_fresh.copy()
        kept[~is_fresh] = ~asked.dataset.held_out
        part = seen.part(kept)
        fresh = Dataset(part.tensors(), part.actions, part.returns, part.episode_ids, is_fresh[kept])
        return cls(asked, fresh, float(part.returns[is_fresh[kept]].std()))

    def judge(self, rules: Sequence[Rule], fitted: bool) -> list[Judged]:
        """
        :param rules: rules of the problem's vocabulary
        :param fitted: False takes thresholds as they are written
        :return: one result per distinct rule
        """
        entries = [Entry(rule) for rule in {rule.key: rule for rule in rules}.values()]
        if not entries:
            return []
        vocabulary = self.asked.problem.vocabulary
        held_out = judge(entries, vocabulary, self.asked.dataset, AdmissionPolicy(), steps=200 if fitted else 0)
        ready = [item.rule_fitted or entry.rule for item, entry in zip(held_out, entries, strict=True)]
        pinned = [Entry(rule.model_copy(update={"pinned": True})) for rule in ready]  # measured as they are
        fresh = judge(pinned, vocabulary, self.fresh, AdmissionPolicy())
        return [
            Judged(rule, one.evidence, other.evidence, one.evidence.verdict == "supported" and one.duplicate_of is None)
            for rule, one, other in zip(ready, held_out, fresh, strict=True)
        ]

    def outcome(self, judged: Sequence[Judged]) -> StepOutcome:
        """:return: the counts of one step"""
        admitted = sorted((item for item in judged if item.admitted), key=lambda item: -item.held_out.low)
        best = admitted[0] if admitted else None
        lift = best.fresh.lift / max(self.spread, 1e-9) if best is not None else 0.0
        return StepOutcome(
            len(judged),
            sum(item.positive for item in judged),
            len(admitted),
            sum(item.confirmed for item in judged),
            lift if math.isfinite(lift) else 0.0,
            "" if best is None else str(best.rule),
        )

    def steps(self, answers: Sequence[Answer]) -> dict[str, StepOutcome]:
        """
        :param answers: one inducer's answers about this problem
        :return: step -> what it has brought
        """
        asked = self.asked
        first, pooled = list(answers[0].rules), [rule for answer in answers for rule in answer.rules]
        unique = list({rule.key: rule for rule in pooled}.values())
        repaired = [item.rule for item in repair(unique, asked.problem.vocabulary, asked.dataset)]
        sets = ((first, False), (pooled, False), ([*pooled, *repaired], False), ([*pooled, *repaired], True))
        return {step: self.outcome(self.judge(rules, fitted)) for step, (rules, fitted) in zip(STEPS, sets, strict=True)}
