"""Classic control: names, signs and units against the environments' own state."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import SAC

from sb3_nser import vocabulary as voc
from sb3_nser.errors import UnsupportedError


def made(env_id):
    env = gym.make(env_id)
    return env, voc.vocabulary_for(env.observation_space, env.action_space, voc.env_id_of(env))


def value(vocabulary, observation, name):
    return vocabulary.evaluate(np.asarray(observation)[None], names=[name])[name].item()


def test_cartpole_features_are_its_state():
    env, vocabulary = made("CartPole-v1")
    assert vocabulary.actions.names == ("push_left", "push_right") and not vocabulary.actions.continuous
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        observation, *_ = env.step(1)
    x, x_dot, theta, theta_dot = env.unwrapped.state
    for name, expected in {
        "cart_position": x,
        "cart_velocity": x_dot,
        "pole_angle": theta,
        "pole_angular_velocity": theta_dot,
    }.items():
        assert value(vocabulary, observation, name) == pytest.approx(float(expected), abs=1e-6)
    assert value(vocabulary, observation, "cart_velocity") > 0, "push_right moves the cart right"
    assert value(vocabulary, observation, "pole_angular_velocity") < 0, "and leaves the pole behind, turning left"
    assert vocabulary["cart_velocity"].low is None, "infinite limits are no limits"
    assert vocabulary["pole_angle"].unit == "rad" and vocabulary["cart_velocity"].unit == "m/s"


def test_cartpole_ends_where_the_names_say():
    env, vocabulary = made("CartPole-v1")
    assert vocabulary["pole_angle"].high == pytest.approx(env.unwrapped.theta_threshold_radians, abs=1e-4)
    assert vocabulary["cart_position"].high == env.unwrapped.x_threshold


@pytest.mark.parametrize("theta", [0.0, 1.0, -1.0, 3.0, -3.0])
def test_pendulum_angle_is_zero_upright(theta):
    env, vocabulary = made("Pendulum-v1")
    env.reset(seed=0)
    env.unwrapped.state = np.array([theta, 0.5])
    observation = env.unwrapped._get_obs()
    assert value(vocabulary, observation, "angle") == pytest.approx(theta, abs=1e-5)
    assert value(vocabulary, observation, "angular_velocity") == pytest.approx(0.5, abs=1e-6)


def test_pendulum_torque_turns_it_the_positive_way():
    env, vocabulary = made("Pendulum-v1")
    env.reset(seed=0)
    env.unwrapped.state = np.array([0.0, 0.0])
    observation, *_ = env.step(np.array([2.0], np.float32))
    assert value(vocabulary, observation, "angle") > 0
    assert vocabulary.actions.low == (-2.0,) and vocabulary.actions.high == (2.0,) and vocabulary.actions.units == ("N·m",)


def test_stored_actions_become_torques():
    """SAC stores scaled actions; where 1.8 N·m was applied, a rule "torque > 1.5" must see 1.8."""
    env, vocabulary = made("Pendulum-v1")
    model = SAC("MlpPolicy", env, buffer_size=10, device="cpu")
    stored = model.policy.scale_action(np.array([[1.8], [-2.0], [0.0], [2.0]], np.float32))
    assert np.abs(stored).max() <= 1.0
    np.testing.assert_allclose(vocabulary.actions.from_buffer(stored)[:, 0], [1.8, -2.0, 0.0, 2.0], atol=1e-6)


def test_acrobot_tip_height_is_its_goal():
    env, vocabulary = made("Acrobot-v1")
    env.reset(seed=0)
    for theta1, theta2 in [(0.0, 0.0), (0.5, -1.0), (3.0, 0.2), (-2.0, 2.5)]:
        env.unwrapped.state = np.array([theta1, theta2, 1.0, -2.0])
        observation = env.unwrapped._get_ob()
        assert value(vocabulary, observation, "first_angle") == pytest.approx(theta1, abs=1e-5)
        assert value(vocabulary, observation, "second_angle") == pytest.approx(theta2, abs=1e-5)
        assert value(vocabulary, observation, "first_angular_velocity") == 1.0
        assert value(vocabulary, observation, "second_angular_velocity") == -2.0
        height = value(vocabulary, observation, "tip_height")
        assert height == pytest.approx(-math.cos(theta1) - math.cos(theta1 + theta2), abs=1e-5)
        assert (height > 1.0) == env.unwrapped._terminal()
    torques = [-1.0, 0.0, 1.0]
    assert env.unwrapped.AVAIL_TORQUE == torques
    assert vocabulary.actions.names == ("torque_negative", "torque_none", "torque_positive")


@pytest.mark.parametrize("env_id, push", [("MountainCar-v0", 2), ("MountainCarContinuous-v0", np.array([1.0], np.float32))])
def test_mountain_cars(env_id, push):
    env, vocabulary = made(env_id)
    env.reset(seed=0)
    env.unwrapped.state = np.array([-math.pi / 6, 0.0])  # the bottom of the valley: no slope
    observation, *_ = env.step(push)
    assert value(vocabulary, observation, "velocity") > 0, "a push to the right"
    assert value(vocabulary, observation, "position") == pytest.approx(float(observation[0]))
    assert str(env.unwrapped.goal_position) in vocabulary.task


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"])
def test_another_space_is_refused_with_a_way_out(env_id):
    env, _ = made(env_id)
    stacked = spaces.Box(-np.inf, np.inf, (4 * env.observation_space.shape[0],), np.float32)
    with pytest.raises(UnsupportedError, match=r"vocabulary='generic'.*register_vocabulary"):
        voc.vocabulary_for(stacked, env.action_space, env_id)
    with pytest.raises(UnsupportedError, match="action"):
        voc.vocabulary_for(env.observation_space, spaces.Discrete(9), env_id)
