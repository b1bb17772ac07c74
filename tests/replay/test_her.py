"""Hindsight replay: what may be drawn, how often, and that every number of a batch belongs to the same row."""

import copy
import pickle

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her import HerReplayBuffer

from sb3_nser import NSERHerReplayBuffer, NSERReplayBuffer, PriorityCallback
from sb3_nser.errors import ConfigurationError, NSERError, UnsupportedError
from sb3_nser.replay import LearnerLink

from .by_hand import BY_HAND, B, Remembers, parameters, train
from .helpers import DISCRETE, OBS, chi_square, count

GOALS = spaces.Dict(
    {key: spaces.Box(-np.inf, np.inf, (2,), np.float64) for key in ("observation", "achieved_goal", "desired_goal")}
)


class Judge:
    """The only thing the buffer asks of an environment: rewards of virtual transitions, here a number that can be checked."""

    def env_method(self, name, achieved, desired, infos, indices):
        assert name == "compute_reward" and indices == [0] and len(infos) == len(achieved)
        self.infos = infos
        return [achieved[:, 0] - 1000 * desired[:, 0]]


def make_her(rows=40, n_envs=2, **options):
    options = {"seed": 0, "device": "cpu", **options}
    return NSERHerReplayBuffer(rows * n_envs, GOALS, DISCRETE, Judge(), n_envs=n_envs, **options)


def play(buffer, steps, start=0, length=7):
    """Observation (number, env); the goal reached is the number of the step plus one. Environment e ends ``e`` steps later."""
    envs = np.arange(buffer.n_envs)
    for number in range(start, start + steps):
        obs = np.stack([np.full_like(envs, number), envs], axis=1).astype(float)
        now = {"observation": obs, "achieved_goal": obs, "desired_goal": obs * 0 - 1}
        later = {"observation": obs + 1, "achieved_goal": obs + np.array([1, 0]), "desired_goal": obs * 0 - 1}
        done = (number + 1 + envs) % length == 0
        buffer.add(now, later, envs % 2, 1e6 * number + envs, done, [{"number": number}] * buffer.n_envs)
    return buffer


@pytest.mark.parametrize("steps", [6, 20, 40, 41, 66, 200])
@pytest.mark.parametrize("every", [1, 5, 300])
@pytest.mark.parametrize("length", [7, 30])
def test_only_transitions_of_finished_episodes_are_drawn_as_in_sb3(steps, every, length):
    buffer = make_her()
    for start in range(0, steps, every):  # looked at now and then, or once after the ring has been written several times
        play(buffer, min(every, steps - start), start, length)
        expected = (buffer.ep_length > 0).ravel()
        if not expected.any():
            with pytest.raises(NSERError, match=r"no episode is finished yet.*learning_starts"):
                buffer.sample(4)
            continue
        q = buffer.probabilities()
        np.testing.assert_array_equal(q > 0, expected[: len(q)])
        assert q.sum() == pytest.approx(1)
        buffer.sample(64)
        assert expected[buffer.last_sample.indices].all()
        indices = buffer.last_sample.indices
        buffer.update_priorities(indices, np.random.default_rng(start).exponential(size=64), buffer.last_sample.generations)


