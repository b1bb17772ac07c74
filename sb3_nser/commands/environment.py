"""Environments by id, for commands that need names or a few episodes."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_nser.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from sb3_nser.induction.episodes import Experience
    from sb3_nser.vocabulary import Vocabulary

_MODULES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"} | dict.fromkeys(
    ("highway-", "merge-", "exit-v", "roundabout-", "intersection-", "parking-"), "highway_env"
)
"""Prefix of an id -> module whose import registers it."""
MAX_STEPS = 20_000
"""Most steps of random play."""


def import_for(env_id: str) -> None:
    """
    Import what registers an id: its own module, as in Gymnasium's ``module:Id-v0``, or that of a family we know.

    :param env_id: a Gymnasium id
    :raises ConfigurationError: if the module cannot be imported
    """
    module = env_id.partition(":")[0] if ":" in env_id else ""
    known = next((name for prefix, name in _MODULES.items() if env_id.startswith(prefix)), "")
    if not module and not known:
        return
    try:
        importlib.import_module(module or known)
    except (ImportError, TypeError, ValueError) as error:  # the last two for what is no name of a module
        cure = (
            f"give module:{env_id} with a module that can be imported" if module else f"pip install {known.replace('_', '-')}"
        )
        raise ConfigurationError(f"--env {env_id}: the module {module or known!r} is missing ({error}); {cure}.") from None


def make_env(env_id: str) -> gym.Env[Any, Any]:
    """
    :param env_id: a Gymnasium id; ``module:Id-v0`` imports the module first
    :return: the environment; MiniGrid's with its image alone, whose names are those of every other form
    :raises ConfigurationError: if it cannot be made
    """
    import_for(env_id)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions out of date; the user has chosen
            env = gym.make(env_id)
    except Exception as error:
        raise ConfigurationError(f"--env {env_id} cannot be made: {printable(error, 300)}") from None
    if isinstance(env.observation_space, spaces.Dict) and "mission" in env.observation_space.spaces:
        from minigrid.wrappers import ImgObsWrapper

        return ImgObsWrapper(env)  # type: ignore[no-untyped-call]
    return env


def vocabulary_of(env: gym.Env[Any, Any], vocabulary: str = "auto") -> Vocabulary:
    """
    :param env: the environment
    :param vocabulary: ``auto`` or the name of a registered vocabulary
    :return: the names rules about it speak in
    """
    from sb3_nser.vocabulary import vocabulary_of as seen_through_wrappers

    return seen_through_wrappers(env, vocabulary)  # reads FrozenLake's map and highway-env's scales from the environment too


def random_experience(env: gym.Env[Any, Any], vocabulary: Vocabulary, episodes: int, seed: int = 0) -> Experience:
    """
    Play at random.

    :param env: the environment
    :param vocabulary: its names
    :param episodes: whole episodes, at least 1; fewer if ``MAX_STEPS`` are reached
    :param seed: of the environment and of the actions
    :return: columns of the whole episodes
    """
    from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

    from sb3_nser.induction.data import collect
    from sb3_nser.induction.saved import SavedEpisodes

    kind: Any = DictReplayBuffer if isinstance(env.observation_space, spaces.Dict) else ReplayBuffer
    buffer: Any = kind(MAX_STEPS, env.observation_space, env.action_space, device="cpu")
    env.action_space.seed(seed)
    done = 0
    observation, _ = env.reset(seed=seed)
    for _ in range(MAX_STEPS):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        info = {"TimeLimit.truncated": truncated and not terminated}
        end = np.array([terminated or truncated])
        stored = _scaled(env.action_space, np.asarray(action))
        buffer.add(_stored(observation), _stored(following), stored, np.array([reward]), end, [info])
        observation = following
        if end[0]:
            done += 1
            if done >= episodes:
                break
            observation, _ = env.reset()
    objects = [f"{group.name}:{name}" for group in vocabulary.objects for name in ("", *(f.name for f in group.features))]
    return collect(SavedEpisodes(buffer), vocabulary, 0.99, MAX_STEPS, objects)


def _stored(observation: Any) -> Any:
    return observation if isinstance(observation, dict) else np.asarray(observation)


def _scaled(space: spaces.Space[Any], action: np.ndarray) -> np.ndarray:
    """:return: an action as SB3's off-policy algorithms store it"""
    if not isinstance(space, spaces.Box):
        return action
    scaled: np.ndarray = 2.0 * (action - space.low) / (space.high - space.low) - 1.0
    return scaled
