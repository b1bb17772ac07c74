"""Scorers that look at earlier steps: they get those of the same episode, as far back as asked for and stored."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.errors import ConfigurationError, NSERError
from sb3_nser.replay import scoring

from .helpers import fill, make


def seen_before(history):
    """Scores a row by the share of ``history`` earlier steps of its episode whose flag, the third observation, was up."""

    def score(rows):
        assert rows.n_envs >= 1 and len(rows.episodes) == len(rows.rewards)
        out = np.zeros(len(rows.rewards))
        for at in range(len(out)):
            earlier = [at - back * rows.n_envs for back in range(1, history + 1)]
            same = [row for row in earlier if row >= 0 and rows.episodes[row] == rows.episodes[at]]
            out[at] = sum(rows.observations[row, 2] for row in same) / history
        return out

    return score


class Log:
    """What was added to a buffer, to work out the scores by hand."""

    def __init__(self, buffer, history, seed, chance):
        self.buffer, self.history, self.chance = buffer, history, chance
        self.rng = np.random.default_rng(seed)
        self.flags, self.starts = [], []  # per step: the flags, and the step at which each episode began
        self.began = np.zeros(buffer.n_envs, dtype=int)

    def add(self, reset=False):
        number, n_envs = len(self.flags), self.buffer.n_envs
        if reset:
            self.buffer.mark_break()
            self.began[:] = number
        flags, dones = self.rng.random(n_envs) < 0.3, self.rng.random(n_envs) < self.chance
        self.flags.append(flags)
        self.starts.append(self.began.copy())
        obs = np.stack([np.full(n_envs, number), np.arange(n_envs), flags], axis=1).astype(np.float32)
        self.buffer.add(obs, obs, np.zeros(n_envs), np.zeros(n_envs), dones, [{}] * n_envs)
        self.began[dones] = number + 1

    def by_hand(self, number, env, oldest):
        """Slow and simple: the score of one step if steps before ``oldest`` are gone."""
        first = max(self.starts[number][env], number - self.history, oldest)
        return sum(self.flags[step][env] for step in range(first, number)) / self.history

    @property
    def oldest(self):
        return len(self.flags) - self.buffer.size() + self.buffer._head_excluded()


setups = {
    "n_envs": st.integers(1, 3),
    "rows": st.integers(2, 25),
    "history": st.integers(1, 12),
    "steps": st.integers(1, 60),
    "chance": st.sampled_from([0.0, 0.1, 0.5]),
    "one_array": st.booleans(),
    "seed": st.integers(0, 100),
    "resets": st.sets(st.integers(0, 59), max_size=3),
}


def start(n_envs, rows, history, chance, one_array, seed):
    buffer = make(
        rows * n_envs,
        n_envs=n_envs,
        trace_decay=0.0,
        optimize_memory_usage=one_array,
        handle_timeout_termination=not one_array,
    )
    return buffer, Log(buffer, history, seed, chance)


@settings(max_examples=80, deadline=None)
@given(chunk=st.integers(1, 40), **setups)
def test_rescored_rows_count_whatever_is_stored(n_envs, rows, history, steps, chance, one_array, seed, resets, chunk):
    """Newest rows first, in chunks, after the ring may have gone round several times."""
    buffer, log = start(n_envs, rows, history, chance, one_array, seed)
    for step in range(steps):
        log.add(reset=step in resets)
    if log.oldest >= steps:
        return  # with one array and one row nothing can be drawn
    with mock.patch.object(scoring, "SCORE_CHUNK", chunk):
        buffer.set_scorer(seen_before(history), history=history)
        while True:
            buffer.sample(1)
            if buffer.scores_complete:
                break
    got = buffer.scores.reshape(-1, n_envs)
    for number in range(log.oldest, steps):
        expected = [log.by_hand(number, env, log.oldest) for env in range(n_envs)]
        np.testing.assert_allclose(got[number % rows], expected, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(every=st.integers(1, 4), **setups)
def test_new_rows_count_whatever_is_stored_when_they_are_drawn(
    n_envs, rows, history, steps, chance, one_array, seed, resets, every
):
    buffer, log = start(n_envs, rows, history, chance, one_array, seed)
    buffer.set_scorer(seen_before(history), history=history)
    expected = {}
    for step in range(steps):
        log.add(reset=step in resets)
        if step % every == 0 and log.oldest <= step:
            with mock.patch.object(scoring, "SCORE_TOGETHER", 1):
                buffer.sample(1)
            for number in range(max(log.oldest, step - every + 1), step + 1):
                expected[number] = [log.by_hand(number, env, log.oldest) for env in range(n_envs)]
    got = buffer.scores.reshape(-1, n_envs)
    for number, scores in expected.items():
        if number >= log.oldest:
            np.testing.assert_allclose(got[number % rows], scores, atol=1e-6)


def test_no_more_rows_are_fetched_than_the_episodes_hold(monkeypatch):
    asked = []
    buffer = fill(make(1000, n_envs=2), 90, episode=30)
    buffer.set_scorer(lambda rows: asked.append(len(rows.rewards)) or np.zeros(len(rows.rewards)), history=1000)
    buffer.sample(2)
    asked.clear()
    monkeypatch.setattr(scoring, "SCORE_TOGETHER", 1)
    fill(buffer, 1, start=90, episode=30)
    buffer.sample(2)
    fill(buffer, 4, start=91, episode=30)
    buffer.sample(2)
    assert asked == [2, 10]  # the first step of an episode alone; the fifth with the four before it


def test_the_history_is_bounded(monkeypatch):
    asked = []
    buffer = fill(make(1000), 500)
    buffer.set_scorer(lambda rows: asked.append(len(rows.rewards)) or np.zeros(len(rows.rewards)), history=50)
    buffer.sample(2)
    asked.clear()
    monkeypatch.setattr(scoring, "SCORE_TOGETHER", 1)
    fill(buffer, 1, start=500)
    buffer.sample(2)
    assert asked == [51]


def test_a_scorer_without_history_is_given_no_episodes():
    given_episodes = []
    buffer = fill(make(), 30)
    buffer.set_scorer(lambda rows: given_episodes.append(rows.episodes) or np.zeros(len(rows.rewards)))
    buffer.sample(2)
    assert given_episodes == [None, None]


def test_credit_still_spreads_backwards():
    buffer = fill(make(100, trace_decay=0.5), 20, episode=10)
    buffer.set_scorer(lambda rows: (rows.observations[:, 0] == 15) * 1.0, history=3)
    buffer.sample(2)
    np.testing.assert_allclose(buffer.scores[8:17], [0, 0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 0])


def test_errors():
    buffer = fill(make(), 30)
    with pytest.raises(ConfigurationError, match="history=-1"):
        buffer.set_scorer(lambda rows: np.zeros(len(rows.rewards)), history=-1)
    with pytest.raises(NSERError, match="one number per transition"):
        buffer.set_scorer(lambda rows: np.zeros(8), history=20)
