"""Dict observations: users name NSERReplayBuffer, and get a buffer that holds dictionaries."""

import copy
import pickle

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nser import PriorityCallback
from sb3_nser.errors import UnsupportedError
from sb3_nser.replay import NSERDictReplayBuffer, NSERReplayBuffer

from .by_hand import DISCRETE as DISCRETE_ALGORITHMS
from .by_hand import Keyed
from .helpers import DISCRETE, OBS, assert_same_batch, chi_square, count, make, sb3_batch

DICT = spaces.Dict(
    {
        "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        "double": spaces.Box(-1, 1, (2,), np.float64),
        "image": spaces.Box(0, 255, (3, 8, 8), np.uint8),
        "place": spaces.Discrete(7),
        "parts": spaces.MultiDiscrete([3, 4]),
        "flags": spaces.MultiBinary(4),
    }
)


def play(buffers, steps, seed=0):
    rng = np.random.default_rng(seed)
    DICT.seed(seed)
    n_envs = buffers[0].n_envs
    for number in range(steps):
        obs, following = (
            {key: np.stack([one[key] for one in samples]) for key in DICT}
            for samples in ([DICT.sample() for _ in range(n_envs)] for _ in range(2))
        )
        done = rng.random(n_envs) < 0.2
        infos = [{"TimeLimit.truncated": bool(d and rng.random() < 0.5)} for d in done]
        reward, action = rng.normal(size=n_envs), rng.integers(0, 2, n_envs)
        obs["vector"][:, 0], following["vector"][:, 0] = number, number + 1
        for buffer in buffers:
            buffer.add(dict(obs), dict(following), action, reward, done, infos)


def test_one_name_for_every_space():
    made = make(observation_space=DICT)
    assert type(made) is NSERDictReplayBuffer and isinstance(made, NSERReplayBuffer) and isinstance(made, DictReplayBuffer)
    assert type(make()) is NSERReplayBuffer
    named = NSERReplayBuffer(buffer_size=10, observation_space=DICT, action_space=DISCRETE, device="cpu")
    assert type(named) is NSERDictReplayBuffer
    assert type(NSERDictReplayBuffer(10, DICT, DISCRETE, "cpu")) is NSERDictReplayBuffer


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_batch_is_the_one_sb3_would_make(n_envs):
    ours = make(30 * n_envs, n_envs=n_envs, observation_space=DICT)
    theirs = DictReplayBuffer(30 * n_envs, DICT, DISCRETE, "cpu", n_envs=n_envs)
    play([ours, theirs], 47)
    batch = ours.sample(64)
    assert_same_batch(batch, sb3_batch(theirs, ours.last_sample))
    before = ours.observations["vector"].copy()
    batch.observations["vector"].zero_()  # a batch is a copy
    np.testing.assert_array_equal(ours.observations["vector"], before)


def test_c07_vecnormalize_is_applied_as_sb3_does_and_stored_rows_stay_raw():
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=2, seed=0, wrapper_class=Keyed), norm_obs_keys=["first"])
    ours = NSERReplayBuffer(200, env.observation_space, env.action_space, "cpu", n_envs=2, seed=0)
    theirs = DictReplayBuffer(200, env.observation_space, env.action_space, "cpu", n_envs=2)
    env.reset()
    raw = env.get_original_obs()
    for _ in range(60):
        action = np.stack([env.action_space.sample() for _ in range(2)])
        _, _, done, infos = env.step(action)
        following = env.get_original_obs()
        for buffer in (ours, theirs):
            buffer.add(dict(raw), dict(following), action, env.get_original_reward(), done, infos)
        raw = following
    batch = ours.sample(64, env=env)
    assert_same_batch(batch, sb3_batch(theirs, ours.last_sample, env))
    stored = ours.transitions(ours.last_sample.indices)
    assert not np.allclose(stored.observations["first"], batch.observations["first"])
    np.testing.assert_array_equal(stored.observations["signs"], batch.observations["signs"])


def test_n_step_returns_are_those_of_the_flat_buffer():
    ours, flat = (make(80, n_envs=2, n_steps=3, observation_space=space) for space in (DICT, OBS))
    play([ours], 63)
    flat.__dict__.update({key: value for key, value in ours.__dict__.items() if "observation" not in key})
    flat.observations, flat.next_observations = ours.observations["vector"], ours.next_observations["vector"]
    where = np.arange(80)
    got, expected = ours._gather(where, None), flat._gather(where, None)
    for field in ("actions", "rewards", "dones", "discounts"):
        assert th.equal(getattr(got, field), getattr(expected, field))
    assert th.equal(got.next_observations["vector"], expected.next_observations)


