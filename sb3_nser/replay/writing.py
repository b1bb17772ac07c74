"""Writing priorities and scores: what is refused, what came too late, what may not be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_nser.errors import NSERError
from sb3_nser.replay.options import PriorityOptions
from sb3_nser.replay.records import FloatArray, IntArray, SampleInfo
from sb3_nser.replay.scoring import ScoringMixin
from sb3_nser.replay.store import LARGEST_TD_ERROR, plain
from sb3_nser.replay.trace import BoolArray


class WritingMixin(ScoringMixin):
    """TD errors and scores per slot, for whoever trains on what was drawn."""

    options: PriorityOptions
    _flushed: int
    stale_writes: int
    last_sample: SampleInfo | None
    _sampled_at: int

    @property
    def td_errors(self) -> FloatArray:
        """|δ| of the filled slots (with LAP at least 1), float64, a copy of shape ``(n_transitions,)``."""
        self._flush()
        copied: FloatArray = self._store.td_errors[: self.n_transitions].copy()
        return copied

    @property
    def scores(self) -> FloatArray:
        """Rule scores of the filled slots (with ``shuffle_scores`` those they bear), float64, a copy of shape
        ``(n_transitions,)``."""
        self._flush()
        copied: FloatArray = self._store.scores[: self.n_transitions].copy()
        return copied

    @property
    def max_td_error(self) -> float:
        """The largest |δ| in the buffer, with which new transitions enter; 1 before there is any."""
        self._flush()
        return self._store.max_td_error

    def update_priorities(
        self, indices: npt.ArrayLike, td_errors: npt.ArrayLike, generations: npt.ArrayLike | None = None
    ) -> None:
        """
        Write TD errors. Of repeated indices the last wins; slots that cannot be drawn are passed over.

        :param indices: flat slots ``row * n_envs + env``, shape ``(m,)``
        :param td_errors: ``|δ|``, finite and not negative, shape ``(m,)``
        :param generations: ``last_sample.generations`` of the same slots: what was overwritten since is dropped and
            counted in ``stale_writes``; ``None`` writes to whatever is there now
        :raises ValueError: for a NaN, infinite or negative value, naming index and value; nothing is written then
        :raises IndexError: for a slot that is not filled
        """
        values = np.atleast_1d(np.asarray(td_errors, dtype=np.float64))
        where = np.atleast_1d(np.asarray(indices))
        if values.shape != where.shape:
            raise ValueError(f"{where.shape} indices were given with {values.shape} TD errors; give one for each")
        _refuse("TD error", where, values, ~((values >= 0.0) & (values < np.inf)), "finite and not negative")
        self._flush()
        if generations is not None:
            given = np.atleast_1d(np.asarray(generations, dtype=np.int64))
            if given.shape != where.shape:
                raise ValueError(f"{where.shape} indices were given with {given.shape} generations; give one for each")
            current = (where >= 0) & (where < self.n_transitions) & (self._generations(where // self.n_envs) == given)
            self.stale_writes += int(np.count_nonzero(~current))
            where, values = where[current], values[current]
        where, values = self._drawable_only(self._filled(where), values)
        self.mark_linked()  # whoever calls this feeds the buffer, link or not
        self._store.write_td_errors(where, np.clip(values, self.options.smallest_td_error, LARGEST_TD_ERROR))

    def update_last(self, td_errors: npt.ArrayLike) -> None:
        """
        Write the TD errors of the last batch: ``update_priorities`` with what ``last_sample`` says, and faster where nothing
        was added since.

        :param td_errors: ``|δ|``, finite and not negative, shape ``(batch_size,)``
        :raises NSERError: if nothing was drawn yet
        :raises ValueError: as for ``update_priorities``; nothing is written then
        """
        drawn = self.last_sample
        if drawn is None:
            raise NSERError("nothing was drawn yet: call sample() first")
        values = np.asarray(td_errors, dtype=np.float64)
        # in the same process and with no row added since, the slots are right as they are
        if self._sampled_at == self._added and values.shape == drawn.indices.shape and plain(values):
            self._linked = True
            smallest = self.options.smallest_td_error
            self._store.write_td_errors(drawn.indices, np.maximum(values, smallest) if smallest > 0.0 else values)
        else:
            self.update_priorities(drawn.indices, values, drawn.generations)

    def rewrite_td_errors(self, td_errors: npt.ArrayLike) -> None:
        """
        Write the TD errors of all filled slots at once: a few milliseconds for a million.

        :param td_errors: ``|δ|``, finite and not negative, shape ``(n_transitions,)``
        :raises ValueError: for another shape, or a value that is NaN, infinite or negative; nothing is written then
        """
        values = np.ascontiguousarray(td_errors, dtype=np.float64)
        if values.shape != (self.n_transitions,):
            raise ValueError(
                f"the buffer holds {self.n_transitions} transitions, but TD errors of shape {values.shape} were given"
            )
        smallest = self.options.smallest_td_error
        maxima = self._store.block_maxima(values)
        if not plain(maxima) or smallest > 0.0:
            slots = np.arange(len(values))
            _refuse("TD error", slots, values, ~((values >= 0.0) & (values < np.inf)), "finite and not negative")
            values = np.clip(values, smallest, LARGEST_TD_ERROR) + 0.0  # no −0.0
            maxima = self._store.block_maxima(values)
        self._flush()
        self.mark_linked()
        self._store.rewrite_td_errors(values, maxima)
        if not self._all_drawable():
            slots = np.arange(len(values))
            self._store.exclude(slots[~self._drawable(slots)])

    def set_scores(self, indices: npt.ArrayLike, scores: npt.ArrayLike) -> None:
        """
        Write rule scores as they are: they do not spread backwards. A scorer overwrites them when it comes to these rows.
        Slots that cannot be drawn are passed over.

        :param indices: flat slots ``row * n_envs + env``, shape ``(m,)``
        :param scores: numbers in [0, 1], shape ``(m,)``
        :raises ValueError: for a value outside, naming index and value; nothing is written then
        :raises IndexError: for a slot that is not filled
        """
        values = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        where = np.atleast_1d(np.asarray(indices))
        if values.shape != where.shape:
            raise ValueError(f"{where.shape} indices were given with {values.shape} scores; give one for each")
        _refuse("rule score", where, values, ~((values >= 0.0) & (values <= 1.0)), "in [0, 1]")
        self._flush()
        where, values = self._drawable_only(self._filled(where), values)
        self.mark_linked()
        self._write_scores(where, values)

    def _flush(self) -> None:
        # rows added since the last call enter at the largest TD error the buffer has now
        if self._flushed == self._added:
            return
        start = max(self._flushed, self._first_kept())
        self._flushed = self._added
        self._store.enter(self._slots(start, self._added))
        if self._head_excluded():
            self._store.withdraw(self._slots(self._first_kept(), self._first_kept() + 1))

    def _all_drawable(self) -> bool:
        return not self._head_excluded()

    def _drawable(self, indices: IntArray) -> BoolArray:
        """Whether filled slots may be drawn, where not all of them are; same shape."""
        keep: BoolArray = indices // self.n_envs != self.pos
        return keep

    def _drawable_only(self, indices: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
        if self._all_drawable():
            return indices, values
        keep = self._drawable(indices)
        return indices[keep], values[keep]


def _refuse(what: str, indices: npt.NDArray[Any], values: FloatArray, bad: npt.NDArray[np.bool_], expected: str) -> None:
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"the {what} for index {indices[first]} is {values[first]}, but it must be {expected}; nothing written"
        )
