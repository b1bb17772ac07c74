"""n-step returns: SB3's own for the same rows, and one written out step by step."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nser.errors import ConfigurationError, NSERWarning, UnsupportedError
from sb3_nser.replay import LearnerLink, NSERReplayBuffer

from .helpers import DISCRETE, OBS, assert_same_batch, fill, make, sb3_batch


def play(buffers, steps, n_envs, seed=0, chance=0.15):
    rng = np.random.default_rng(seed)
    for number in range(steps):
        envs = np.arange(n_envs)
        obs = np.stack([np.full(n_envs, number), envs, envs], axis=1).astype(np.float32)
        done = rng.random(n_envs) < chance
        infos = [{"TimeLimit.truncated": bool(d and rng.random() < 0.5)} for d in done]
        reward = rng.normal(size=n_envs)
        for buffer in buffers:
            buffer.add(obs, obs + 0.5, envs % 2, reward, done, infos)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [2, 3, 7])
@pytest.mark.parametrize("rows, steps", [(40, 25), (40, 40), (40, 93), (2, 5), (1, 3)])
def test_it_is_what_sb3_computes_for_the_same_rows(n_envs, n_steps, rows, steps):
    kwargs = dict(device="cpu", n_envs=n_envs, n_steps=n_steps, gamma=0.9)
    ours = NSERReplayBuffer(rows * n_envs, OBS, DISCRETE, seed=0, **kwargs)
    theirs = NStepReplayBuffer(rows * n_envs, OBS, DISCRETE, **kwargs)
    play([ours, theirs], steps, n_envs)
    slots = np.arange(ours.n_transitions)  # every row, the newest too
    batch = ours._gather(slots, None)
    ours.sample(64)
    info = ours.last_sample
    assert_same_batch(ours.last_batch, sb3_batch(theirs, info))
    whole = replace(info, indices=slots)
    assert_same_batch(batch, sb3_batch(theirs, whole))
    assert batch.discounts.shape == (len(slots), 1)


def test_it_is_the_definition():
    buffer = fill(make(20, n_envs=2, n_steps=3, gamma=0.5), 33, episode=7)
    buffer.sample(64)
    for i, slot in enumerate(buffer.last_sample.indices):
        first = int(buffer.observations[slot // 2, slot % 2, 0])
        total, factor, number = 0.0, 1.0, first
        while True:
            total, factor = total + factor * (1000 * number + slot % 2), factor * 0.5
            end = (number + 1) % 7 == 0
            if end or number == 32 or number == first + 2:
                break
            number += 1
        batch = buffer.last_batch
        assert batch.rewards[i] == pytest.approx(total) and batch.discounts[i] == factor and batch.dones[i] == end
        assert batch.next_observations[i, 0] == number + 1


def test_vecnormalize_normalises_each_reward_of_the_sum():
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0))
    kwargs = dict(device="cpu", n_envs=2, n_steps=3)
    ours = NSERReplayBuffer(200, env.observation_space, env.action_space, seed=0, **kwargs)
    theirs = NStepReplayBuffer(200, env.observation_space, env.action_space, **kwargs)
    env.reset()
    raw = env.get_original_obs()
    for _ in range(150):
        action = np.stack([env.action_space.sample() for _ in range(2)])
        _, _, done, infos = env.step(action)
        for buffer in (ours, theirs):
            buffer.add(raw, env.get_original_obs(), action, env.get_original_reward(), done, infos)
        raw = env.get_original_obs()
    batch = ours.sample(64, env=env)
    assert_same_batch(batch, sb3_batch(theirs, ours.last_sample, env))


def test_a_return_does_not_cross_a_reset_between_learn_calls():
    buffer = fill(make(20, n_steps=3, gamma=1.0), 5)
    buffer.set_progress(0.0, restart=True)
    fill(buffer, 5, start=5)
    batch = buffer._gather(np.array([2, 3, 4, 5]), None)
    assert batch.rewards.flatten().tolist() == [9000.0, 7000.0, 4000.0, 18000.0]
    assert batch.next_observations[:, 0].tolist() == [5.0, 5.0, 5.0, 8.0]


def test_n_steps_of_one_is_the_plain_buffer():
    assert fill(make(20, n_steps="1"), 10).sample(4).discounts is None


def test_what_cannot_be():
    with pytest.raises(UnsupportedError, match="n_steps=3 does not work with optimize_memory_usage"):
        make(n_steps=3, optimize_memory_usage=True, handle_timeout_termination=False)
    for name, value in (("n_steps", 0), ("n_steps", 1.5), ("n_steps", "x"), ("gamma", 1.1), ("gamma", -0.1)):
        with pytest.raises(ConfigurationError, match=name):
            make(**{name: value})


def test_sb3s_own_advice_works_and_a_forgotten_gamma_is_named():
    def build(**replay):
        return DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=NSERReplayBuffer, replay_buffer_kwargs=replay, gamma=0.98,
                   buffer_size=100, device="cpu")  # fmt: skip

    LearnerLink(build(n_steps=3, gamma=0.98)).install()
    LearnerLink(build()).install()
    with pytest.warns(NSERWarning, match=r'gamma=0\.99.*0\.98.*"gamma": 0\.98'):
        LearnerLink(build(n_steps=3)).install()


def test_images_and_float64_too():
    for space in (spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Box(-1, 1, (2,), np.float64), spaces.MultiBinary(4)):
        kwargs = dict(device="cpu", n_envs=2, n_steps=3)
        ours = NSERReplayBuffer(40, space, DISCRETE, seed=0, **kwargs)
        theirs = NStepReplayBuffer(40, space, DISCRETE, **kwargs)
        for _ in range(30):
            obs = np.stack([space.sample() for _ in range(2)])
            for buffer in (ours, theirs):
                buffer.add(obs, obs, np.zeros(2), np.ones(2), np.zeros(2), [{}, {}])
        assert_same_batch(ours.sample(16), sb3_batch(theirs, ours.last_sample))