@pytest.mark.parametrize("steps", [30, 100])
@pytest.mark.parametrize("scored", [False, True])
def test_frequencies_are_the_stated_mixture(steps, scored):
    buffer = play(make_her(rule_warmup=0), steps)
    n, rng = buffer.n_transitions, np.random.default_rng(5)
    possible = (buffer.ep_length > 0).ravel()[:n]
    td, scores = rng.exponential(size=n), rng.random(n) * (rng.random(n) < 0.3) * scored
    buffer.update_priorities(np.arange(n), td)
    buffer.set_scores(np.arange(n), scores)
    b = possible * (td + 0.01) ** 0.6
    rule = (b * scores).sum()
    lam = min(0.25, 4 * rule / (b.sum() + 4 * rule))
    q = (1 - lam) * (0.95 * b / b.sum() + 0.05 * possible / possible.sum()) + (lam * b * scores / rule if scored else 0)
    np.testing.assert_allclose(buffer.probabilities(), q)
    assert chi_square(count(buffer, 5000, 1), q) > 0.01
    assert chi_square(count(buffer, 60, 256), q) > 0.01
    info = buffer.last_sample
    np.testing.assert_allclose(info.probabilities, q[info.indices])
    weights = (possible.sum() * q[info.indices]) ** -0.4
    np.testing.assert_allclose(info.weights, weights / weights.max())


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("n_sampled_goal, n_virtual", [(4, 51), (1, 32), (0, 0)])
@pytest.mark.parametrize("steps", [40, 130])
def test_row_i_of_the_batch_is_slot_i_of_the_last_sample(strategy, n_sampled_goal, n_virtual, steps):
    buffer = play(make_her(n_sampled_goal=n_sampled_goal, goal_selection_strategy=strategy, copy_info_dict=True), steps)
    batch = buffer.sample(64)
    info = buffer.last_sample
    raw = buffer.transitions(info.indices)
    number, env = raw.observations["observation"].T
    end = (number + 1 + env + 6) // 7 * 7 - env  # the goal reached at the end of the episode
    for field, stored in ((batch.observations, raw.observations), (batch.next_observations, raw.next_observations)):
        for key in ("observation", "achieved_goal"):
            np.testing.assert_array_equal(field[key], stored[key])
        assert field[key].dtype == th.float64
    np.testing.assert_array_equal(batch.actions, raw.actions)
    np.testing.assert_array_equal(batch.dones[:, 0], raw.dones)
    assert len(set(info.env_indices)) == 2 and batch.rewards.shape == (64, 1)
    real, virtual = np.split(np.arange(64), [64 - n_virtual])
    np.testing.assert_array_equal(batch.rewards[real, 0], raw.rewards[real])
    assert np.all(batch.observations["desired_goal"].numpy()[real] == -1)
    if n_virtual:
        goal = batch.observations["desired_goal"].numpy()[virtual, 0]
        np.testing.assert_array_equal(goal, batch.next_observations["desired_goal"][virtual, 0])
        lowest = {"future": number + 1, "final": end, "episode": np.maximum(end - 6, 1)}[strategy][virtual]
        assert np.all((goal >= lowest) & (goal <= end[virtual]))
        np.testing.assert_allclose(batch.rewards[virtual, 0], number[virtual] + 1 - 1000 * goal)
        assert [one["number"] for one in buffer.env.infos] == number[virtual].tolist()


def test_rule_draws_are_real_and_virtual_alike():
    buffer = play(make_her(rule_warmup=0, max_boost=1e9, rule_fraction=0.5, n_sampled_goal=1), 40)
    buffer.set_scores([20], [1.0])
    real = [np.mean(buffer.sample(64) and buffer.last_sample.indices[:32] == 20) for _ in range(50)]
    assert 0.4 < np.mean(real) < 0.6


def test_scores_given_while_an_episode_goes_on_are_there_when_it_ends():
    buffer = make_her(n_envs=1, trace_decay=0.0, rule_warmup=0)
    buffer.set_scorer(lambda rows: rows.observations["observation"][:, 0] % 2)
    play(buffer, 10)
    buffer.sample(4)
    assert buffer._store.rule.leaves[7:10].tolist() == [0, 0, 0]
    play(buffer, 4, start=10)
    buffer.sample(4)
    assert buffer.scores.tolist() == [0, 1] * 7 and buffer._store.rule.leaves[9] > 0


@pytest.mark.parametrize("options", [{}, {"epsilon": 0.0}, {"priority": "lap", "uniform_fraction": 0.0}])
def test_an_episode_longer_than_the_ring_leaves_nothing_and_then_it_goes_on(options):
    buffer = play(make_her(n_envs=1, **options), 20)
    buffer.sample(8)
    buffer.update_priorities(np.arange(14), np.full(14, 0.2))
    play(buffer, 100, start=20, length=1000)
    with pytest.raises(NSERError, match="no episode is finished"):
        buffer.sample(8)
    play(buffer, 20, start=120, length=140)
    buffer.mark_break()
    play(buffer, 7)
    buffer.sample(8)
    drawable = buffer.probabilities() > 0
    assert drawable.any() and np.all(buffer.td_errors[drawable] == 1.0)
    buffer.reset()
    play(buffer, 21)
    buffer.sample(8)
    np.testing.assert_array_equal(buffer.td_errors, 1.0)


def test_late_priorities_of_given_up_episodes_have_no_effect():
    buffer = play(make_her(n_envs=1), 42)
    buffer.sample(64)
    info = buffer.last_sample
    play(buffer, 1, start=42)
    buffer.update_priorities(info.indices, np.full(64, 50.0), info.generations)
    q = buffer.probabilities()
    np.testing.assert_array_equal(q > 0, (buffer.ep_length > 0).ravel())
    assert q.sum() == pytest.approx(1)


