"""When rows are scored: new ones a few at a time, all others bit by bit after the rules have changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sb3_nser.arguments import as_int, as_number
from sb3_nser.errors import NSERError
from sb3_nser.replay.records import FloatArray, IntArray, Scorer
from sb3_nser.replay.ring import RingMixin
from sb3_nser.replay.shuffle import ShuffledScores
from sb3_nser.replay.store import PriorityStore
from sb3_nser.replay.trace import carry_back, reach, spread_back

SCORE_CHUNK = 32768
"""Transitions that one ``sample()`` call re-scores at most after ``rescore()``."""

SCORE_TOGETHER = 64
"""New transitions that may wait until they are scored together, where a draw comes after every step."""

_WAITING_SHARE = 32  # they are never more than this part of the buffer
_PROBE = 8


@dataclass(frozen=True)
class _Scoring:
    score: Scorer
    history: int


class ScoringMixin(RingMixin):
    """
    Keeps a score per slot up to date. Three spans of serials, oldest first: stale (to be scored again), fresh, new.
    """

    _store: PriorityStore
    trace_decay: float
    _shuffled: ShuffledScores | None = None
    score_limit: float = 1.0
    """Largest share of the draws that scores may decide for now, see ``set_scorer``."""

    def _init_scoring(self) -> None:
        self.rule_state: dict[str, Any] | None = None
        self._scorer: _Scoring | None = None
        self._stale_below = 0
        self._scored_until = 0

    @property
    def scores_complete(self) -> bool:
        """
        Whether no row waits for re-scoring. New rows are scored before a draw as soon as there are ``SCORE_TOGETHER`` of
        them, or one for every 32 in the buffer; until then their score is 0.
        """
        return self._scorer is None or self._stale_below <= self._first_valid()

    @property
    def mean_score(self) -> float:
        """Mean rule score of the filled slots, 0 for an empty buffer."""
        self._flush()
        filled = self._store.scores[: self.n_transitions]
        return float(filled.mean()) if len(filled) else 0.0

    def set_scorer(
        self,
        scorer: Scorer | None,
        state: dict[str, Any] | None = None,
        *,
        keep_scores: bool = False,
        history: int = 0,
        limit: float = 1.0,
    ) -> None:
        """
        Give the function that scores transitions, or take it away.

        It is tried on a few rows at once; all rows are scored again with it, as after ``rescore()``. A row keeps its old
        score until then. ``None`` sets all scores to 0. The function is not saved with the buffer, the state is.

        :param scorer: takes ``Transitions`` of n rows and returns n numbers in [0, 1]
        :param state: plain JSON data to be kept in ``rule_state`` and saved with the buffer
        :param keep_scores: True says that the rows have their scores from this very function (built anew after loading, say):
            nothing is scored again but what was waiting for it already
        :param history: how many earlier steps of its episode a transition's score depends on. The scorer is then given
            consecutive steps, with as many earlier ones of the same episodes before them as are stored and asked for
            (``Transitions.episodes``). What the ring has overwritten by the time a row is scored does not count. More costs
            more on every draw, up to ``history`` rows per environment
        :param limit: share of the draws that these scores may decide at most, 0 to 1, whatever ``rule_fraction`` says; for
            scores that nothing has confirmed yet
        :raises NSERError: if the scores of the rows it is tried on have a wrong shape, are NaN or lie outside [0, 1]
        :raises ConfigurationError: if ``history`` or ``limit`` is out of its range
        """
        limit = as_number("limit", limit, 0.0, 1.0)
        scoring = None if scorer is None else _Scoring(scorer, as_int("history", history, 0))
        if scoring is not None and self._first_valid() < self._added:
            self._scores_of(scoring, max(self._first_valid(), self._added - -(-_PROBE // self.n_envs)), self._added, _PROBE)
        self._flush()
        self._scorer = scoring
        self.rule_state, self.score_limit = state, limit
        if scorer is None:
            self._store.clear_scores()
            if self._shuffled is not None:
                self._shuffled.forget_scores()
        else:
            self.mark_linked()
        if not (keep_scores and scorer is not None):
            self.rescore()

    def rescore(self) -> None:
        """
        Mark all rows as stale: they are scored again, newest first, ``SCORE_CHUNK`` transitions per ``sample()`` call.
        """
        self._stale_below = self._scored_until = self._added

    def _flush(self) -> None:
        raise NotImplementedError

    def mark_linked(self) -> None:
        raise NotImplementedError

    def _score_pending(self) -> None:
        if self._scorer is None or self._first_valid() >= self._added:
            return
        first = self._first_valid()
        chunk = max(1, SCORE_CHUNK // self.n_envs)
        new = max(self._scored_until, first)
        if self._added - new > chunk:  # a long time without a draw: the older part takes the way of stale rows
            new = self._stale_below = self._added - chunk
        # one call for a single row costs nearly as much as one for many
        waiting = min(SCORE_TOGETHER, self.n_transitions // _WAITING_SHARE)
        if new < self._added and (self._added - new) * self.n_envs >= waiting:
            self._score_span(self._scorer, new, self._added)
            self._scored_until = self._added
        if self._stale_below > first:
            low = max(first, self._stale_below - chunk)
            self._score_span(self._scorer, low, self._stale_below)
            self._stale_below = low

    def _scores_of(self, scorer: _Scoring, low: int, high: int, newest: int | None = None) -> FloatArray:
        """
        The scorer's own scores of a span of serials, environments together.

        :param newest: look at so many of its newest rows only, if the order does not matter
        """
        if scorer.history == 0:
            slots = self._slots(low, high)
            slots = slots if newest is None else slots[-newest:]
            return _checked_scores(scorer.score(self.transitions(slots)), len(slots))
        start = self._context(low, scorer.history)
        slots = self._slots(start, high)
        rows = replace(self.transitions(slots), episodes=self._episode_numbers(start, high), n_envs=self.n_envs)
        scores = _checked_scores(scorer.score(rows), len(slots))
        return scores[(low - start) * self.n_envs :]

    def _context(self, low: int, history: int) -> int:
        """The serial from which on rows are needed to score from ``low`` on: no further back than the episodes began."""
        first = max(self._first_valid(), low - history)
        if first >= low:
            return low
        ends = self._episode_ends(first, low)
        since = np.argmax(ends[::-1], axis=0)  # steps of each environment's episode before ``low``
        since[~ends.any(axis=0)] = low - first
        return low - int(since.max())

    def _episode_numbers(self, low: int, high: int) -> IntArray:
        ends = self._episode_ends(low, high)
        before: IntArray = np.cumsum(ends, axis=0, dtype=np.int64) - ends
        return (before * self.n_envs + np.arange(self.n_envs)).ravel()

    def _score_span(self, scorer: _Scoring, low: int, high: int) -> None:
        slots = self._slots(low, high)
        own = self._scores_of(scorer, low, high).reshape(-1, self.n_envs)
        after = self._own_scores[self._slots(high, high + 1)] if high < self._added else None
        if self.trace_decay > 0.0 and (own.any() or (after is not None and after.any())):
            steps = own if after is None else np.vstack([own, after])
            own = spread_back(steps, self._episode_ends(low, low + len(steps)), self.trace_decay)[: high - low]
            if own[0].any():
                self._carry_into_fresh(low, own[0])
        self._write_scores(slots, own.ravel())

    @property
    def _own_scores(self) -> FloatArray:
        """What each slot has earned itself, which is what it bears unless scores are shuffled."""
        return self._store.scores if self._shuffled is None else self._shuffled.own

    def _write_scores(self, slots: IntArray, scores: FloatArray) -> None:
        if self._shuffled is not None:
            slots, scores = self._shuffled.place(slots, scores, self.n_transitions)
        self._store.write_scores(slots, scores)

    def _carry_into_fresh(self, low: int, first: FloatArray) -> None:
        # rows before ``low`` that are fresh already; stale ones get their share when they are scored
        steps = min(reach(self.trace_decay), SCORE_CHUNK // self.n_envs, low - max(self._stale_below, self._first_valid()))
        start = low - max(math.ceil(steps), 0)
        if start >= low:
            return
        slots = self._slots(start, low)
        before = self._own_scores[slots]
        after = carry_back(first, before.reshape(-1, self.n_envs), self._episode_ends(start, low), self.trace_decay).ravel()
        changed = after > before
        if changed.any():
            self._write_scores(slots[changed], after[changed])


def _checked_scores(scores: object, n: int) -> FloatArray:
    values = np.asarray(scores)
    if values.shape != (n,) or values.dtype.kind not in "biuf":
        raise NSERError(
            f"a scorer must return one number per transition, shape ({n},); it returned {values.dtype} of shape {values.shape}"
        )
    values = values.astype(np.float64)
    if not np.all((values >= -1e-6) & (values <= 1.0 + 1e-6)):
        bad = int(np.flatnonzero(~((values >= -1e-6) & (values <= 1.0 + 1e-6)))[0])
        raise NSERError(f"a scorer must return numbers in [0, 1]; it returned {values[bad]} for transition {bad} of {n}")
    clipped: FloatArray = np.clip(values, 0.0, 1.0)
    return clipped
