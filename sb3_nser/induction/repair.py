"""Near misses made good: a bounded beam search over the rules next to a proposed one.

A small model often writes a rule that lacks one condition, has one too many, or draws a threshold in the wrong place. The
search changes one condition at a time (add, drop, swap, move a threshold), and keeps the action and at least one feature that
the proposal speaks of: beyond that it would be another rule. It sees the *fitting* episodes
only, and scores a body by the very contrast that will judge it,

    score = lift / (its standard error, clustered by episode),

so the best of many neighbours looks better than it is. What it finds is therefore a proposal like any other: the held-out
episodes, which the search never sees, decide. The form is this package's own choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th

from sb3_nser.logic import Dataset
from sb3_nser.logic.baseline import Baseline
from sb3_nser.rules import Literal, Rule, contradictions, detrend, problems
from sb3_nser.rules.evidence import ALWAYS_RATE, MIN_EPISODES, varies
from sb3_nser.rules.schema import offered
from sb3_nser.vocabulary import Feature, Vocabulary

REPAIR_SOURCE = "repair"
"""``source`` of a repaired rule; whose rule it was says its lineage."""
SURE = 2.0
"""A rule whose score on the fitting episodes is at least this is no near miss and is left alone."""
LEAST_SCORE = 3.0
"""Score that a repaired rule needs: it is the best of hundreds, so that 2 would mean little."""
STEP = 0.5
"""What every change has to add to the score: of two repairs about as good, the one nearer to the proposal is taken."""
CONDITION = 1.0
"""What every condition has to add to it: the best of hundreds adds that much by chance."""
MAX_BEAM = 32
MAX_CHANGES = 2
MAX_BODY = 4
"""Most conditions of a repaired rule."""
MAX_POOL = 256
"""Conditions that may be added or swapped in: whole features in the vocabulary's order."""
MAX_ROWS = 10_000
MAX_CELLS = 24_000_000
"""Rows times conditions looked at in one call, over all rules. A count and no clock, so that runs are reproducible."""
TELLING = 0.95
"""A condition that holds in more than this share of the states that the others leave says nothing and is not put in."""
_QUANTILES = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)


@dataclass(frozen=True)
class Repair:
    """
    :param origin: the near miss
    :param rule: the repaired rule: no reason of its own and confidence 0, since nobody has vouched for it
    :param changes: what was done to the origin, in order: ``added carrying is nothing``
    :param before: score of the origin on the fitting episodes, NaN if it has too few rows there
    :param after: score of the repaired rule there
    """

    origin: Rule
    rule: Rule
    changes: tuple[str, ...]
    before: float
    after: float


@dataclass(frozen=True)
class _State:
    body: tuple[Literal, ...]
    changes: tuple[str, ...]
    score: float

    @property
    def worth(self) -> float:
        return self.score - STEP * len(self.changes) - CONDITION * len(self.body)


def repair(
    rules: Sequence[Rule],
    vocabulary: Vocabulary,
    dataset: Dataset,
    *,
    beam: int = 4,
    changes: int = MAX_CHANGES,
    min_support: int = 20,
    known: Collection[str] = (),
) -> list[Repair]:
    """
    Look for a better rule next to each proposed one that the fitting episodes do not support.

    :param rules: proposed rules; those that are sure already, those that cannot be grounded, and those with a formula or
        ``about`` are passed over
    :param vocabulary: the names they use
    :param dataset: its fitting episodes are searched; without held-out ones to confirm a repair nothing is searched
    :param beam: bodies kept per round of changes, at least 1; more finds better ones and costs time in proportion
    :param changes: most changes to one rule; more searches further from what was proposed
    :param min_support: rows that the judge will ask for on each side of the contrast
    :param known: keys of rules that need not be found again
    :return: at most one repair per rule, in the order of the rules; deterministic
    """
    if not len(dataset) or not dataset.held_out.any() or dataset.held_out.all() or not varies(dataset.returns):
        return []
    search = _Search(vocabulary, dataset, min_support)
    taken = set(known) | {rule.key for rule in rules}
    found = []
    for rule in rules:
        search.cells = MAX_CELLS // max(1, len(rules))
        body = _plain(rule)
        if body is None or problems(rule, vocabulary):
            continue
        best = search.best(rule, body, beam, changes)
        if best is None:
            continue
        before, state = best
        repaired = rule.model_copy(
            update={"literals": state.body, "confidence": 0.0, "why": "", "source": REPAIR_SOURCE, "pinned": False}
        )
        if repaired.key not in taken and not problems(repaired, vocabulary):
            taken.add(repaired.key)
            found.append(Repair(rule, repaired, state.changes, before, state.score))
    return found