def build(algorithm, n_envs=1, **options):
    class_ = type("Recording", (Remembers, NSERHerReplayBuffer), {})
    env = make_vec_env(BitFlippingEnv, n_envs, seed=0, env_kwargs={"n_bits": 4, "continuous": algorithm is SAC})
    model = algorithm("MultiInputPolicy", env, batch_size=B, buffer_size=400, learning_starts=200, seed=0, device="cpu",
                      replay_buffer_class=class_, policy_kwargs={"net_arch": [16]},
                      replay_buffer_kwargs={"beta": 0.7, **options})  # fmt: skip
    model.learn(200)
    buffer = model.replay_buffer
    n = buffer.n_transitions
    NSERHerReplayBuffer.update_priorities(buffer, np.arange(n), np.random.default_rng(0).exponential(size=n))
    return model


@pytest.mark.parametrize("algorithm, n_envs", [(DQN, 1), (DQN, 2), (SAC, 2)])
def test_the_link_is_the_weighted_loss(algorithm, n_envs):
    linked, by_hand = (build(algorithm, n_envs) for _ in range(2))
    LearnerLink(linked).install()
    train(linked, 3)
    th.manual_seed(1)
    np.random.seed(1)
    BY_HAND[algorithm](by_hand, 3)
    for (slots, got), (others, expected) in zip(linked.replay_buffer.written, by_hand.replay_buffer.written, strict=True):
        np.testing.assert_array_equal(slots, others)
        np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)
    assert linked.replay_buffer.last_sample.weights.min() < 0.9
    th.testing.assert_close(parameters(linked), parameters(by_hand), atol=1e-6, rtol=0)


@pytest.mark.parametrize("algorithm", [DQN, SAC])
@pytest.mark.parametrize("truncate", [True, False])
def test_training_saving_and_going_on(algorithm, truncate, tmp_path):
    env = make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 4, "continuous": algorithm is SAC})
    model = algorithm("MultiInputPolicy", env, replay_buffer_class=NSERHerReplayBuffer, learning_starts=50, buffer_size=300,
                      batch_size=16, train_freq=4, seed=0, device="cpu", policy_kwargs={"net_arch": [8]},
                      replay_buffer_kwargs={"n_sampled_goal": 2, "goal_selection_strategy": "final"})  # fmt: skip
    model.learn(202, callback=PriorityCallback())
    assert isinstance(model.replay_buffer, HerReplayBuffer) and isinstance(model.replay_buffer, NSERReplayBuffer)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    again = algorithm.load(tmp_path / "model", env=env)
    open_steps = (model.replay_buffer._current_ep_start != model.replay_buffer.pos).any()
    if truncate and open_steps:
        with pytest.warns(UserWarning, match="last trajectory"):
            again.load_replay_buffer(tmp_path / "buffer")
    else:
        again.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=truncate)
    q = again.replay_buffer.probabilities()
    np.testing.assert_array_equal(q > 0, (again.replay_buffer.ep_length > 0).ravel()[: len(q)])
    assert again.replay_buffer.env is again.env
    again.learn(50, callback=PriorityCallback(), reset_num_timesteps=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_c17_a_copy_without_its_environment_draws_the_same_once_it_has_one(copied):
    buffer = play(make_her(), 66)
    buffer.update_priorities(np.arange(80), np.random.default_rng(0).exponential(size=80))
    buffer.sample(8)
    twin = copied(buffer)
    assert twin.env is None
    twin.set_env(Judge())
    rewards = []
    for one in (buffer, twin):
        np.random.seed(0)
        rewards.append(th.cat([one.sample(16).rewards for _ in range(50)]))
    assert th.equal(*rewards)


def test_vecnormalize():
    env = VecNormalize(make_vec_env(BitFlippingEnv, 2, env_kwargs={"n_bits": 4, "continuous": True}), norm_obs=False)
    model = SAC("MultiInputPolicy", env, replay_buffer_class=NSERHerReplayBuffer, learning_starts=50, device="cpu", seed=0)
    model.learn(60, callback=PriorityCallback())
    assert np.isfinite(model.replay_buffer.td_errors).all()


def test_what_is_refused():
    with pytest.raises(ConfigurationError, match=r"'goal_strategy'\. Did you mean 'goal_selection_strategy'"):
        make_her(goal_strategy="final")
    with pytest.raises(ConfigurationError, match="episode, final, future, not 'last'"):
        make_her(goal_selection_strategy="last")
    with pytest.raises(ConfigurationError, match="n_sampled_goal"):
        make_her(n_sampled_goal=-1)
    with pytest.raises(UnsupportedError, match="n-step"):
        make_her(n_steps=3)
    with pytest.raises(UnsupportedError, match="optimize_memory_usage"):
        make_her(optimize_memory_usage=True)
    for space in (OBS, spaces.Dict({"observation": OBS})):
        with pytest.raises(UnsupportedError, match=r"keys observation, achieved_goal, desired_goal.*use NSERReplayBuffer"):
            NSERHerReplayBuffer(10, space, DISCRETE, Judge())
