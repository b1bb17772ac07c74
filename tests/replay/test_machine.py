"""Adding, drawing, updating, scoring, saving and loading in any order, against a slow model that keeps lists of numbers."""

import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sb3_nser.errors import NSERError
from sb3_nser.replay import NSERReplayBuffer

from .helpers import DISCRETE, OBS

LAMBDA, BOOST, FLOOR, EPSILON, BETA = 0.25, 4.0, 0.05, 0.01, 0.4


def odd(numbers):
    return (np.asarray(numbers) % 2) * 0.5


class Machine(RuleBasedStateMachine):
    """Every row is a number; ``slots`` maps (row, env) to [number, |δ|, score, stale]."""

    @initialize(
        rows=st.integers(1, 7),
        n_envs=st.integers(1, 3),
        kind=st.sampled_from(["flat", "one array", "Dict"]),
        alpha=st.sampled_from([0.0, 0.6, 1.0]),
        lap=st.booleans(),
    )
    def begin(self, rows, n_envs, kind, alpha, lap):
        self.rows, self.n_envs, self.kind, self.alpha, self.lap = rows, n_envs, kind, alpha, lap
        one_array = kind == "one array"
        self.buffer = NSERReplayBuffer(
            rows * n_envs, spaces.Dict({"a": OBS, "b": DISCRETE}) if kind == "Dict" else OBS, DISCRETE, "cpu", n_envs=n_envs,
            optimize_memory_usage=one_array, handle_timeout_termination=not one_array, alpha=alpha, beta=BETA,
            epsilon=EPSILON, uniform_fraction=FLOOR, rule_fraction=LAMBDA, max_boost=BOOST, rule_warmup=0, trace_decay=0.0,
            priority="lap" if lap else "proportional", seed=0,
        )  # fmt: skip
        self.buffer.mark_linked()
        self.slots, self.fresh, self.added, self.first = {}, [], 0, 0
        self.scorer, self.late, self.stale_writes = None, [], 0

    # ---------------------------------------------------------------- the slow model

    def head(self):
        """Rows that may not be drawn."""
        return {self.added % self.rows} if self.kind == "one array" and self.added - self.first >= self.rows else set()

    def settle(self):
        """New rows take the largest error there is."""
        if not self.fresh:
            return
        largest = max((slot[1] for slot in self.slots.values() if slot[1] is not None), default=None)
        if not self.was_started:
            largest = 1.0
        self.was_started = True
        for key, number in self.fresh:
            self.slots[key] = [number, largest, 0.0, True]
        self.fresh = []
        for row in self.head():
            for env in range(self.n_envs):
                self.slots[row, env][1:3] = [0.0, 0.0]

    was_started = False

    def score(self):
        for (row, _), slot in self.slots.items():
            if self.scorer is not None and slot[3] and row not in self.head():
                slot[2:] = [float(self.scorer(slot[0])), False]

    def mixture(self):
        keys = sorted(self.slots)
        keep = np.array([row not in self.head() for row, _ in keys])
        td = np.array([self.slots[key][1] for key in keys])
        scores = np.array([self.slots[key][2] for key in keys])
        b = keep * (np.maximum(td, 1) if self.lap else td + EPSILON) ** self.alpha
        u = 1.0 if self.alpha == 0 else FLOOR
        rules = (b * scores).sum()
        lam = min(LAMBDA, BOOST * rules / (b.sum() + BOOST * rules)) if rules > 0 else 0.0
        q = (1 - lam) * ((1 - u) * b / b.sum() + u * keep / keep.sum())
        return (q + lam * b * scores / rules if rules > 0 else q), int(keep.sum())

    def ready(self):
        return min(self.added - self.first, self.rows) > len(self.head())

    # ---------------------------------------------------------------- what happens

    @rule(steps=st.integers(1, 12))
    def add(self, steps):
        envs = np.arange(self.n_envs)
        for _ in range(steps):
            obs = np.stack([np.full(self.n_envs, self.added), envs, envs], axis=1).astype(np.float32)
            later = obs + np.array([1, 0, 0], np.float32)
            if self.kind == "Dict":
                obs, later = {"a": obs, "b": envs % 2}, {"a": later, "b": envs % 2}
            self.buffer.add(obs, later, envs % 2, self.added * 10.0 + envs, np.zeros(self.n_envs), [{}] * self.n_envs)
            row = self.added % self.rows
            self.fresh = [one for one in self.fresh if one[0][0] != row] + [((row, env), self.added) for env in envs.tolist()]
            self.added += 1

    @rule(batch_size=st.integers(1, 20))
    def sample(self, batch_size):
        self.settle()
        if not self.ready():
            with pytest.raises(NSERError):
                self.buffer.sample(batch_size)
            return
        batch = self.buffer.sample(batch_size)
        self.score()
        info, (q, count) = self.buffer.last_sample, self.mixture()
        assert len(info.indices) == batch_size and np.all(q[info.indices] > 0)
        np.testing.assert_allclose(info.probabilities, q[info.indices], rtol=1e-9)
        weights = np.ones(batch_size) if self.lap else (count * q[info.indices]) ** -BETA
        np.testing.assert_allclose(info.weights, weights / weights.max(), rtol=1e-9)
        numbers = np.array([self.slots[divmod(slot, self.n_envs)][0] for slot in info.indices.tolist()])
        np.testing.assert_array_equal(info.generations - info.generations.min(), numbers - numbers.min())
        np.testing.assert_array_equal(batch.rewards.numpy()[:, 0], numbers * 10 + info.env_indices)
        now, later = batch.observations, batch.next_observations
        now, later = (now["a"], later["a"]) if self.kind == "Dict" else (now, later)
        np.testing.assert_array_equal(now.numpy()[:, 0], numbers)
        np.testing.assert_array_equal(later.numpy()[:, 0], numbers + 1)
        self.late.append((info, numbers))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def update(self, data):
        """TD errors of some batch drawn before, perhaps long ago."""
        info, numbers = data.draw(st.sampled_from(self.late))
        values = np.array(data.draw(st.lists(st.floats(0, 1e6), min_size=len(numbers), max_size=len(numbers))))
        self.settle()
        self.buffer.update_priorities(info.indices, values, info.generations)
        for slot, number, value in zip(info.indices.tolist(), numbers.tolist(), values.tolist(), strict=True):
            key = divmod(slot, self.n_envs)
            if key not in self.slots or self.slots[key][0] != number:
                self.stale_writes += 1
            elif key[0] not in self.head():
                self.slots[key][1] = max(value, 1.0) if self.lap else value

    @precondition(lambda self: self.added > self.first)
    @rule(data=st.data())
    def set_scores(self, data):
        self.settle()
        slots = data.draw(st.lists(st.sampled_from(range(self.buffer.n_transitions)), unique=True, max_size=8))
        values = data.draw(st.lists(st.floats(0, 1), min_size=len(slots), max_size=len(slots)))
        self.buffer.set_scores(np.array(slots, dtype=int), np.array(values))
        for slot, value in zip(slots, values, strict=True):
            key = divmod(slot, self.n_envs)
            if key[0] not in self.head():
                self.slots[key][2] = value

    @rule(scorer=st.sampled_from([None, odd, lambda numbers: 1.0 - odd(numbers)]))
    def set_scorer(self, scorer):
        self.settle()
        self.scorer = scorer
        self.attach(keep_scores=False)
        for slot in self.slots.values():
            slot[3] = True
            slot[2] = 0.0 if scorer is None else slot[2]

    @rule()
    def rescore(self):
        self.settle()
        self.buffer.rescore()
        for slot in self.slots.values():
            slot[3] = True

    @rule()
    def save_and_load(self):
        self.settle()
        self.buffer = pickle.loads(pickle.dumps(self.buffer))
        self.buffer.mark_linked()
        if self.scorer is not None:
            self.attach(keep_scores=True)

    @rule()
    def reset(self):
        self.buffer.reset()
        rounded = -(-self.added // self.rows) * self.rows
        self.slots, self.fresh, self.added, self.first, self.was_started = {}, [], rounded, rounded, False

    def attach(self, keep_scores):
        def scorer(rows):
            observations = rows.observations["a"] if self.kind == "Dict" else rows.observations
            return self.scorer(observations[:, 0])

        self.buffer.set_scorer(None if self.scorer is None else scorer, keep_scores=keep_scores)

    # ---------------------------------------------------------------- what must hold

    @invariant()
    def it_is_the_slow_model(self):
        if not hasattr(self, "buffer"):
            return
        size = min(self.added - self.first, self.rows)
        assert self.buffer.n_transitions == size * self.n_envs and self.buffer.stale_writes == self.stale_writes
        if self.fresh:
            return  # looking would settle them: nothing is known of rows that were only added
        keys = sorted(self.slots)
        np.testing.assert_array_equal(self.buffer.td_errors, [self.slots[key][1] for key in keys])
        np.testing.assert_array_equal(self.buffer.scores, [self.slots[key][2] for key in keys])
        if self.ready() and not (self.scorer is not None and any(slot[3] for slot in self.slots.values())):
            q = self.buffer.probabilities()
            np.testing.assert_allclose(q, self.mixture()[0], rtol=1e-9, atol=1e-300)
            assert q.sum() == pytest.approx(1)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
