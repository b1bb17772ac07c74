"""Priorities of all slots: TD errors and rule scores kept apart, and the two trees that are drawn from."""

from __future__ import annotations

import numpy as np

from sb3_nser.replay._kernels import FAN_OUT
from sb3_nser.replay.priorities import Mixture, base_mass
from sb3_nser.replay.records import FloatArray, IntArray
from sb3_nser.replay.sum_tree import MaxTree, SumTree

_REWRITE_CHUNK = 32_768  # a multiple of FAN_OUT
LARGEST_TD_ERROR = float(np.finfo(np.float32).max)
"""Larger errors are stored as this, so that no sum over a buffer can overflow."""

_LARGEST_BITS = np.float64(LARGEST_TD_ERROR).view(np.uint64)


def plain(values: FloatArray) -> bool:
    """
    :param values: float64, at least one
    :return: whether all are from 0 to ``LARGEST_TD_ERROR``; NaN is not, nor is −0.0. As whole numbers such floats have the
        same order, and all others are larger: one pass instead of two or three
    """
    return bool(np.maximum.reduce(values.view(np.uint64)) <= _LARGEST_BITS) if values.size else True


class PriorityStore:
    """
    Numbers per slot; it knows nothing of rows, environments or episodes.

    At a million slots it takes 33 bytes each: |δ| with its maximum, S, and the trees of b and S·b.

    :param capacity: number of slots
    :param alpha: exponent of ``b = (|δ| + ε)^α``
    :param epsilon: ε
    """

    _scored = True  # in files written before this was kept: S and S·b must be looked at
    """Whether any score may be positive; without rules, S and S·b need not even be read."""

    def __init__(self, capacity: int, alpha: float, epsilon: float) -> None:
        self.alpha = alpha
        self.epsilon = epsilon
        self.base = SumTree(capacity)
        self.rule = SumTree(capacity)
        self.scores: FloatArray = np.zeros(capacity)
        self._td = MaxTree(capacity)
        self._started = False
        self._scored = False
        self._late: list[IntArray] = []  # slots whose |δ| was written, but not yet what lies above it
        self._late_slots = 0

    @property
    def td_errors(self) -> FloatArray:
        """|δ| of all slots, a view to be read only."""
        return self._td.leaves

    @property
    def max_td_error(self) -> float:
        """The largest |δ| in the buffer now; 1 before the first transition."""
        if not self._started:
            return 1.0
        if self._late:
            self._settle_maxima()
        return self._td.maximum

    @property
    def nbytes(self) -> int:
        """Bytes all arrays take."""
        return self.base.nbytes + self.rule.nbytes + self._td.nbytes + self.scores.nbytes

    def enter(self, indices: IntArray) -> None:
        """Slots that were just (over)written: the largest |δ| in the buffer, score 0."""
        entry = self.max_td_error
        self._started = True
        if self._scored:
            self.scores[indices] = 0.0
        self._write(indices, np.full(len(indices), entry))

    def withdraw(self, indices: IntArray) -> None:
        """Slots that must not be drawn, and whose scores are of no use any more."""
        self.scores[indices] = 0.0
        self.exclude(indices)

    def exclude(self, indices: IntArray) -> None:
        """Slots that must not be drawn."""
        for tree in (self._td, self.base, self.rule):
            tree.set(indices, 0.0)

    def write_td_errors(self, indices: IntArray, td_errors: FloatArray) -> None:
        """:param td_errors: |δ| from 0 to ``LARGEST_TD_ERROR``; of repeated indices the last wins"""
        self._write(indices, td_errors)

    def block_maxima(self, values: FloatArray) -> FloatArray:
        """
        The largest of each block of slots; if a number is negative or NaN, so is one of these, or −0.0.

        :param values: one per slot from 0 on, float64, contiguous
        """
        whole = len(values) // FAN_OUT
        maxima = np.zeros(-(-len(values) // FAN_OUT))
        # floats that are not negative have the same order as their bits taken for whole numbers; all others are larger
        bits, found = values.view(np.uint64), maxima.view(np.uint64)
        self.base._kernels.block_maxima(bits, found[:whole])
        if whole < len(maxima):
            found[whole] = bits[whole * FAN_OUT :].max()
        return maxima

    def rewrite_td_errors(self, td_errors: FloatArray, maxima: FloatArray) -> None:
        """
        Write the first slots all at once, which at a million is several times faster than one by one.

        :param td_errors: |δ| of the slots from 0 on, from 0 to ``LARGEST_TD_ERROR``; those behind them must be 0
        :param maxima: ``block_maxima`` of them
        """
        n = len(td_errors)
        td, base, rule = self._td.leaves, self.base.leaves, self.rule.leaves
        for start in range(0, n, _REWRITE_CHUNK):  # what one step leaves in the cache, the next one finds there
            part = slice(start, min(start + _REWRITE_CHUNK, n))
            td[part] = td_errors[part]
            if self.alpha == 0.0:
                base[part] = 1.0
            else:
                np.add(td_errors[part], self.epsilon, out=base[part])
                np.power(base[part], self.alpha, out=base[part])
            self.base.refresh_blocks(part.start, part.stop)
            if self._scored:
                np.multiply(self.scores[part], base[part], out=rule[part])
                self.rule.refresh_blocks(part.start, part.stop)
        self._td.set_blocks(maxima)
        for tree in (self._td, self.base, self.rule):
            tree.refresh_above()

    def _write(self, indices: IntArray, td_errors: FloatArray) -> None:
        masses = base_mass(td_errors, self.alpha, self.epsilon)
        self.base._kernels.write(
            self._td._data,
            self.base._data,
            self.rule._data,
            self.scores,
            self.base._offsets,
            indices,
            td_errors,
            masses,
            self._scored,
        )
        self._late.append(indices)
        self._late_slots += len(indices)
        if self._late_slots * FAN_OUT >= self.base.capacity:  # more would cost as much as to look at all
            self._settle_maxima()

    def _settle_maxima(self) -> None:
        if self._late_slots * FAN_OUT >= self.base.capacity:
            self._td.refresh()
        else:
            self._td.refresh_at(np.concatenate(self._late))
        self._late, self._late_slots = [], 0

    def write_scores(self, indices: IntArray, scores: FloatArray) -> None:
        """:param scores: S in [0, 1]; of repeated indices the last wins"""
        before = self.scores[indices]
        self._scored = self._scored or bool(scores.any())
        self.scores[indices] = scores
        if before.any() or scores.any():
            tree, masses = self.rule, self.base.leaves[indices]
            tree._kernels.set_leaves(tree._data, tree._offsets, indices, scores * masses, False)

    def clear_scores(self) -> None:
        """All scores to 0."""
        self.scores[:] = 0.0
        self.rule.rebuild(0.0)
        self._scored = False

    def clear(self) -> None:
        """As if nothing had ever been stored."""
        self.clear_scores()
        self.forget_td_errors()

    def forget_td_errors(self) -> None:
        """As if no TD error had ever been written, and nothing could be drawn; scores stay."""
        for tree in (self.base, self.rule, self._td):
            tree.rebuild(0.0)
        self._started = False

    def draw(
        self,
        points: FloatArray,
        mixture: Mixture,
        first: int = 0,
        floor: IntArray | None = None,
    ) -> tuple[IntArray, FloatArray, float]:
        """
        A stratified draw from the mixture: one number in each of n equal parts of [0, 1), which is split
        into the shares of rules, base and uniform floor; within each share the number's place picks the slot. On
        average over a batch every slot comes up exactly ``n · q`` times.

        :param points: where in its part each of the n numbers lies, in [0, 1)
        :param first: slot of the oldest transition that can be drawn; the floor draws from there on, around the ring's end,
            from ``mixture.n_drawable`` slots
        :param floor: the slots the floor draws from, where they do not lie side by side, shape ``(mixture.n_drawable,)``
        :return: slots, the probability of each in a single draw, and the smallest of these
        """
        lam, u = mixture.rule_fraction, mixture.uniform_fraction
        # exactly 1 without a floor, lest rounding leave a sliver that draws slots of no mass
        rest = lam + (1.0 - lam) * (1.0 - u) if u > 0.0 else 1.0
        slots, chances, smallest = self.base._kernels.draw(
            self.base._data,
            self.rule._data,
            self.base._offsets,
            points,
            (lam, rest),
            (mixture.n_drawable, first, self.base.capacity),
            mixture.factors,
        )
        if floor is not None:
            # the kernel has drawn ranks for these (first is 0 then); the same arithmetic tells which they are
            by_floor = np.minimum((np.arange(len(points)) + points) / len(points), 1.0 - 2.0**-53) >= rest
            slots[by_floor] = floor[slots[by_floor]]
            chances[by_floor] = mixture.probabilities(self.base.get(slots[by_floor]), self.rule.get(slots[by_floor]))
            smallest = float(chances.min())
        return slots, chances, smallest
