"""Columns out of a real replay buffer: whole episodes in time order, raw features, returns that a time limit does not bend."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sb3_nser import NSERReplayBuffer
from sb3_nser.induction.data import collect, returns_to_go
from sb3_nser.vocabulary import vocabulary_for

SPACES = gym.spaces.Box(-10.0, 10.0, (4,), np.float32), gym.spaces.Discrete(2)


def fill(episodes: list[tuple[int, bool]], n_envs: int = 1) -> NSERReplayBuffer:
    """Every environment plays the given (length, truncated) episodes; the pole angle counts the steps, the reward is 1."""
    buffer = NSERReplayBuffer(1_000, *SPACES, device="cpu", n_envs=n_envs)
    clock = 0
    for length, truncated in episodes:
        for step in range(length):
            clock += 1
            now = np.full((n_envs, 4), 0.01 * clock, np.float32)
            done = step == length - 1
            infos: list[dict[str, Any]] = [{"TimeLimit.truncated": done and truncated}] * n_envs
            actions = np.full((n_envs, 1), clock % 2)
            buffer.add(now, now, actions, np.ones(n_envs), np.full(n_envs, done), infos)
    return buffer


def test_episodes_come_in_time_order_with_their_returns() -> None:
    buffer = fill([(3, False), (2, False)])
    found = collect(buffer, vocabulary_for(*SPACES, "CartPole-v1"), 0.5, 1_000)
    assert found.episode_ids.tolist() == [0, 0, 0, 1, 1]
    assert found.returns.tolist() == [1.75, 1.5, 1.0, 1.5, 1.0]
    assert found.columns["pole_angle"] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert found.actions.tolist() == [1, 0, 1, 0, 1]
    assert len(collect(buffer, vocabulary_for(*SPACES, "CartPole-v1"), 0.5, 2)) == 2  # the newest


def test_several_environments_are_not_mixed() -> None:
    found = collect(fill([(3, False)], n_envs=3), vocabulary_for(*SPACES, "CartPole-v1"), 1.0, 1_000)
    assert len(found) == 9 and len(np.unique(found.episode_ids)) == 3
    assert found.returns.reshape(3, 3).tolist() == [[3, 2, 1]] * 3


def test_a_time_limit_is_neither_loss_nor_gain() -> None:
    found = collect(fill([(50, True), (50, False)]), vocabulary_for(*SPACES, "CartPole-v1"), 0.9, 1_000)
    cut, ended = found.returns[:50], found.returns[50:]
    assert cut == pytest.approx(np.full(50, 10.0))  # 1 / (1 − γ) everywhere
    assert ended[-1] == 1.0 and ended[0] > 9.9
    assert returns_to_go(np.full(4, -1.0), 0.9, True) == pytest.approx(np.full(4, -10.0))
    assert returns_to_go(np.zeros(4), 0.9, True).tolist() == [0.0] * 4  # no reward seen, none invented
    assert returns_to_go(np.ones(3), 1.0, True).tolist() == [3.0, 2.0, 1.0]


def test_no_complete_episode_is_no_experience() -> None:
    found = collect(NSERReplayBuffer(10, *SPACES, device="cpu"), vocabulary_for(*SPACES, "CartPole-v1"), 0.9, 100)
    assert len(found) == 0 and not found.rewarded and set(found.columns) >= {"pole_angle"}
