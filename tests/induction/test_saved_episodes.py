"""Episodes of a saved SB3 buffer: whole ones only, in the order they happened, whatever the ring did to them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_nser import NSERReplayBuffer
from sb3_nser.errors import ConfigurationError
from sb3_nser.induction.data import collect
from sb3_nser.induction.saved import SavedEpisodes, episodes_of, load_buffer
from sb3_nser.vocabulary import vocabulary_for
from scripted import dqn

BOX, TWO = spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(2)


def fill(buffer: Any, lengths: list[list[int]], steps: int) -> list[list[tuple[int, list[float], bool]]]:
    """
    Play made-up episodes of given lengths, again and again, in each environment. Every observation is a number of its own, an
    episode's steps follow one another, and the reward is the observation.

    :return: per environment its episodes in order: (row of the last step, rewards, cut by a time limit)
    """
    n = buffer.n_envs
    state, number, played = np.arange(n) * 100_000.0, [0] * n, [0] * n
    out: list[list[tuple[int, list[float], bool]]] = [[] for _ in range(n)]
    running: list[list[float]] = [[] for _ in range(n)]
    for row in range(steps):
        done, infos, following, next_state = np.zeros(n, bool), [], state + 1, state + 1
        for env in range(n):
            running[env].append(float(state[env]))
            played[env] += 1
            cut = number[env] % 3 == 2
            info: dict[str, Any] = {}
            if played[env] == lengths[env][number[env] % len(lengths[env])]:
                done[env] = True
                info = {"TimeLimit.truncated": cut}
                out[env].append((row, running[env], cut))
                running[env], played[env] = [], 0
                number[env] += 1
                next_state[env] = state[env] + 10  # the next episode begins elsewhere
            infos.append(info)
        one = isinstance(buffer.observation_space, spaces.Dict)
        obs, nxt = state.reshape(n, 1).astype(np.float32), following.reshape(n, 1).astype(np.float32)
        before = {"x": obs} if one else obs
        after = {"x": nxt} if one else nxt
        buffer.add(before, after, np.zeros((n, 1), np.int64), state.astype(np.float32), done, infos)
        state = next_state
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(5, 40),
    st.integers(1, 90),
    st.sampled_from(["plain", "one array", "dict"]),
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
)
def test_whole_episodes_survive_ring_wrap_environments_and_memory_saving(
    n_envs: int, rows: int, steps: int, kind: str, lengths: list[int]
) -> None:
    one_array = kind == "one array"
    space = spaces.Dict({"x": BOX}) if kind == "dict" else BOX
    make: Any = DictReplayBuffer if kind == "dict" else ReplayBuffer
    buffer = make(
        rows * n_envs, space, TWO, "cpu", n_envs, optimize_memory_usage=one_array, handle_timeout_termination=not one_array
    )
    played = fill(buffer, [lengths[env % len(lengths) :] + lengths for env in range(n_envs)], steps)
    # by hand: an episode is whole if its first step is still held; with one array, the oldest row of a full ring is lost;
    # and the very oldest row of a full ring is not known to begin an episode
    oldest = max(0, steps - rows) + (one_array and steps >= rows)
    expected = {
        (env, tuple(rewards), cut and not one_array)
        for env in range(n_envs)
        for last, rewards, cut in played[env]
        if (first := last + 1 - len(rewards)) >= oldest and not (steps >= rows and first == oldest)
    }
    source = SavedEpisodes(buffer)
    found = source.complete_episodes()
    assert {(e.env, tuple(source.transitions(e.indices).rewards.tolist()), e.truncated) for e in found} == expected
    ends = [max(e.indices // n_envs, key=lambda row: (row - buffer.pos) % buffer.buffer_size) for e in found]
    ages = [(row - buffer.pos) % buffer.buffer_size for row in ends]
    assert ages == sorted(ages, reverse=True)  # newest first
    for episode in found:
        part = source.transitions(episode.indices)
        obs, nxt = (a["x"] if kind == "dict" else a for a in (part.observations, part.next_observations))
        assert np.array_equal(obs[1:], nxt[:-1]) and np.array_equal(obs[:, 0], part.rewards)
    for limit in (1, 10):
        some = source.complete_episodes(limit)
        assert len(some) == min(1, len(found)) or sum(len(e.indices) for e in some) <= limit


def test_a_reset_between_two_calls_of_learn_ends_no_episode() -> None:
    """SB3 resets the environments at each learn() and marks nothing: step 3 of one episode stands before step 0 of another."""
    buffer = ReplayBuffer(100, BOX, TWO, "cpu")
    for row, (state, end) in enumerate([(0, 0), (1, 1), (20, 0), (21, 0), (40, 0), (41, 1)]):
        obs = np.array([[state]], np.float32)
        buffer.add(obs, obs + 1, np.zeros((1, 1)), np.array([row]), np.array([bool(end)]), [{}])
    assert [e.indices.tolist() for e in SavedEpisodes(buffer).complete_episodes()] == [[4, 5], [0, 1]]


@pytest.mark.parametrize(("algorithm", "env_id"), [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_a_plain_buffer_and_ours_tell_the_same_story_of_the_same_run(tmp_path: Path, algorithm: Any, env_id: str) -> None:
    told = []
    for buffer_class in (ReplayBuffer, NSERReplayBuffer):
        model = dqn(env_id, algorithm, replay_buffer_class=buffer_class, learning_starts=1_500, buffer_size=700)
        model.learn(1_000)
        model.save_replay_buffer(tmp_path / "buffer")
        buffer = load_buffer(tmp_path / "buffer")  # .pkl is added, as in SB3
        assert type(buffer) is buffer_class and (type(episodes_of(buffer)) is SavedEpisodes) == (buffer_class is ReplayBuffer)
        vocabulary = vocabulary_for(buffer.observation_space, buffer.action_space, env_id)
        told.append(collect(episodes_of(buffer), vocabulary, 0.99, 10_000))
    plain, ours = told
    assert len(plain) > 200
    # ours remembers whether the row before the oldest ended an episode, a plain one cannot: at most that one is missing
    assert np.array_equal(plain.rewards, ours.rewards[len(ours) - len(plain) :])
    assert np.array_equal(plain.returns, ours.returns[len(ours) - len(plain) :])
    for name, column in plain.columns.items():
        assert np.array_equal(column, ours.columns[name][len(ours) - len(plain) :])
    if env_id == "Pendulum-v1":
        assert np.abs(plain.actions).max() > 1.0  # environment units, although SAC stores them scaled


def test_what_is_no_buffer_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_buffer(tmp_path / "absent.pkl")
    for name, content in (("text.pkl", b"hello"), ("empty.pkl", b""), ("dict.pkl", pickle.dumps({"a": 1}))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"cannot be loaded|holds a dict"):
            load_buffer(tmp_path / name)
    for folder in (tmp_path, "", "/"):
        with pytest.raises(ConfigurationError, match="does not exist"):
            load_buffer(folder)
    damaged = ReplayBuffer(4, BOX, TWO, "cpu")
    del damaged.observation_space
    (tmp_path / "damaged.pkl").write_bytes(pickle.dumps(damaged))
    with pytest.raises(ConfigurationError, match="a ReplayBuffer without observation_space"):
        load_buffer(tmp_path / "damaged.pkl")
