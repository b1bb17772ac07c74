"""Wrappers are seen through, or a sentence says why not: no rule speaks of radians that are none."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces, wrappers
from sb3_contrib.common.wrappers import TimeFeatureWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from sb3_nser import vocabulary as voc
from sb3_nser.errors import ConfigurationError, NSERWarning, UnsupportedError
from sb3_nser.vocabulary import registry


def values(vocabulary, *observations):
    rows = np.stack([np.asarray(observation) for observation in observations])
    return {name: column.tolist() for name, column in vocabulary.evaluate(rows).items()}


def pendulum():
    return gym.make("Pendulum-v1")


def cartpole():
    return gym.make("CartPole-v1")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: env,
        lambda env: Monitor(env),
        lambda env: wrappers.RecordEpisodeStatistics(env),
        lambda env: wrappers.FlattenObservation(env),
        lambda env: wrappers.FrameStackObservation(env, 4),
        lambda env: wrappers.FlattenObservation(wrappers.FrameStackObservation(env, 3)),
        lambda env: wrappers.ReshapeObservation(env, (3, 1)),
        lambda env: wrappers.RescaleObservation(env, np.array([0, -2, -1], np.float32), np.array([1, 0, 1], np.float32)),
        lambda env: wrappers.TimeAwareObservation(env),
        lambda env: wrappers.TimeAwareObservation(env, normalize_time=True),
        lambda env: wrappers.TimeAwareObservation(wrappers.RescaleObservation(env, np.float32(-3), np.float32(3))),
        lambda env: TimeFeatureWrapper(env),
        lambda env: wrappers.FrameStackObservation(TimeFeatureWrapper(env), 2),
        lambda env: wrappers.ClipReward(wrappers.TransformReward(env, lambda reward: 2 * reward), -1, 1),
        lambda env: wrappers.RescaleAction(env, np.float32(-1), np.float32(1)),
        lambda env: wrappers.DtypeObservation(env, np.float64),
    ],
)
def test_pendulum_is_read_through(wrap):
    env = wrap(pendulum())
    vocabulary = voc.vocabulary_of(env)
    env.reset(seed=0)
    base = env.unwrapped
    for torque in (0.3, -0.7, 1.0):
        observation, *_ = env.step(np.array([torque], np.float32))
    theta, velocity = base.state
    seen = values(vocabulary, observation)
    assert vocabulary.name == "pendulum"
    assert seen["angle"] == pytest.approx([np.arctan2(np.sin(theta), np.cos(theta))], abs=1e-5)
    assert seen["angular_velocity"] == pytest.approx([velocity], abs=1e-5)
    assert (vocabulary.actions.low, vocabulary.actions.high) == ((-2.0,), (2.0,)), (
        "N·m, however the agent's actions are scaled"
    )


def test_the_zoos_history_holds_the_newest_observation():
    zoo = pytest.importorskip("rl_zoo3.wrappers")
    env = zoo.HistoryWrapper(pendulum(), 3)
    vocabulary = voc.vocabulary_of(env)
    env.reset(seed=0)
    for _ in range(2):
        observation, *_ = env.step(np.array([1.0], np.float32))
    assert values(vocabulary, observation)["angular_velocity"] == pytest.approx([env.unwrapped.state[1]], abs=1e-5)
    assert len(voc.vocabulary_of(env, "generic").features) == 12, "automatic names lose nothing"


def test_rescaled_actions_are_the_torques_that_were_applied():
    env = wrappers.RescaleAction(pendulum(), np.float32(-5), np.float32(5))
    vocabulary = voc.vocabulary_of(env)
    env.reset(seed=0)
    env.step(np.array([2.5], np.float32))  # stored as 0.5 of the agent's -5..5
    assert vocabulary.actions.from_buffer(np.array([[0.5]])).item() == pytest.approx(float(env.unwrapped.last_u))


def test_a_time_dict_is_read_too():
    env = wrappers.TimeAwareObservation(pendulum(), flatten=False)
    vocabulary = voc.vocabulary_of(env)
    observation, _ = env.reset(seed=0)
    seen = vocabulary.evaluate({key: value[None] for key, value in observation.items()})
    assert seen["angular_velocity"].item() == pytest.approx(env.unwrapped.state[1], abs=1e-5)
    automatic = voc.vocabulary_of(env, "generic")
    assert [feature.name for feature in automatic.features] == ["obs.0", "obs.1", "obs.2", "time"], "it loses nothing"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda venv: VecNormalize(venv),
        lambda venv: VecMonitor(VecCheckNan(venv)),
        lambda venv: VecFrameStack(venv, 3),
        lambda venv: VecNormalize(VecFrameStack(venv, 2)),
    ],
)
def test_vec_wrappers(wrap):
    venv = wrap(DummyVecEnv([pendulum, pendulum]))
    vocabulary = voc.vocabulary_of(venv)
    venv.seed(0)
    stored = venv.reset()
    for _ in range(3):
        stored = venv.step(np.array([[0.5], [-0.5]], np.float32))[0]
    if isinstance(venv, VecNormalize):
        stored = venv.get_original_obs()  # what SB3 puts into the buffer
    states = np.array(venv.get_attr("state"))
    assert vocabulary.evaluate(stored)["angular_velocity"].tolist() == pytest.approx(states[:, 1], abs=1e-5)


def test_frozen_lake_one_hot_and_its_own_map():
    desc = ["SFF", "FHF", "FFG"]
    env = wrappers.FlattenObservation(gym.make("FrozenLake-v1", desc=desc))
    assert env.observation_space.shape == (9,)
    vocabulary = voc.vocabulary_of(env)
    row = np.zeros(9, np.int64)
    row[3] = 1  # row 1, column 0: the hole is on the right
    seen = values(vocabulary, row)
    assert seen["row"] == [1] and seen["column"] == [0]
    assert vocabulary["right_cell"].values[int(seen["right_cell"][0])] == "hole"
    plain = voc.vocabulary_of(gym.make("FrozenLake-v1", desc=desc))
    assert plain["goal_down"].high == 2


def test_environments_with_different_maps_have_no_map():
    venv = DummyVecEnv([lambda d=d: gym.make("FrozenLake-v1", desc=d) for d in (["SFF", "FHF", "FFG"], ["SFF", "FFF", "FHG"])])
    with pytest.warns(NSERWarning, match="differ in 'desc'"):
        vocabulary = voc.vocabulary_of(venv)
    assert [feature.name for feature in vocabulary.features] == ["row", "column"]


@pytest.mark.parametrize("make", [cartpole, pendulum])
def test_normalised_observations_lose_their_units(make):
    env = wrappers.NormalizeObservation(make())
    with pytest.warns(NSERWarning, match=r"NormalizeObservation changes every number by statistics.*VecNormalize") as caught:
        vocabulary = voc.vocabulary_of(env)
    assert len(caught) == 1 and vocabulary.name == "generic" and vocabulary.features[0].unit == ""
    with pytest.raises(UnsupportedError, match="VecNormalize"):
        voc.vocabulary_of(env, registry.name_of("auto", env.spec.id))


def test_normalised_images_have_neither_names_nor_positions():
    class Picture(gym.Env):
        spec = gym.spec("CartPole-v1")
        observation_space, action_space = spaces.Box(-1, 1, (9, 9), np.float32), spaces.Discrete(2)

    with pytest.raises(UnsupportedError, match=r"NormalizeObservation.*VecNormalize"):
        voc.vocabulary_of(wrappers.NormalizeObservation(Picture()))


class Halved(gym.ObservationWrapper):
    def observation(self, observation):
        return observation / 2


class Backwards(gym.ActionWrapper):
    def action(self, action):
        return 1 - action


class PushOrNot(gym.ActionWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.action_space = spaces.Discrete(2)

    def action(self, action):
        return np.array([2.0 * action], np.float32)


class Bonus(gym.Wrapper):
    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, reward + 1, *rest


class TwoColumns(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation):
        return observation[:2]


def test_an_unknown_observation_wrapper_takes_the_names_unless_told_otherwise():
    with pytest.warns(NSERWarning, match=r"wrapper Halved .*say so with vocabulary='cartpole'"):
        assert voc.vocabulary_of(Halved(cartpole())).name == "generic"
    assert voc.vocabulary_of(Halved(cartpole()), "cartpole").name == "cartpole"
    with pytest.warns(NSERWarning, match="TransformObservation"):
        voc.vocabulary_of(wrappers.TransformObservation(cartpole(), lambda obs: obs, None))


class Rescaled(gym.Wrapper):
    """A plain wrapper that does what it likes, and says so in its space."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(-1, 1, env.observation_space.shape, np.float32)