class _Search:
    """The fitting episodes with everything computed that all rules share."""

    def __init__(self, vocabulary: Vocabulary, dataset: Dataset, min_support: int) -> None:
        target = detrend(dataset.returns, dataset.episode_ids)[~dataset.held_out]
        part = dataset.part(held_out=False)
        base = Baseline(part.features, [feature.name for feature in vocabulary.features if feature.uses_next])
        target = base.residual(base.design(part.features), th.from_numpy(target)[:, None])[:, 0].numpy()
        newest = _newest_rows(part.episode_ids)
        self.vocabulary = vocabulary
        self.columns = {name: column.numpy()[newest] for name, column in part.features.items()}
        self.target = target[newest]
        self.actions, self.ids = part.actions[newest], part.episode_ids[newest]
        # as many rows as leave the judge enough in its smaller part
        share = len(self.target) / max(1, int(dataset.held_out.sum()))
        self.least_rows = math.ceil(min_support * max(1.0, share))
        self.least_episodes = math.ceil(MIN_EPISODES * max(1.0, share))
        self.pool = _pool(vocabulary, self.columns)
        self.matrix = np.stack([self.holds(literal) for literal in self.pool] or [np.zeros(len(self.target), bool)], axis=1)
        self.cells = MAX_CELLS
        self.features: set[str] = set()  # those of the rule under repair

    def holds(self, literal: Literal) -> np.ndarray:
        """:return: bool of shape (N,)"""
        column, value = self.columns[literal.feature], literal.value
        if isinstance(value, float):
            found = column > value if literal.op == ">" else column < value
        elif literal.op == "between":
            low, high = (float(end) for end in value)
            found = (column > low) & (column < high)
        else:
            feature = self.vocabulary[literal.feature]
            names = (value,) if isinstance(value, str) else value
            found = np.isin(column, [feature.code(str(name)) for name in names])
        return np.asarray((found != literal.negated) & ~np.isnan(column))

    def best(self, rule: Rule, body: tuple[Literal, ...], beam: int, changes: int) -> tuple[float, _State] | None:
        """:return: score of the rule, and the best body near it; None if it needs no repair or there is no good one"""
        taken, sign = self._taken(rule), -1.0 if rule.polarity == "avoid" else 1.0
        if not self.least_rows <= taken.sum() <= len(taken) - self.least_rows:
            return None
        self.features = {literal.feature for literal in body}
        before = float(self._scores(self._conjunction(body), np.ones((len(taken), 1), bool), taken, sign)[0])
        if before >= SURE:
            return None
        best: _State | None = None
        states = [_State(body, (), before)]
        seen = {_key(body)}
        for _ in range(changes):
            nearby = [state for origin in states for state in self._neighbours(origin, taken, sign, seen)]
            states = sorted(nearby, key=lambda state: (-state.worth, len(state.body), _key(state.body)))[:beam]
            if states and (best is None or states[0].worth > best.worth):
                best = states[0]
        enough = LEAST_SCORE if math.isnan(before) else max(LEAST_SCORE, before + 1.0)
        return (before, best) if best is not None and best.score >= enough else None

    def _neighbours(self, state: _State, taken: np.ndarray, sign: float, seen: set[str]) -> list[_State]:
        """:return: every body one change away whose score is known, without those in ``seen``, which grows"""
        out: list[_State] = []
        for at in (None, *range(len(state.body))):
            kept = tuple(literal for place, literal in enumerate(state.body) if place != at)
            if at is None and len(kept) >= MAX_BODY:
                continue
            rows = self._conjunction(kept)
            if not rows.any():
                continue
            places = [place for place, literal in enumerate(self.pool) if _fits(literal, kept)]
            cost = int(rows.sum()) * (len(places) + 1)
            if cost > self.cells:
                continue
            self.cells -= cost
            scores = self._scores(rows, self.matrix[:, places], taken, sign)
            scores[self.matrix[rows][:, places].mean(axis=0) > TELLING] = np.nan
            for place, score in zip(places, scores, strict=True):
                literal = self.pool[place]
                change = _words(state.body[at] if at is not None else None, literal)
                self._keep(out, seen, state, (*kept, literal), change, score)
            if at is not None and kept:
                score = self._scores(rows, np.ones((len(rows), 1), bool), taken, sign)[0]
                self._keep(out, seen, state, kept, f"dropped {state.body[at]}", score)
        return out

    def _keep(
        self, out: list[_State], seen: set[str], state: _State, body: tuple[Literal, ...], change: str, score: float
    ) -> None:
        key = _key(body)
        if math.isnan(score) or key in seen or contradictions(body):
            return
        if not any(literal.feature in self.features for literal in body):
            return
        seen.add(key)
        out.append(_State(tuple(sorted(body, key=str)), (*state.changes, change), float(score)))

    def _conjunction(self, body: Sequence[Literal]) -> np.ndarray:
        rows = np.ones(len(self.target), bool)
        for literal in body:
            rows &= self.holds(literal)
        return rows

    def _taken(self, rule: Rule) -> np.ndarray:
        actions, head = self.vocabulary.actions, rule.head
        at = actions.names.index(head.action)
        if head.value is None:
            return np.asarray(self.actions.reshape(-1) == at)
        column = self.actions[:, at]
        return np.asarray(column > head.value if head.op == ">" else column < head.value)

    def _scores(self, rows: np.ndarray, literals: np.ndarray, taken: np.ndarray, sign: float) -> np.ndarray:
        """
        :param rows: the rest of the body, bool (N,)
        :param literals: one further condition per column, bool (N, P)
        :return: lift over its standard error for each, shape (P,); NaN where the judge could not judge
        """
        index = np.flatnonzero(rows)
        if not len(index) or not literals.shape[1]:
            return np.full(literals.shape[1], np.nan)
        inside = literals[index].astype(np.float32)
        ids, acts = self.ids[index], taken[index].astype(np.float32)[:, None]
        value = (sign * (self.target[index] - self.target[index].mean())).astype(np.float32)[:, None]
        starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]])
        with_action = inside * acts
        without = inside - with_action
        n1, s1 = (np.add.reduceat(part, starts, axis=0).astype(np.float64) for part in (with_action, with_action * value))
        n0, s0 = (np.add.reduceat(part, starts, axis=0).astype(np.float64) for part in (without, without * value))
        rows1, rows0 = n1.sum(0), n0.sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean1, mean0 = s1.sum(0) / rows1, s0.sum(0) / rows0
            # how much each episode pulls at the difference of the two means
            pull = (s1 - mean1 * n1) / rows1 - (s0 - mean0 * n0) / rows0
            episodes = (n1 + n0 > 0).sum(0)
            error = np.sqrt((pull**2).sum(0) * episodes / np.maximum(episodes - 1, 1))
            score = (mean1 - mean0) / error
        share = (rows1 + rows0) / len(self.target)
        fine = (np.minimum(rows1, rows0) >= self.least_rows) & (episodes >= self.least_episodes) & (share <= ALWAYS_RATE)
        return np.where(fine & np.isfinite(score), score, np.nan)


