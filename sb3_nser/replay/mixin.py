"""Prioritised, rule-weighted replay on top of any SB3 replay buffer."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nser.arguments import as_number
from sb3_nser.errors import NSERError, NSERWarning
from sb3_nser.replay.options import PriorityOptions
from sb3_nser.replay.priorities import (
    Mixture,
    effective_size,
    expected_coverage,
    importance_weights,
    make_mixture,
    seeded_generator,
)
from sb3_nser.replay.records import FloatArray, IntArray, SampleInfo
from sb3_nser.replay.shuffle import ShuffledScores
from sb3_nser.replay.store import PriorityStore
from sb3_nser.replay.writing import WritingMixin

STATE_VERSION = 3
UNLINKED_SAMPLES = 100
POINTS_AHEAD = 4096

_NOT_SAVED = ("_scorer", "last_batch", "_linked", "_unlinked_samples", "_sampled_at")


class PriorityMixin(WritingMixin):
    """
    Draws slots from the mixture of rules, TD errors and a uniform floor, and keeps what this needs.

    A buffer puts it before its SB3 class, calls ``_init_priorities`` after SB3's constructor and implements ``_gather``.
    """

    last_sample: SampleInfo | None
    last_batch: Any

    def _init_priorities(self, options: PriorityOptions) -> None:
        """:param options: checked options; the ring's arrays exist already"""
        self.options = options
        self.alpha, self.epsilon = options.alpha, options.epsilon
        self.trace_decay = options.trace_decay
        self.n_steps, self.gamma = options.n_steps, options.gamma
        self._init_ring()
        self._init_scoring()
        self._store = PriorityStore(self.n_slots, options.alpha, options.epsilon)
        self._rng = seeded_generator(options.seed)
        self._points_ahead: FloatArray = np.empty(0)
        self._points_used = 0
        if options.shuffle_scores:
            stream = self._rng.bit_generator.jumped()  # type: ignore[attr-defined]
            self._shuffled = ShuffledScores(self.n_slots, np.random.Generator(stream))
        self._flushed = 0
        self._first_score_at: int | None = None
        self.progress = 0.0
        self.beta_now = options.beta
        self.rule_fraction_now = 0.0
        self.stale_writes = 0
        self.last_sample = None
        self._init_unsaved()

    def _init_unsaved(self) -> None:
        self._scorer = None
        self.last_batch = None
        self._sampled_at = -1  # how many rows there were at the last draw
        self._linked = False
        self._unlinked_samples = 0

    # ------------------------------------------------------------------ drawing

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Draw transitions; rows not scored yet are scored first (but a few new ones, see ``scores_complete``).

        :param batch_size: how many, at least 1
        :param env: normalises observations and rewards of the batch, as in SB3
        :return: SB3's own tuple of tensors; ``last_sample`` says what was drawn and with which weights. The draw is
            stratified, so the batch is ordered: rule draws, then TD draws, then the uniform floor, each by slot
        :raises NSERError: if the buffer holds no transition that can be drawn
        """
        if batch_size < 1:
            raise NSERError(f"batch_size must be at least 1, not {batch_size}")
        self._warn_if_unlinked()
        self._flush()
        self._require_transitions()
        self._score_pending()
        mixture = self._mixture()
        indices, q, smallest = self._draw(mixture, batch_size)
        indices.flags.writeable = False  # update_last trusts them
        weights = None if mixture.even or self.beta_now == 0.0 else importance_weights(q, self.beta_now, smallest)
        self.last_sample = SampleInfo.of(indices, q, weights, self._added - 1, self.buffer_size, self.n_envs)
        self._sampled_at = self._added
        self.rule_fraction_now = mixture.rule_fraction
        self.last_batch = self._gather(indices, env)
        return self.last_batch

    def probabilities(self) -> FloatArray:
        """
        The chance of every filled slot in the next single draw.

        :return: float64, shape ``(n_transitions,)``, sums to 1; 0 for slots that cannot be drawn
        :raises NSERError: if the buffer holds no transition that can be drawn
        """
        self._flush()
        self._require_transitions()
        self._score_pending()
        mixture, n = self._mixture(), self.n_transitions
        q = mixture.probabilities(self._store.base.leaves[:n], self._store.rule.leaves[:n])
        if not self._all_drawable():
            q[~self._drawable(np.arange(n))] = 0.0
        return q

    @property
    def effective_sample_size(self) -> float:
        """``(Σρ)²/Σρ²`` of the last batch with ``ρ = 1/(N q)``: its length after a uniform draw, less the more uneven."""
        if self.last_sample is None:
            return 0.0
        return effective_size(self.last_sample.probabilities)

    @property
    def coverage(self) -> float:
        """
        Share of the stored transitions that as many draws as there are transitions would reach, estimated from the last batch:
        about 0.63 for uniform draws, less where much of the buffer is hardly ever drawn.
        """
        if self.last_sample is None:
            return 0.0
        return expected_coverage(self.last_sample.probabilities, self._n_drawable())

    def _mixture(self) -> Mixture:
        count = self._n_drawable()
        wanted = 0.0
        if self._store.rule.total > 0.0:
            seen = self._added * self.n_envs
            if self._first_score_at is None:
                self._first_score_at = seen
            warmup = self.options.rule_warmup
            warm = min(1.0, (seen - self._first_score_at) / warmup) if warmup else 1.0
            wanted = min(warm * self.options.rule_fraction(self.progress), self.score_limit)
        return make_mixture(
            count,
            self._store.base.total,
            self._store.rule.total,
            alpha=self.alpha,
            wanted=wanted,
            uniform_fraction=self.options.uniform_fraction,
            max_boost=self.options.max_boost,
        )

    def _n_drawable(self) -> int:
        return (self._added - self._first_valid()) * self.n_envs

    def _draw(self, mixture: Mixture, batch_size: int) -> tuple[IntArray, FloatArray, float]:
        """Slots in the order of the batch, their probabilities, and the smallest of these."""
        first = (self.pos + 1) * self.n_envs if self._head_excluded() else 0
        return self._store.draw(self._points(batch_size), mixture, first)

    def _points(self, n: int) -> FloatArray:
        """Random numbers in [0, 1): many are made at once, for a call costs more than some hundred numbers."""
        stop = self._points_used + n
        if stop > len(self._points_ahead):
            self._points_ahead, stop = self._rng.random(max(n, POINTS_AHEAD)), n
        self._points_used = stop
        return self._points_ahead[stop - n : stop]

    def _gather(self, indices: IntArray, env: VecNormalize | None) -> Any:
        raise NotImplementedError

    def _require_transitions(self) -> None:
        if self._first_valid() < self._added:
            return
        if self.size() == 0:
            raise NSERError("the replay buffer is empty: collect transitions (learning_starts) before sampling")
        raise NSERError("optimize_memory_usage needs a buffer of at least 2 rows to sample from; make buffer_size larger")

    # ------------------------------------------------------------------ training and file

    def set_progress(self, progress: float, restart: bool = False) -> None:
        """
        Tell how far training is; β and a scheduled rule share follow. β never falls by itself: over several ``learn()``
        calls it stays at the highest value reached. The rule share follows the progress it is given, as SB3's own
        schedules do.

        :param progress: share of the training that is done, 0 to 1 (outside is clipped)
        :param restart: a new training begins (``reset_num_timesteps=True``): β starts again, and the next transition
            does not continue the last episode
        :raises ConfigurationError: if ``progress`` is not a finite number
        """
        self.progress = min(max(as_number("progress", progress), 0.0), 1.0)
        reached = self.options.beta + (self.options.beta_final - self.options.beta) * self.progress
        self.beta_now = reached if restart else max(self.beta_now, reached)
        if restart:
            self.mark_break()

    def reset(self) -> None:
        """Empty the buffer; scorer, progress and random stream stay."""
        super().reset()
        self._store.clear()
        if self._shuffled is not None:
            self._shuffled.clear()
        self._flushed = self._stale_below = self._scored_until = self._added
        self.last_sample = None
        self.last_batch = None

    def mark_linked(self) -> None:
        """Called by the learner link, and by whoever writes priorities or scores: there is nothing to warn about."""
        self._linked = True

    def mark_unlinked(self) -> None:
        """Called by the learner link when it leaves: whoever trains on without it is warned again."""
        self._linked = False
        self._unlinked_samples = 0

    def _warn_if_unlinked(self) -> None:
        if self._linked or self.alpha == 0.0:
            return
        self._unlinked_samples += 1
        if self._unlinked_samples == UNLINKED_SAMPLES:
            warnings.warn(
                f"{type(self).__name__} was sampled {UNLINKED_SAMPLES} times, but no callback feeds it: no TD errors and no "
                "rules arrive, importance weights are not applied, and it draws uniformly. Pass PriorityCallback() or "
                "RuleInductionCallback() to learn().",
                NSERWarning,
                stacklevel=3,
            )

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        state = {key: value for key, value in self.__dict__.items() if key not in _NOT_SAVED}
        state["state_version"] = STATE_VERSION
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        found = state.get("state_version")
        if found != STATE_VERSION:
            raise NSERError(
                f"this {type(self).__name__} was saved with state version {found}, and this version of sb3-nser reads "
                f"{STATE_VERSION}; load it with the version that wrote it"
            )
        self.__dict__.update({key: value for key, value in state.items() if key != "state_version"})
        self._init_unsaved()
        self.mark_break_unless_continued()
