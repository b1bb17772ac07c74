"""The ring of rows: which transition lies where, which episodes are whole.

Rows are counted by *serial number*: the how-manieth ``add()`` wrote them. Row ``serial % buffer_size`` holds it, so the
serial of a row follows from the write position, without an array; it is also the generation that tells a late priority
for an overwritten slot from a fresh one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_nser.replay.gather import take_rows
from sb3_nser.replay.records import Array, Episode, IntArray, Observations, Transitions
from sb3_nser.replay.trace import BoolArray

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer as _Base
else:
    _Base = object

FIRST_LOOK = 1024
"""Rows that ``complete_episodes`` looks at first, beside those it is likely to need."""


class RingMixin(_Base):
    """Serial numbers, raw transitions and episodes of an SB3 replay buffer."""

    def _init_ring(self) -> None:
        self._added = 0
        self._breaks: list[int] = []  # serials that begin an episode though the step before did not end one
        self._break_unsure = False  # whether the last of them may turn out to be none
        self._evicted_ends: BoolArray = np.ones(self.n_envs, dtype=np.bool_)  # did the row before the oldest end one?

    @property
    def n_slots(self) -> int:
        """Transitions the buffer can hold: ``buffer_size`` rows times ``n_envs``."""
        return self.buffer_size * self.n_envs

    @property
    def n_transitions(self) -> int:
        """Transitions it holds now."""
        return self.size() * self.n_envs

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Store one step of every environment; see SB3's ``ReplayBuffer.add``."""
        if self._break_unsure:
            self._break_unsure = False
            if self._continues(kwargs["obs"] if "obs" in kwargs else args[0]):
                self._breaks.pop()
        if self.full:
            self._evicted_ends = (self.dones[self.pos] > 0) | (self._first_kept() + 1 in self._breaks)
        super().add(*args, **kwargs)
        self._added += 1
        if self._breaks and self._breaks[0] <= self._first_kept():
            self._breaks = [serial for serial in self._breaks if serial > self._first_kept()]

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        self._added = -(-self._added // self.buffer_size) * self.buffer_size
        self._breaks = []
        self._break_unsure = False
        self._evicted_ends = np.ones(self.n_envs, dtype=np.bool_)

    def mark_break(self) -> None:
        """Say that the next transition does not continue the last one (the environment was reset in between)."""
        self._break_unsure = False
        if self.size() > 0 and (not self._breaks or self._breaks[-1] != self._added):
            self._breaks.append(self._added)

    def mark_break_unless_continued(self) -> None:
        """
        Like ``mark_break``, but taken back if the next transition begins with what the last one came to: for training that is
        resumed, perhaps in another environment (``set_env``).
        """
        before, unsure = len(self._breaks), self._break_unsure
        self.mark_break()
        self._break_unsure = unsure or len(self._breaks) > before

    def _continues(self, observations: Observations) -> bool:
        last = self._next_observations(self._slots(self._added - 1, self._added))
        going_on = self.dones[self.pos - 1] == 0
        now, last = (one if isinstance(one, dict) else {"": one} for one in (observations, last))
        return all(
            np.array_equal(
                np.asarray(now[key]).reshape(last[key].shape).astype(last[key].dtype)[going_on], last[key][going_on]
            )
            for key in last
        )

    def transitions(self, indices: IntArray) -> Transitions:
        """
        The stored arrays, copied, as they were when stored (no normalisation).

        :param indices: flat slots ``row * n_envs + env`` of filled rows, shape ``(n,)``
        :return: one row of each array per index
        :raises IndexError: for a slot that is not filled
        """
        indices = self._filled(indices)
        return Transitions(
            self._take_each(self.observations, indices),
            self._next_observations(indices),
            self._take(self.actions, indices),
            self._take(self.rewards, indices),
            self._take(self.dones, indices),
            self._take(self.timeouts, indices),
        )

    def complete_episodes(self, max_transitions: int | None = None) -> list[Episode]:
        """
        Episodes that lie in the buffer from their first step to their last.

        :param max_transitions: stop before this many transitions are exceeded; the newest episode is always given.
            More means older episodes too; ``None`` gives all
        :return: newest first
        """
        oldest = self._first_valid()
        span = self._added - oldest
        if max_transitions is not None:  # most likely they lie in the newest rows
            span = min(span, FIRST_LOOK + 4 * max_transitions // self.n_envs)
        while True:
            episodes, certain = self._episodes_since(self._added - span, max_transitions)
            if certain or self._added - span == oldest:
                return episodes
            span = min(4 * span, self._added - oldest)

    def _episodes_since(self, first: int, max_transitions: int | None) -> tuple[list[Episode], bool]:
        """
        Whole episodes from serial ``first`` on, and whether looking further back would leave the list as it is.
        """
        rows = self._rows(first, self._added)
        if len(rows) == 0:
            return [], True
        ends, known = self._episode_ends(first, self._added), self._starts_episode(first)
        found: list[tuple[int, int, int]] = []
        unsure = -1  # the newest end of an episode whose start lies before ``first``
        for env in range(self.n_envs):
            stops = np.flatnonzero(ends[:, env])
            if len(stops) == 0:
                continue
            starts = np.concatenate([[0], stops[:-1] + 1])
            if not known[env]:
                unsure = max(unsure, int(stops[0])) if first > self._first_valid() else unsure
                starts, stops = starts[1:], stops[1:]
            real = self.dones[rows[stops], env] > 0  # a break is an end, but of an episode that was cut short
            found += zip(stops[real].tolist(), [env] * int(real.sum()), starts[real].tolist(), strict=True)
        found.sort(reverse=True)
        episodes: list[Episode] = []
        total = 0
        for stop, env, start in found:
            total += stop + 1 - start
            if stop <= unsure:
                return episodes, False
            if episodes and max_transitions is not None and total > max_transitions:
                return episodes, True
            truncated = bool(self.timeouts[rows[stop], env] > 0)
            episodes.append(Episode(rows[start : stop + 1] * self.n_envs + env, truncated, env))
        return episodes, False

    def _take(self, array: Array, indices: IntArray) -> Array:
        return take_rows(array, indices)

    def _take_each(self, arrays: Observations, indices: IntArray) -> Observations:
        if isinstance(arrays, dict):
            return {key: self._take(array, indices) for key, array in arrays.items()}
        return self._take(arrays, indices)

    def _next_observations(self, indices: IntArray) -> Observations:
        if self.optimize_memory_usage:
            return self._take_each(self.observations, (indices + self.n_envs) % self.n_slots)
        return self._take_each(self.next_observations, indices)

    def _steps_after(self, indices: IntArray, n_steps: int) -> tuple[IntArray, BoolArray]:
        """
        The slots of a step and of those that follow it in the same environment, and whether nothing follows one of them:
        its episode ended, it is the newest, or the environment was reset behind it. Both of shape ``(m, n_steps)``.
        """
        rows, envs = np.divmod(indices, self.n_envs)
        serials = self._generations(rows)[:, None] + np.arange(n_steps)
        slots: IntArray = serials % self.buffer_size * self.n_envs + envs[:, None]
        stops = (self._take(self.dones, slots) > 0) | (self._take(self.timeouts, slots) > 0)
        stops |= serials >= self._added - 1
        for serial in self._breaks:
            stops |= serials == serial - 1
        return slots, stops

    def _head_excluded(self) -> bool:
        # with one array for both observations, the row at the write head has lost its own
        return self.optimize_memory_usage and self.full

    def _first_kept(self) -> int:
        return self._added - self.size()

    def _first_valid(self) -> int:
        return self._first_kept() + self._head_excluded()

    def _rows(self, low: int, high: int) -> IntArray:
        return np.arange(low, high, dtype=np.int64) % self.buffer_size

    def _slots(self, low: int, high: int) -> IntArray:
        """Flat slots of the serials from ``low`` to ``high`` − 1, in time order, environments together."""
        return (self._rows(low, high)[:, None] * self.n_envs + np.arange(self.n_envs)).ravel()

    def _generations(self, rows: IntArray) -> IntArray:
        newest = self._added - 1
        return newest - (newest - rows) % self.buffer_size

    def _episode_ends(self, low: int, high: int) -> BoolArray:
        """Whether an episode ends with each serial of a span, breaks included, shape ``(high - low, n_envs)``."""
        ends: BoolArray = self.dones[self._rows(low, high)] > 0
        for serial in self._breaks:
            if low < serial <= high:
                ends[serial - 1 - low] = True
        return ends

    def _starts_episode(self, first: int) -> BoolArray:
        """Whether a serial begins an episode, per environment."""
        if first in self._breaks:
            return np.ones(self.n_envs, dtype=np.bool_)
        if first == self._first_kept():
            return self._evicted_ends
        starts: BoolArray = self.dones[(first - 1) % self.buffer_size] > 0
        return starts

    def _filled(self, indices: IntArray) -> IntArray:
        indices = np.atleast_1d(np.asarray(indices))
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise TypeError(f"indices must be a flat array of whole numbers, not {indices.dtype} of shape {indices.shape}")
        indices = indices.astype(np.int64)
        outside = (indices < 0) | (indices >= self.n_transitions)
        if outside.any():
            raise IndexError(f"slot {indices[outside][0]} is not filled: the buffer holds slots 0 to {self.n_transitions - 1}")
        return indices
