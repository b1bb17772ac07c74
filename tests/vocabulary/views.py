"""MiniGrid environments put into known states, seen through every wrapper that gives a partial view."""

import gymnasium as gym
import minigrid  # noqa: F401  (registers the environments)
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from minigrid.core.world_object import Door, Goal, Key, Wall
from minigrid.wrappers import (
    FlatObsWrapper,
    ImgObsWrapper,
    OneHotPartialObsWrapper,
)
from stable_baselines3.common.vec_env import VecTransposeImage

from sb3_nser import vocabulary as voc

RIGHT, DOWN, LEFT, UP = range(4)
DISCRETE = spaces.Discrete(7)


class Normalise(gym.ObservationWrapper):
    """Codes divided by 255, as floats in a Box of 0..1."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)

    def observation(self, observation):
        return observation.astype(np.float32) / 255.0


class Transpose(gym.ObservationWrapper):
    """What SB3's VecTransposeImage does, for a single environment."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = VecTransposeImage.transpose_space(env.observation_space)

    def observation(self, observation):
        return np.transpose(observation, (2, 0, 1))


FORMS = {
    "raw": ImgObsWrapper,
    "transposed": lambda env: Transpose(ImgObsWrapper(env)),
    "flat": lambda env: FlattenObservation(ImgObsWrapper(env)),
    "with mission": FlatObsWrapper,
    "one-hot": lambda env: ImgObsWrapper(OneHotPartialObsWrapper(env)),
    "one-hot flat": lambda env: FlattenObservation(ImgObsWrapper(OneHotPartialObsWrapper(env))),
    "one-hot with mission": lambda env: FlatObsWrapper(OneHotPartialObsWrapper(env)),
    "one-hot normalised": lambda env: Normalise(ImgObsWrapper(OneHotPartialObsWrapper(env))),
    "normalised": lambda env: Normalise(ImgObsWrapper(env)),
    "normalised transposed": lambda env: Normalise(Transpose(ImgObsWrapper(env))),
    "normalised flat": lambda env: Normalise(FlattenObservation(ImgObsWrapper(env))),
}


def vocabulary_of(env, **kwargs):
    return voc.vocabulary_for(env.observation_space, env.action_space, voc.env_id_of(env), **kwargs)


def observe(env, observation=None):
    """The wrapped environment's view of the state it was put into, or what its wrappers make of another one's."""
    observation = env.unwrapped.gen_obs() if observation is None else observation
    layers = []
    while isinstance(env, gym.Wrapper):
        layers.append(env)
        env = env.env
    for layer in reversed(layers):
        if isinstance(layer, gym.ObservationWrapper):
            observation = layer.observation(observation)
    return np.asarray(observation)


def said(vocabulary, observation):
    """Feature name -> value in words, for one observation."""
    values = vocabulary.evaluate(observation[None])
    words = {}
    for feature in vocabulary.features:
        value = values[feature.name].item()
        words[feature.name] = value if feature.kind == "number" else feature.values[int(value)]
    return words


def door_key(form="raw"):
    """An 8 x 8 DoorKey of known layout: key at (1, 1), locked door at (4, 3), goal at (6, 6)."""
    env = FORMS[form](gym.make("MiniGrid-DoorKey-8x8-v0"))
    env.reset(seed=0)
    inside = env.unwrapped
    for x in range(1, 7):
        for y in range(1, 7):
            inside.grid.set(x, y, Wall() if x == 4 else None)
    inside.grid.set(1, 1, Key("yellow"))
    inside.grid.set(4, 3, Door("yellow", is_locked=True))
    inside.grid.set(6, 6, Goal())
    return env


def stand(env, x, y, direction):
    env.unwrapped.agent_pos, env.unwrapped.agent_dir = (x, y), direction
    return said(vocabulary_of(env), observe(env))