def _plain(rule: Rule) -> tuple[Literal, ...] | None:
    """:return: the body, None if it holds more than conditions with a fixed meaning: formulas, and ``about``"""
    conditions = rule.canonical().literals
    body = tuple(one for one in conditions if isinstance(one, Literal) and one.op != "about")
    return body if len(body) == len(conditions) else None


def _pool(vocabulary: Vocabulary, columns: dict[str, np.ndarray]) -> list[Literal]:
    """:return: the conditions that may be put in; what the action has already changed is left out"""
    out: list[Literal] = []
    for feature in offered(vocabulary):
        mine = [] if feature.uses_next else _conditions(feature, columns[feature.name])
        if len(out) + len(mine) <= MAX_POOL:
            out += mine
    return out


def _conditions(feature: Feature, column: np.ndarray) -> list[Literal]:
    column = column[np.isfinite(column)].astype(np.float64)
    if not len(column) or column.min() == column.max():
        return []
    if feature.kind == "number":
        cuts = np.quantile(column, _QUANTILES)
        spread = float(cuts[-1] - cuts[0]) or float(column.std())
        decimals = int(np.clip(2 - math.floor(math.log10(spread)), -300, 300))
        values = dict.fromkeys(round(float(cut), decimals) + 0.0 for cut in cuts)
        return [Literal(feature=feature.name, op=op, value=value) for value in values for op in (">", "<")]
    seen = [value for code, value in enumerate(feature.values) if (column == code).any()]
    negated = (False,) if len(feature.values) < 3 else (False, True)
    return [Literal(feature=feature.name, op="is", value=value, negated=flag) for value in seen for flag in negated]


def _fits(literal: Literal, body: Sequence[Literal]) -> bool:
    """Whether a further condition says something that the body does not: of one feature at most the two ends of a range."""
    return all(
        other.feature != literal.feature or (other.op != literal.op and "is" not in (other.op, literal.op)) for other in body
    )


def _words(old: Literal | None, new: Literal) -> str:
    if old is None:
        return f"added {new}"
    moved = old.feature == new.feature and old.op == new.op and old.op != "is"
    return f"{'moved' if moved else 'swapped'} {old} to {new}"


def _key(body: Sequence[Literal]) -> str:
    return " AND ".join(sorted(str(literal.canonical()) for literal in body))


def _newest_rows(episode_ids: np.ndarray) -> slice:
    """:return: the newest whole episodes within ``MAX_ROWS``, at least one"""
    _, first = np.unique(episode_ids, return_index=True)
    fitting = first[len(episode_ids) - first <= MAX_ROWS]
    return slice(int(fitting[0] if len(fitting) else first[-1]), None)
