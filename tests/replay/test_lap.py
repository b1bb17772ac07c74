"""Loss-adjusted prioritisation: max(|δ|, 1)^α, and no weights."""

import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3

from sb3_nser import PriorityCallback
from sb3_nser.replay import LearnerLink

from .by_hand import BY_HAND, build, parameters, train
from .helpers import chi_square, count, fill, make

ALL = [DQN, QRDQN, SAC, TD3, DDPG, TQC, CrossQ]


@pytest.mark.parametrize("alpha", [0.4, 1.0, 0.0])
def test_frequencies_are_those_of_the_clipped_errors(alpha):
    buffer = fill(make(40, n_envs=2, priority="lap", alpha=alpha, uniform_fraction=0.0, epsilon=0.7, beta=0.9), 60)
    td = np.geomspace(1e-3, 50, 40)
    buffer.update_priorities(np.arange(40), td)
    q = np.maximum(td, 1) ** alpha
    q /= q.sum()
    np.testing.assert_allclose(buffer.probabilities(), q)
    assert chi_square(count(buffer, 5000, 1), q) > 0.01
    for progress in (0.0, 0.5, 1.0):
        buffer.set_progress(progress)
        buffer.sample(32)
        np.testing.assert_array_equal(buffer.last_sample.weights, 1.0)
    np.testing.assert_array_equal(buffer.td_errors, np.maximum(td, 1))


def test_new_rows_enter_at_the_largest_error_and_small_ones_do_not_fade():
    buffer = fill(make(40, priority="lap", uniform_fraction=0.0), 10)
    np.testing.assert_array_equal(buffer.td_errors, 1.0)
    buffer.update_priorities(np.arange(10), np.zeros(10))
    np.testing.assert_allclose(buffer.probabilities(), 0.1)
    buffer.update_priorities([3], [7.0])
    fill(buffer, 1, start=10)
    assert buffer.td_errors[10] == 7.0


@pytest.mark.parametrize("algorithm", ALL)
def test_the_loss_is_left_alone_and_errors_arrive(algorithm):
    linked, by_hand = (build(algorithm, replay={"priority": "lap"}) for _ in range(2))
    LearnerLink(linked).install()
    train(linked, 3)
    th.manual_seed(1)
    np.random.seed(1)
    BY_HAND[algorithm](by_hand, 3)
    assert np.all(linked.replay_buffer.last_sample.weights == 1)
    th.testing.assert_close(parameters(linked), parameters(by_hand), atol=1e-6, rtol=0)
    for (slots, got), (others, expected) in zip(linked.replay_buffer.written, by_hand.replay_buffer.written, strict=True):
        np.testing.assert_array_equal(slots, others)
        np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)


def test_in_two_lines():
    model = build(DQN, replay={"priority": "lap", "alpha": 0.4})
    model.learn(100, callback=PriorityCallback(), reset_num_timesteps=False)
    assert model.replay_buffer.td_errors.min() >= 1 and model.replay_buffer.beta_now == 0.0
