"""Buffers whose rows say where they are: the reward of (row, env) at its n-th writing is 1000 * writing + env."""

import numpy as np
import torch as th
from gymnasium import spaces
from scipy import stats

from sb3_nser.replay import NSERReplayBuffer

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = spaces.Discrete(2)


def make(buffer_size=100, n_envs=1, observation_space=OBS, action_space=DISCRETE, **options):
    return NSERReplayBuffer(
        buffer_size, observation_space, action_space, device="cpu", n_envs=n_envs, **{"seed": 0, **options}
    )


def fill(buffer, steps, start=0, episode=None, timeout=False):
    """
    Add ``steps`` rows numbered from ``start``; observation (number, env, 0), next observation (number + 1, env, 0).

    :param episode: length after which every environment's episode ends
    :param timeout: whether a time limit ends it
    """
    envs = np.arange(buffer.n_envs)
    for number in range(start, start + steps):
        obs = np.stack([np.full_like(envs, number), envs, envs * 0], axis=1).astype(np.float32)
        following = obs + np.array([1, 0, 0], np.float32)
        done = np.full(buffer.n_envs, episode is not None and (number + 1) % episode == 0)
        infos = [{"TimeLimit.truncated": bool(d and timeout)} for d in done]
        buffer.add(obs, following, envs % 2, 1000.0 * number + envs, done, infos)
    return buffer


def count(buffer, batches, batch_size):
    """How often each slot of the whole ring was drawn."""
    drawn = np.zeros(buffer.n_slots, dtype=np.int64)
    for _ in range(batches):
        buffer.sample(batch_size)
        drawn += np.bincount(buffer.last_sample.indices, minlength=buffer.n_slots)
    return drawn


def chi_square(drawn, q):
    """p-value of the counts; slots that cannot be drawn must not have been."""
    assert drawn[: len(q)][q == 0].sum() == 0 and drawn[len(q) :].sum() == 0
    drawn, expected = drawn[: len(q)][q > 0], q[q > 0] * drawn.sum()
    rare = expected < 5  # the test needs five expected in each cell, so these become one
    if rare.any():
        drawn, expected = (np.append(one[~rare], one[rare].sum()) for one in (drawn, expected))
        if expected[-1] < 5 and len(expected) > 1:
            drawn, expected = (np.append(one[:-2], one[-2:].sum()) for one in (drawn, expected))
    return stats.chisquare(drawn, expected).pvalue if len(expected) > 1 else 1.0


def sb3_batch(buffer, info, env=None):
    """The same rows through SB3's own code: its random draw of the environment is told what to give."""
    original = np.random.randint
    np.random.randint = lambda *args, **kwargs: info.env_indices
    try:
        return buffer._get_samples(info.indices // buffer.n_envs, env=env)
    finally:
        np.random.randint = original


def assert_same_batch(got, expected):
    assert type(got) is type(expected)
    for field in expected._fields:
        one, other = getattr(got, field), getattr(expected, field)
        if other is None:
            assert one is None
            continue
        if not isinstance(other, dict):
            one, other = {field: one}, {field: other}
        assert one.keys() == other.keys()
        for key, tensor in other.items():
            assert one[key].dtype == tensor.dtype and one[key].shape == tensor.shape and one[key].device == tensor.device
            assert th.equal(one[key], tensor), (field, key)
