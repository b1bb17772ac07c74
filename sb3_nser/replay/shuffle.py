"""A control for studies: the same scores on other rows, so that their distribution stays and their meaning goes."""

from __future__ import annotations

import numpy as np

from sb3_nser.replay.records import FloatArray, IntArray


class ShuffledScores:
    """
    A random permutation π of the filled slots that grows with the buffer: slot i bears the score that slot π(i) has earned.

    When slot n is filled for the first time, a slot k is drawn uniformly from 0..n, and π(n) and π(k) are exchanged (the
    shuffle of Fisher and Yates, inside out). So at any time π is uniformly distributed over all permutations of the filled
    slots, whatever the rows hold; it moves two rows per new row, and none once the buffer is full. Scoring the same rows again
    puts the same scores into the same places, and a row that overwrites another passes its score on to the same slot.
    Environments are slots like others, so scores cross between them. What scores had to do with the age of a row goes too.

    Scores come here after they have spread back through their episodes: shuffled before, they would spread from many single
    rows, and their distribution would be another.

    :param capacity: number of slots
    :param rng: draws k
    """

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self.own: FloatArray = np.zeros(capacity)
        """What each slot has earned itself, spread backwards; what it bears is ``own[source]``."""
        self.source: IntArray = np.arange(capacity, dtype=np.int64)
        """π"""
        self._target: IntArray = np.arange(capacity, dtype=np.int64)
        self._filled = 0
        self._rng = rng

    def place(self, slots: IntArray, scores: FloatArray, filled: int) -> tuple[IntArray, FloatArray]:
        """
        :param slots: slots that have been scored, all below ``filled``
        :param scores: what they have earned, same shape
        :param filled: number of filled slots, from 0 on; never falls but by ``clear``
        :return: the slots whose score changes by this, without repeats, and what they bear now
        """
        moved = self._grow(filled)
        self.own[slots] = scores
        # the slots themselves too: the buffer has emptied those that were just overwritten
        changed = np.unique(np.concatenate([slots, self._target[slots], moved]))
        return changed, self.own[self.source[changed]]

    def forget_scores(self) -> None:
        """All scores to 0; the permutation stays."""
        self.own[:] = 0.0

    def clear(self) -> None:
        """As if nothing had ever been stored."""
        self.forget_scores()
        self.source[:] = self._target[:] = np.arange(len(self.source))
        self._filled = 0

    def _grow(self, filled: int) -> IntArray:
        new = np.arange(self._filled, filled, dtype=np.int64)
        if not len(new):
            return new
        partners = self._rng.integers(0, new + 1)
        source, target = self.source, self._target
        for n, k in zip(new.tolist(), partners.tolist(), strict=True):  # each exchange builds on the one before
            source[n], source[k] = source[k], n
            target[source[n]], target[n] = n, k
        self._filled = filled
        return np.concatenate([new, partners])