@pytest.mark.parametrize("steps", [20, 70])
def test_frequencies_are_the_stated_mixture(steps):
    buffer = make(100, n_envs=2, observation_space=DICT, rule_warmup=0)
    play([buffer], steps)
    n, rng = buffer.n_transitions, np.random.default_rng(5)
    td, scores = rng.exponential(size=n), rng.random(n) * (rng.random(n) < 0.3)
    buffer.update_priorities(np.arange(n), td)
    buffer.set_scores(np.arange(n), scores)
    b = (td + 0.01) ** 0.6
    lam = min(0.25, 4 * (b * scores).sum() / (b.sum() + 4 * (b * scores).sum()))
    q = lam * b * scores / (b * scores).sum() + (1 - lam) * (0.95 * b / b.sum() + 0.05 / n)
    np.testing.assert_allclose(buffer.probabilities(), q)
    assert chi_square(count(buffer, 5000, 1), q) > 0.01


def test_a_scorer_sees_dictionaries():
    buffer = make(100, n_envs=2, observation_space=DICT, trace_decay=0.0)
    play([buffer], 60)
    buffer.set_scorer(lambda rows: (rows.next_observations["vector"][:, 0] > rows.observations["vector"][:, 0] + 0.5) * 0.5)
    buffer.sample(4)
    np.testing.assert_array_equal(buffer.scores, 0.5)
    rows = buffer.transitions([7])
    assert rows.observations.keys() == DICT.keys() and rows.observations["image"].dtype == np.uint8
    assert rows.observations["vector"][0, 0] == 53 and rows.observations["double"].dtype == np.float64


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_c17_a_copy_draws_the_same(copied):
    buffer = make(50, observation_space=DICT)
    play([buffer], 70)
    buffer.update_priorities(np.arange(50), np.random.default_rng(0).exponential(size=50))
    twin = copied(buffer)
    assert type(twin) is NSERDictReplayBuffer
    for _ in range(20):
        assert_same_batch(twin.sample(8), buffer.sample(8))


NESTED = spaces.Dict({"a": OBS, "inner": spaces.Dict({"b": OBS})})


@pytest.mark.parametrize("space", [spaces.Tuple([OBS, OBS]), NESTED, spaces.Dict({"a": spaces.Tuple([OBS, OBS])})])
def test_c34_what_cannot_be_held_is_refused_with_the_way_out(space):
    with pytest.raises(UnsupportedError, match=r"cannot hold (Tuple|nested Dict) .*FlattenObservation"):
        make(observation_space=space)


def test_what_else_is_refused():
    with pytest.raises(UnsupportedError, match="leave optimize_memory_usage out"):
        make(observation_space=DICT, optimize_memory_usage=True, handle_timeout_termination=False)

    class Mine(NSERReplayBuffer):
        pass

    with pytest.raises(UnsupportedError, match="derive it from NSERDictReplayBuffer"):
        Mine(10, DICT, DISCRETE)


@pytest.mark.parametrize("algorithm", [DQN, QRDQN, SAC, TD3, DDPG, TQC])
def test_priorities_alone_in_two_lines(algorithm, tmp_path):
    env = make_vec_env("CartPole-v1" if algorithm in DISCRETE_ALGORITHMS else "Pendulum-v1", wrapper_class=Keyed)
    model = algorithm("MultiInputPolicy", env, replay_buffer_class=NSERReplayBuffer, buffer_size=200, learning_starts=20,
                      train_freq=4, batch_size=16, seed=0, device="cpu", policy_kwargs={"net_arch": [8]})  # fmt: skip
    model.learn(80, callback=PriorityCallback())
    assert len(set(model.replay_buffer.td_errors)) > 10
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = algorithm.load(tmp_path / "model", env=env)
    again.load_replay_buffer(tmp_path / "buffer")
    assert type(again.replay_buffer) is NSERDictReplayBuffer
    np.testing.assert_array_equal(again.replay_buffer.td_errors, model.replay_buffer.td_errors)
    again.learn(20, callback=PriorityCallback(), reset_num_timesteps=False)
