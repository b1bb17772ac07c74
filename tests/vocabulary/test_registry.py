"""Finding the vocabulary of an environment, adding one's own, and showing it as text."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

from sb3_nser import vocabulary as voc
from sb3_nser.errors import ConfigurationError, UnsupportedError

CART = (spaces.Box(-5, 5, (4,)), spaces.Discrete(2))


def lander(observation_space, action_space, env_id):
    height = voc.Feature("height", "number", "height above ground", lambda now, later: now[:, 1], unit="m")
    names = tuple(f"thrust_{i}" for i in range(int(action_space.n)))
    return voc.Vocabulary(f"lander of {env_id}", "Land.", (height,), voc.ActionSet(names))


def test_shipped_ones_are_there():
    assert {"generic", "cartpole", "pendulum", "acrobot", "mountain_car", "minigrid"} <= set(voc.registered())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "CartPole-v0", "my_namespace/CartPole-v1"])
def test_auto_goes_by_the_id(env_id):
    assert voc.vocabulary_for(*CART, env_id).name == "cartpole"


@pytest.mark.parametrize("env_id", [None, "", "CartPoleSwingUp-v0", "Unheard-v3"])
def test_auto_falls_back_to_the_automatic_one(env_id):
    assert voc.vocabulary_for(*CART, env_id).name == "generic"


def test_a_name_goes_before_the_id():
    assert voc.vocabulary_for(*CART, "CartPole-v1", "generic").name == "generic"
    assert voc.vocabulary_for(*CART, None, "cartpole").name == "cartpole"


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ConfigurationError, match=r"'cartpol'.*Did you mean 'cartpole'.*minigrid"):
        voc.vocabulary_for(*CART, None, "cartpol")
    with pytest.raises(ConfigurationError, match="int"):
        voc.vocabulary_for(*CART, None, 3)


def test_users_register_their_own():
    voc.register_vocabulary("lander", lander, ["Lander-*", "CartPole-*"])
    assert "lander" in voc.registered()
    assert voc.vocabulary_for(*CART, "Lander-v2").name == "lander of Lander-v2"
    assert voc.vocabulary_for(*CART, "CartPole-v1").name == "lander of CartPole-v1", "the later registration goes first"
    assert voc.vocabulary_for(*CART, None, "lander").name == "lander of None"


@pytest.mark.parametrize(
    "name, builder, ids", [("auto", lander, []), ("", lander, []), ("x", "lander", []), ("x", lander, "L*")]
)
def test_unusable_registrations(name, builder, ids):
    with pytest.raises(ConfigurationError):
        voc.register_vocabulary(name, builder, ids)


def test_a_vocabulary_is_tried_on_the_space():
    own = lander(*CART, None)
    assert voc.vocabulary_for(*CART, "CartPole-v1", own) is own
    with pytest.raises(UnsupportedError, match=r"cannot read .*vocabulary='generic'"):
        voc.vocabulary_for(spaces.Box(-1, 1, (1,)), spaces.Discrete(2), None, own)  # has no number 1
    with pytest.raises(UnsupportedError, match=r"2 actions.*3 actions"):
        voc.vocabulary_for(CART[0], spaces.Discrete(3), None, own)
    with pytest.raises(UnsupportedError, match="cannot read observations of the space Dict"):
        voc.vocabulary_for(spaces.Dict({"a": CART[0]}), CART[1], None, own)
    with pytest.raises(UnsupportedError, match="FlattenObservation"):
        voc.vocabulary_for(spaces.Tuple([CART[0]]), CART[1], None, own)


def test_trying_leaves_the_random_streams_alone():
    space = spaces.Box(-1, 1, (4,), seed=3)
    expected = spaces.Box(-1, 1, (4,), seed=3).sample()
    voc.vocabulary_for(space, CART[1])
    np.testing.assert_array_equal(space.sample(), expected)


def cartpole():
    return gym.make("CartPole-v1")


def cartpole_with_lambda():
    env = gym.make("CartPole-v1")
    return Monitor(TransformObservation(env, lambda obs: obs, env.observation_space))


class Nameless(gym.Env):
    observation_space, action_space = CART

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}


def test_ids_of_gymnasium_environments():
    assert voc.env_id_of(cartpole()) == "CartPole-v1"
    assert voc.env_id_of(Monitor(cartpole())) == "CartPole-v1"
    assert voc.env_id_of(cartpole_with_lambda()) == "CartPole-v1"
    assert voc.env_id_of(Nameless()) is None
    assert voc.env_id_of(Monitor(Nameless())) is None
    assert voc.env_id_of(None) is None and voc.env_id_of("CartPole-v1") is None


def test_ids_of_vec_envs():
    venv = DummyVecEnv([cartpole, cartpole])
    assert voc.env_id_of(venv) == "CartPole-v1"
    assert voc.env_id_of(VecFrameStack(VecNormalize(venv), 2)) == "CartPole-v1"
    assert voc.env_id_of(DummyVecEnv([Nameless])) is None


def test_ids_across_processes():
    venv = SubprocVecEnv([cartpole_with_lambda, Nameless], start_method="fork")
    try:
        assert voc.env_id_of(VecNormalize(venv)) == "CartPole-v1"
        assert venv.reset().shape == (2, 4), "the workers are alive: a spec that cannot be pickled was not asked for"
    finally:
        venv.close()
    venv = SubprocVecEnv([Nameless], start_method="fork")
    try:
        assert voc.env_id_of(venv) is None
    finally:
        venv.close()


def test_description_lists_what_rules_may_name():
    text = voc.describe(voc.vocabulary_for(*CART, "CartPole-v1"), {"pole_angle": "seen -0.1..0.2"})
    assert "- pole_angle (number -0.2095..0.2095 rad): " in text and text.count("; seen -0.1..0.2") == 1
    assert "- cart_velocity (number m/s): " in text and text.endswith("Actions: push_left, push_right")
    pendulum = gym.make("Pendulum-v1")
    text = voc.describe(voc.vocabulary_for(pendulum.observation_space, pendulum.action_space, "Pendulum-v1"))
    assert text.endswith("- torque (-2..2 N·m)")
    view = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    text = voc.describe(voc.vocabulary_for(view, spaces.Discrete(7), "MiniGrid-DoorKey-5x5-v0"))
    assert "- carrying (nothing | key): " in text and len(text.splitlines()) < 30
    assert "exists object (...)" in text and "- kind (key | door | goal): what it is" in text
