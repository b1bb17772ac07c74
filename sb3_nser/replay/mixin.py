"""Prioritised, rule-weighted replay on top of any SB3 replay buffer."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nser.errors import NSERError, NSERWarning
from sb3_nser.replay.options import PriorityOptions
from sb3_nser.replay.priorities import (
    Mixture,
    effective_size,
    importance_weights,
    make_mixture,
    parse_number,
    seeded_generator,
)
from sb3_nser.replay.records import FloatArray, IntArray, SampleInfo
from sb3_nser.replay.scoring import ScoringMixin
from sb3_nser.replay.store import PriorityStore

STATE_VERSION = 1
UNLINKED_SAMPLES = 100

_NOT_SAVED = ("_scorer", "last_batch", "_linked", "_unlinked_samples", "_sampled_at")


class PriorityMixin(ScoringMixin):
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
        self._init_ring()
        self._init_scoring()
        self._store = PriorityStore(self.n_slots, options.alpha, options.epsilon)
        self._rng = seeded_generator(options.seed)
        self._flushed = 0
        self._first_score_at: int | None = None
        self.progress = 0.0
        self.beta_now = options.beta
        self.rule_fraction_now = 0.0
        self.stale_writes = 0
        self.last_sample = None
        self._last_count = 0
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
        Draw transitions; rows not scored yet are scored first.

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
        first = (self.pos + 1) * self.n_envs if self._head_excluded() else 0
        indices, q = self._store.draw(self._rng, mixture, batch_size, first)
        rows, envs = np.divmod(indices, self.n_envs)
        weights = importance_weights(q, mixture.count, self.beta_now)
        generations = self._generations(rows)
        indices.flags.writeable = generations.flags.writeable = False  # update_priorities trusts them
        self.last_sample = SampleInfo(indices, envs, q, weights, generations)
        self._sampled_at = self._added
        self.rule_fraction_now = mixture.rule_fraction
        self._last_count = mixture.count
        self.last_batch = self._gather(rows, envs, env)
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
        if self._head_excluded():
            q[self._slots(self._first_kept(), self._first_kept() + 1)] = 0.0
        return q

    @property
    def effective_sample_size(self) -> float:
        """``(Σρ)²/Σρ²`` of the last batch with ``ρ = 1/(N q)``: its length after a uniform draw, less the more uneven."""
        if self.last_sample is None:
            return 0.0
        return effective_size(self.last_sample.probabilities, self._last_count)

    def _mixture(self) -> Mixture:
        count = (self._added - self._first_valid()) * self.n_envs
        wanted = 0.0
        if self._store.rule.total > 0.0:
            seen = self._added * self.n_envs
            if self._first_score_at is None:
                self._first_score_at = seen
            warmup = self.options.rule_warmup
            warm = min(1.0, (seen - self._first_score_at) / warmup) if warmup else 1.0
            wanted = warm * self.options.rule_fraction(self.progress)
        return make_mixture(
            count,
            self._store.base.total,
            self._store.rule.total,
            alpha=self.alpha,
            wanted=wanted,
            uniform_fraction=self.options.uniform_fraction,
            max_boost=self.options.max_boost,
        )

    def _gather(self, rows: IntArray, envs: IntArray, env: VecNormalize | None) -> Any:
        raise NotImplementedError

    def _require_transitions(self) -> None:
        if self._first_valid() < self._added:
            return
        if self.size() == 0:
            raise NSERError("the replay buffer is empty: collect transitions (learning_starts) before sampling")
        raise NSERError("optimize_memory_usage needs a buffer of at least 2 rows to sample from; make buffer_size larger")

    # ------------------------------------------------------------------ writing

    @property
    def td_errors(self) -> FloatArray:
        """|δ| of the filled slots, float64, a copy of shape ``(n_transitions,)``."""
        self._flush()
        copied: FloatArray = self._store.td_errors[: self.n_transitions].copy()
        return copied

    @property
    def scores(self) -> FloatArray:
        """Rule scores of the filled slots, float64, a copy of shape ``(n_transitions,)``."""
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
        Write TD errors. Of repeated indices the last wins.

        :param indices: flat slots ``row * n_envs + env``, shape ``(m,)``
        :param td_errors: ``|δ|``, finite and not negative, shape ``(m,)``
        :param generations: ``last_sample.generations`` of the same slots: what was overwritten since is dropped and
            counted in ``stale_writes``; ``None`` writes to whatever is there now
        :raises ValueError: for a NaN, infinite or negative value, naming index and value; nothing is written then
        :raises IndexError: for a slot that is not filled
        """
        values = np.atleast_1d(np.asarray(td_errors, dtype=np.float64))
        drawn = self.last_sample
        if drawn is not None and indices is drawn.indices and generations is drawn.generations:
            # the last batch, read-only; if nothing was added since, its slots are right as they are
            fits = self._sampled_at == self._added and values.shape == drawn.indices.shape
            if fits and np.minimum.reduce(values) >= 0.0 and np.maximum.reduce(values) < np.inf:
                self.mark_linked()
                self._store.write_td_errors(drawn.indices, values)
                return
        where = np.atleast_1d(np.asarray(indices))
        if values.shape != where.shape:
            raise ValueError(f"{where.shape} indices were given with {values.shape} TD errors; give one for each")
        if values.size and not (values.min() >= 0.0 and values.max() < np.inf):
            _refuse("TD error", where, values, ~((values >= 0.0) & (values < np.inf)), "finite and not negative")
        self._flush()
        if generations is not None:
            given = np.atleast_1d(np.asarray(generations, dtype=np.int64))
            if given.shape != where.shape:
                raise ValueError(f"{where.shape} indices were given with {given.shape} generations; give one for each")
            current = self._generations(where // self.n_envs) == given
            if where.size and (not current.all() or where.min() < 0 or where.max() >= self.n_transitions):
                current &= (where >= 0) & (where < self.n_transitions)
                self.stale_writes += int(np.count_nonzero(~current))
                where, values = where[current], values[current]
        where, values = self._without_head(self._filled(where), values)
        self.mark_linked()  # whoever calls this feeds the buffer, link or not
        self._store.write_td_errors(where, values)

    def rewrite_td_errors(self, td_errors: npt.ArrayLike) -> None:
        """
        Write the TD errors of all filled slots at once: a few milliseconds for a million.

        :param td_errors: ``|δ|``, finite and not negative, shape ``(n_transitions,)``
        :raises ValueError: for another shape, or a value that is NaN, infinite or negative; nothing is written then
        """
        values = np.asarray(td_errors, dtype=np.float64)
        if values.shape != (self.n_transitions,):
            raise ValueError(
                f"the buffer holds {self.n_transitions} transitions, but TD errors of shape {values.shape} were given"
            )
        if values.size and not (values.min() >= 0.0 and values.max() < np.inf):
            slots = np.arange(len(values))
            _refuse("TD error", slots, values, ~((values >= 0.0) & (values < np.inf)), "finite and not negative")
        self._flush()
        self.mark_linked()
        self._store.rewrite_td_errors(values)
        if self._head_excluded():
            self._store.withdraw(self._slots(self._first_kept(), self._first_kept() + 1))

    def set_scores(self, indices: npt.ArrayLike, scores: npt.ArrayLike) -> None:
        """
        Write rule scores as they are: they do not spread backwards. A scorer overwrites them when it comes to these rows.

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
        where, values = self._without_head(self._filled(where), values)
        self.mark_linked()
        self._store.write_scores(where, values)

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
        self.progress = min(max(parse_number("progress", progress), 0.0), 1.0)
        reached = self.options.beta + (self.options.beta_final - self.options.beta) * self.progress
        self.beta_now = reached if restart else max(self.beta_now, reached)
        if restart:
            self.mark_break()

    def reset(self) -> None:
        """Empty the buffer; scorer, progress and random stream stay."""
        super().reset()
        self._store.clear()
        self._flushed = self._stale_below = self._scored_until = self._added
        self.last_sample = None
        self.last_batch = None

    def _flush(self) -> None:
        # rows added since the last call enter at the largest TD error the buffer has now
        if self._flushed == self._added:
            return
        start = max(self._flushed, self._first_kept())
        self._flushed = self._added
        self._store.enter(self._slots(start, self._added))
        if self._head_excluded():
            self._store.withdraw(self._slots(self._first_kept(), self._first_kept() + 1))

    def _without_head(self, indices: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
        if not self._head_excluded():
            return indices, values
        keep = indices // self.n_envs != self.pos
        return indices[keep], values[keep]

    # ------------------------------------------------------------------ learner and file

    def mark_linked(self) -> None:
        """Called by the learner link, and by whoever writes priorities or scores: there is nothing to warn about."""
        self._linked = True

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
        self.mark_break()


def _refuse(what: str, indices: npt.NDArray[Any], values: FloatArray, bad: npt.NDArray[np.bool_], expected: str) -> None:
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"the {what} for index {indices[first]} is {values[first]}, but it must be {expected}; nothing written"
        )
