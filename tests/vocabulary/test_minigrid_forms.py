"""Which forms of the partial view are read, that all say the same, and what is said about any other."""

import copy
import pickle

import gymnasium as gym
import minigrid  # noqa: F401  (registers the environments)
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from minigrid.wrappers import (
    DictObservationSpaceWrapper,
    FullyObsWrapper,
    ImgObsWrapper,
    RGBImgObsWrapper,
    SymbolicObsWrapper,
    ViewSizeWrapper,
)
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

from sb3_nser import vocabulary as voc
from sb3_nser.errors import UnsupportedError

from .views import DISCRETE, FORMS, observe, said, vocabulary_of


@pytest.mark.parametrize(
    "env_id", ["MiniGrid-DoorKey-6x6-v0", "MiniGrid-ObstructedMaze-1Dlhb-v0", "MiniGrid-LavaCrossingS9N2-v0"]
)
def test_every_form_says_the_same(env_id):
    """200 random steps: one truth, eleven forms of it, checked against the environment itself."""
    envs = {name: wrap(gym.make(env_id)) for name, wrap in FORMS.items()}
    everything = {name: voc.minigrid_vocabulary(env.observation_space, DISCRETE) for name, env in envs.items()}
    raw = envs["raw"]
    rows = {name: [] for name in FORMS}
    fronts, carried = [], []
    rng = np.random.default_rng(0)
    raw.reset(seed=1)
    for step in range(200):
        if step % 50 == 0:
            raw.reset(seed=step)
        raw.step(int(rng.choice([0, 1, 2, 2, 3, 4, 5])))
        inside = raw.unwrapped
        base = inside.gen_obs()
        front = inside.grid.get(*inside.front_pos)
        fronts.append("empty" if front is None else front.type)
        carried.append(inside.carrying.type if inside.carrying else "nothing")
        for name, env in envs.items():
            rows[name].append(observe(env, copy.copy(base)))
    truth = everything["raw"].evaluate(np.stack(rows["raw"]))
    for name in FORMS:
        stacked = np.stack(rows[name])
        assert stacked.shape[1:] == envs[name].observation_space.shape
        for feature, values in everything[name].evaluate(stacked).items():
            assert th.equal(values, truth[feature]), (name, feature)
    front_values = everything["raw"]["front_object"].values
    for value, expected in zip(truth["front_object"].long().tolist(), fronts, strict=True):
        assert front_values[value].split("_")[-1] == expected
    carry_values = everything["raw"]["carrying"].values
    assert [carry_values[value] for value in truth["carrying"].long().tolist()] == carried
    assert len(set(fronts)) >= 3, "the walk met something"


@pytest.mark.parametrize(
    "wrap, names",
    [
        (lambda env: ImgObsWrapper(FullyObsWrapper(env)), ["(8, 8, 3)", "whole grid", "(980,)"]),
        (lambda env: ImgObsWrapper(RGBImgObsWrapper(env)), ["(64, 64, 3)", "pixels"]),
        (lambda env: ImgObsWrapper(ViewSizeWrapper(env, 5)), ["(5, 5, 3)", "view size"]),
        (lambda env: ImgObsWrapper(SymbolicObsWrapper(env)), ["(8, 8, 3)"]),
    ],
)
def test_other_forms_are_refused_with_a_way_out(wrap, names):
    env = wrap(gym.make("MiniGrid-DoorKey-8x8-v0"))
    with pytest.raises(UnsupportedError) as caught:
        vocabulary_of(env)
    for name in [*names, "register_vocabulary"]:
        assert name in str(caught.value)
    assert "generic" not in str(caught.value), "the automatic one cannot read it either, so it is no way out"


@pytest.mark.parametrize("wrap", [lambda env: env, DictObservationSpaceWrapper])
def test_the_view_is_found_in_a_dict(wrap):
    env, plain = wrap(gym.make("MiniGrid-DoorKey-5x5-v0")), ImgObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"))
    seen, expected = env.reset(seed=5)[0], plain.reset(seed=5)[0]
    rows = {key: np.asarray(value)[None] for key, value in seen.items() if key != "mission"}
    in_dict = voc.minigrid_vocabulary(env.observation_space, DISCRETE, "MiniGrid-DoorKey-5x5-v0").evaluate(rows)
    alone = voc.minigrid_vocabulary(plain.observation_space, DISCRETE, "MiniGrid-DoorKey-5x5-v0").evaluate(expected[None])
    assert in_dict == alone and alone["key_visible"].shape == (1,)
    with pytest.raises(UnsupportedError, match="ImgObsWrapper"):
        voc.minigrid_vocabulary(spaces.Dict({"view": plain.observation_space}), DISCRETE)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (147,), np.float32),
        spaces.Box(-np.inf, np.inf, (7, 7, 3), np.float32),
        spaces.Box(0.0, np.inf, (7, 7, 3), np.float32),
        spaces.Box(0.0, 1.0, (2835,), np.float32),
        spaces.Box(0, 5, (7, 7, 3), np.uint8),
    ],
)
def test_ambiguous_limits_are_refused(space):
    with pytest.raises(UnsupportedError, match="limits"):
        voc.minigrid_vocabulary(space, DISCRETE)


def test_a_whole_grid_of_seven_cells_is_found_out():
    """Its space is that of a partial view; the wall in the agent's place gives it away."""
    env = ImgObsWrapper(FullyObsWrapper(gym.make("MiniGrid-LavaGapS7-v0")))
    vocabulary = vocabulary_of(env)
    observation, _ = env.reset(seed=0)
    with pytest.raises(UnsupportedError, match="FullyObsWrapper"):
        vocabulary.evaluate(observation[None])


def test_wrong_shapes_and_actions_are_refused():
    vocabulary = voc.minigrid_vocabulary(spaces.Box(0, 255, (147,), np.uint8), DISCRETE)
    with pytest.raises(UnsupportedError, match=r"\(147,\)"):
        vocabulary.evaluate(np.zeros((2, 148), np.uint8))
    with pytest.raises(UnsupportedError, match=r"dataclasses\.replace"):
        voc.minigrid_vocabulary(spaces.Box(0, 255, (147,), np.uint8), spaces.Discrete(5))


def test_vec_transpose_image_and_empty_batches():
    env = VecTransposeImage(DummyVecEnv([lambda: ImgObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"))]))
    vocabulary = vocabulary_of(env)
    assert vocabulary.name == "minigrid" and env.observation_space.shape == (3, 7, 7)
    values = vocabulary.evaluate(env.reset())
    assert all(value.shape == (1,) and value.dtype == th.float32 for value in values.values())
    assert all(value.shape == (0,) for value in vocabulary.evaluate(np.zeros((0, 3, 7, 7), np.uint8)).values())


def test_vocabularies_can_be_pickled_and_copied():
    env = FORMS["one-hot flat"](gym.make("MiniGrid-DoorKey-5x5-v0"))
    vocabulary = vocabulary_of(env)
    observation, _ = env.reset(seed=3)
    for other in (pickle.loads(pickle.dumps(vocabulary)), copy.deepcopy(vocabulary)):
        assert said(other, observation) == said(vocabulary, observation)