class Percent(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.action_space = spaces.Box(-100, 100, (1,), np.float32)

    def step(self, action):
        return self.env.step(action / 50)


def test_plain_wrappers_that_change_limits_are_not_trusted():
    with pytest.warns(NSERWarning, match="Rescaled"):
        assert voc.vocabulary_of(Rescaled(cartpole())).name == "generic"
    with pytest.warns(NSERWarning, match="Percent"):
        actions = voc.vocabulary_of(Percent(pendulum())).actions
    assert actions.names == ("action_0",) and actions.high == (100.0,) and actions.units == ()


def test_a_filter_is_seen_through_where_nothing_needed_is_missing():
    timed = wrappers.TimeAwareObservation(pendulum(), flatten=False)
    for keys, name in ((["obs"], "pendulum"), (["obs", "time"], "pendulum")):
        env = wrappers.FilterObservation(timed, keys)
        vocabulary = voc.vocabulary_of(env)
        assert vocabulary.name == name
        observation, _ = env.reset(seed=0)
        seen = vocabulary.evaluate({key: value[None] for key, value in observation.items()})
        assert seen["angular_velocity"].item() == pytest.approx(env.unwrapped.state[1], abs=1e-5)
    with pytest.raises(UnsupportedError, match="Pendulum vocabulary reads"):
        voc.vocabulary_of(wrappers.FilterObservation(timed, ["time"]))


@pytest.mark.parametrize("env", [None, "CartPole-v1", 3, gym.spaces.Discrete(3)])
def test_what_is_no_environment_is_said(env):
    with pytest.raises(ConfigurationError, match="must be an environment"):
        voc.vocabulary_of(env)


def test_an_unknown_wrapper_of_another_form():
    with pytest.warns(NSERWarning, match=r"TwoColumns.*cannot read"):
        assert len(voc.vocabulary_of(TwoColumns(cartpole())).features) == 2
    with pytest.raises(UnsupportedError, match="shape"):
        voc.vocabulary_of(TwoColumns(cartpole()), "cartpole")


def test_unknown_wrappers_that_only_shape_rewards_are_harmless():
    assert voc.vocabulary_of(Bonus(cartpole())).name == "cartpole"


def test_unknown_action_wrappers_take_the_actions_names():
    with pytest.warns(NSERWarning, match="Backwards .*action_0, action_1"):
        vocabulary = voc.vocabulary_of(Backwards(cartpole()))
    assert vocabulary.name == "cartpole" and vocabulary.actions.names == ("action_0", "action_1")
    assert voc.vocabulary_of(Backwards(cartpole()), "cartpole").actions.names == ("push_left", "push_right")
    with pytest.warns(NSERWarning, match="PushOrNot"):
        vocabulary = voc.vocabulary_of(PushOrNot(pendulum()))
    assert "angle" in vocabulary and vocabulary.actions == voc.ActionSet(("action_0", "action_1"))


def goal_env():
    class Reach(gym.Env):
        observation_space = spaces.Dict(
            {"achieved_goal": spaces.Box(-1, 1, (2,)), "observation": spaces.Box(-2, 2, (3,)), "gear": spaces.Discrete(3)}
        )
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

    return Reach()


def test_automatic_names_come_from_beneath_flattening_and_filters():
    flat = wrappers.FlattenObservation(wrappers.FilterObservation(goal_env(), ["gear", "observation"]))
    vocabulary = voc.vocabulary_of(flat)
    assert [feature.name for feature in vocabulary.features] == ["gear", "observation.0", "observation.1", "observation.2"]
    seen = values(vocabulary, [0, 0, 1, 0.5, -0.5, 1.5])
    assert seen["gear"] == [2.0] and seen["observation.2"] == [1.5]


def test_dicts_stacked_and_extracted():
    venv = VecFrameStack(DummyVecEnv([lambda: wrappers.FilterObservation(goal_env(), ["achieved_goal", "observation"])]), 2)
    vocabulary = voc.vocabulary_of(venv)
    assert [feature.name for feature in vocabulary.features][:2] == ["achieved_goal.0", "achieved_goal.1"]
    stored = {"achieved_goal": np.array([[1, 2, 3, 4]]), "observation": np.array([[1, 2, 3, 4, 5, 6]])}
    assert vocabulary.evaluate(stored)["observation.0"].item() == 4.0, "the newer of two frames"
    assert len(voc.vocabulary_of(VecExtractDictObs(DummyVecEnv([goal_env]), "observation")).features) == 3


def test_images_ask_for_features_of_ones_own_and_the_line_shown_works():
    space = spaces.Box(0, 255, (24, 24, 3), np.uint8)
    with pytest.raises(UnsupportedError, match="rules cannot name pixels") as caught:
        voc.vocabulary_for(space, spaces.Discrete(2))
    code = str(caught.value).split("RuleInductionCallback(vocabulary=")[1].rsplit("); the", 1)[0]
    own = eval(code, {"Vocabulary": voc.Vocabulary, "Feature": voc.Feature, "ActionSet": voc.ActionSet})
    voc.vocabulary_for(space, spaces.Discrete(2), None, own)
    assert own.evaluate(np.full((2, 24, 24, 3), 9, np.uint8))["brightness"].tolist() == [9.0, 9.0]


def test_vocabularies_of_wrapped_environments_can_be_saved():
    vocabulary = voc.vocabulary_of(wrappers.FrameStackObservation(pendulum(), 2))
    rows = th.rand(3, 2, 3)
    again = pickle.loads(pickle.dumps(vocabulary))
    assert again.evaluate(rows)["angle"].tolist() == vocabulary.evaluate(rows)["angle"].tolist()
