"""Priorities of all slots: TD errors and rule scores kept apart, and the two trees that are drawn from."""

from __future__ import annotations

import numpy as np

from sb3_nser.replay.priorities import Mixture, base_mass
from sb3_nser.replay.records import FloatArray, IntArray
from sb3_nser.replay.sum_tree import MaxTree, SumTree

LARGEST_TD_ERROR = float(np.finfo(np.float32).max)
"""Larger errors are stored as this, so that no sum over a buffer can overflow."""


class PriorityStore:
    """
    Numbers per slot; it knows nothing of rows, environments or episodes.

    At a million slots it takes 33 bytes each: |δ| with its maximum, S, and the trees of b and S·b.

    :param capacity: number of slots
    :param alpha: exponent of ``b = (|δ| + ε)^α``
    :param epsilon: ε
    """

    def __init__(self, capacity: int, alpha: float, epsilon: float) -> None:
        self.alpha = alpha
        self.epsilon = epsilon
        self.base = SumTree(capacity)
        self.rule = SumTree(capacity)
        self.scores: FloatArray = np.zeros(capacity)
        self._td = MaxTree(capacity)
        self._started = False

    @property
    def td_errors(self) -> FloatArray:
        """|δ| of all slots, a view to be read only."""
        return self._td.leaves

    @property
    def max_td_error(self) -> float:
        """The largest |δ| in the buffer now; 1 before the first transition."""
        return self._td.maximum if self._started else 1.0

    @property
    def nbytes(self) -> int:
        """Bytes all arrays take."""
        return self.base.nbytes + self.rule.nbytes + self._td.nbytes + self.scores.nbytes

    def enter(self, indices: IntArray) -> None:
        """Slots that were just (over)written: the largest |δ| in the buffer, score 0."""
        entry = self.max_td_error
        self._started = True
        self.scores[indices] = 0.0
        self._td.set(indices, entry)
        self.base.set(indices, base_mass(np.array(entry), self.alpha, self.epsilon))
        self.rule.set(indices, 0.0)

    def withdraw(self, indices: IntArray) -> None:
        """Slots that must not be drawn."""
        self.scores[indices] = 0.0
        for tree in (self._td, self.base, self.rule):
            tree.set(indices, 0.0)

    def write_td_errors(self, indices: IntArray, td_errors: FloatArray) -> None:
        """:param td_errors: |δ|, finite and not negative; of repeated indices the last wins"""
        values = np.minimum(td_errors, LARGEST_TD_ERROR)
        self._td.set(indices, values)
        base = base_mass(values, self.alpha, self.epsilon)
        self.base.set(indices, base)
        scores = self.scores[indices]
        if scores.any():
            self.rule.set(indices, scores * base)

    def write_scores(self, indices: IntArray, scores: FloatArray) -> None:
        """:param scores: S in [0, 1]; of repeated indices the last wins"""
        before = self.scores[indices]
        self.scores[indices] = scores
        if before.any() or scores.any():
            self.rule.set(indices, scores * self.base.get(indices))

    def clear_scores(self) -> None:
        """All scores to 0."""
        self.scores[:] = 0.0
        self.rule.rebuild(0.0)

    def clear(self) -> None:
        """As if nothing had ever been stored."""
        self.clear_scores()
        self.base.rebuild(0.0)
        self._td.rebuild(0.0)
        self._started = False

    def draw(self, rng: np.random.Generator, mixture: Mixture, batch_size: int) -> tuple[IntArray, IntArray]:
        """
        A stratified draw from the mixture: one number in each of ``batch_size`` equal parts of [0, 1), which is split
        into the shares of rules, base and uniform floor; within each share the number's place picks the slot. On
        average over a batch every slot comes up exactly ``batch_size · q`` times.

        :return: slots drawn by rules and base, and ranks in ``[0, mixture.count)`` drawn by the floor
        """
        points = np.minimum((np.arange(batch_size) + rng.random(batch_size)) / batch_size, np.nextafter(1.0, 0.0))
        lam = mixture.rule_fraction
        # exactly 1 without a floor, lest rounding leave a sliver that draws slots of no mass
        rest = lam + (1.0 - lam) * (1.0 - mixture.uniform_fraction) if mixture.uniform_fraction > 0.0 else 1.0
        by_rule, not_by_floor = np.searchsorted(points, [lam, rest])
        parts = []
        if by_rule:
            parts.append(self.rule.find(points[:by_rule] / lam * self.rule.total))
        if not_by_floor > by_rule:
            parts.append(self.base.find((points[by_rule:not_by_floor] - lam) / (rest - lam) * self.base.total))
        chosen = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        floor = points[not_by_floor:]
        width = 1.0 - rest
        ranks = ((floor - rest) / width * mixture.count).astype(np.int64) if len(floor) else np.empty(0, dtype=np.int64)
        return chosen, np.minimum(ranks, mixture.count - 1)
