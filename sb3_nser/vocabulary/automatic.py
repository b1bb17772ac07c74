"""The automatic vocabulary: names made from the spaces alone, for environments nobody has described."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from sb3_nser.errors import ConfigurationError, UnsupportedError
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

MAX_NUMBERS = 64
"""More numbers than this are not named one by one: no prompt has room for them and no rule would find the right one."""

MAX_STATES = 64
"""A Discrete observation with more states than this is a number, not a category."""

_HUGE = 1e30  # limits beyond this mean "no limit" (3.4e38 is the largest float32)


def automatic_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    Name every number of an observation by its position: ``obs_0``, ``state``, ``part_0``, ``bit_0``.

    :param observation_space: Box (up to ``MAX_NUMBERS`` numbers, no image), Discrete, MultiDiscrete or MultiBinary
    :param action_space: Discrete or bounded Box
    :param env_id: named in the task sentence if known
    :return: a vocabulary that reads the raw observations of this space
    :raises UnsupportedError: if the space is an image, a Dict or Tuple, or too large
    :raises ConfigurationError: if a Box action has no finite limits
    """
    features = _features(observation_space)
    where = f" in the environment {env_id}" if env_id else ""
    return Vocabulary(
        name="generic",
        task=f"Collect as much reward as possible{where}. What the numbers mean is not known.",
        features=features,
        actions=automatic_actions(action_space),
        decode=_rows,
    )


def automatic_actions(action_space: spaces.Space[Any]) -> ActionSet:
    """
    Name actions by their position.

    :param action_space: Discrete or bounded Box
    :return: ``action_0``, ``action_1``, ... with the limits of a Box in environment units
    :raises UnsupportedError: if the space is of another kind, or a Discrete one does not start at 0
    :raises ConfigurationError: if a limit is infinite
    """
    if isinstance(action_space, spaces.Discrete):
        if int(action_space.start) != 0:
            raise UnsupportedError(
                f"a Discrete action space that starts at {action_space.start} is not supported: start at 0."
            )
        return ActionSet(tuple(f"action_{i}" for i in range(int(action_space.n))))
    if isinstance(action_space, spaces.Box):
        low = action_space.low.astype(np.float64).ravel()
        high = action_space.high.astype(np.float64).ravel()
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ConfigurationError(
                f"action space {action_space} has infinite limits, so stored actions cannot be turned back into environment "
                "units: give the Box finite limits, for example with gymnasium.wrappers.RescaleAction."
            )
        return ActionSet(tuple(f"action_{i}" for i in range(low.size)), tuple(low.tolist()), tuple(high.tolist()))
    raise UnsupportedError(
        f"action space {type(action_space).__name__} is not supported: rules speak of Discrete or Box actions. "
        "A MultiDiscrete or MultiBinary space can be flattened to Discrete with an action wrapper."
    )


def _features(space: spaces.Space[Any]) -> tuple[Feature, ...]:
    if isinstance(space, spaces.Box):
        return _box_features(space)
    if isinstance(space, spaces.Discrete):
        return (_discrete_feature("state", 0, int(space.n), int(space.start), "the state the agent is in"),)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec).ravel()
        starts = np.asarray(getattr(space, "start", np.zeros_like(space.nvec))).ravel()
        _check_size(sizes.size, space)
        return tuple(
            _discrete_feature(f"part_{i}", i, int(n), int(start), f"part {i} of the observation")
            for i, (n, start) in enumerate(zip(sizes, starts, strict=True))
        )
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        _check_size(size, space)
        return tuple(Feature(f"bit_{i}", "boolean", f"bit {i} of the observation", partial(_column, i)) for i in range(size))
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        raise UnsupportedError(
            f"{type(space).__name__} observations are not supported: wrap the environment in "
            "gymnasium.wrappers.FlattenObservation, or in a wrapper that picks the part rules should speak of."
        )
    raise UnsupportedError(
        f"observation space {space} is not supported: the automatic vocabulary reads Box, Discrete, MultiDiscrete and "
        "MultiBinary; wrap the environment so that it gives one of these."
    )


def _box_features(space: spaces.Box) -> tuple[Feature, ...]:
    if is_image_space(space) or (len(space.shape) == 3 and space.dtype == np.uint8):
        raise UnsupportedError(
            f"observations are images of shape {space.shape}, and rules cannot name pixels: give a vocabulary with features "
            "of your own, Vocabulary(name=..., task=..., features=(Feature(...),), actions=ActionSet(...)), whose functions "
            "compute something nameable from the image; the agent's network still sees the image."
        )
    size = int(np.prod(space.shape))
    _check_size(size, space)
    names = [f"obs_{i}" for i in range(size)]
    if len(space.shape) > 1:
        places = [f"entry {list(map(int, index))} of the observation" for index in np.ndindex(*space.shape)]
    else:
        places = [f"number {i} of the observation" for i in range(size)]
    limits = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
    return tuple(
        Feature(name, "number", place, partial(_column, i), low=_limit(low), high=_limit(high))
        for i, (name, place, (low, high)) in enumerate(zip(names, places, limits, strict=True))
    )


def _discrete_feature(name: str, index: int, n: int, start: int, meaning: str) -> Feature:
    if 2 <= n <= MAX_STATES:
        values = tuple(f"s{start + i}" for i in range(n))
        return Feature(name, "category", meaning, partial(_column, index, start=start), values=values)
    low, high = float(start), float(start + n - 1)
    return Feature(name, "number", f"{meaning}, as its number", partial(_column, index), low=low, high=high)


def _check_size(size: int, space: spaces.Space[Any]) -> None:
    if not 1 <= size <= MAX_NUMBERS:
        raise UnsupportedError(
            f"an observation of {size} numbers ({space}) cannot be named automatically (1 to {MAX_NUMBERS} are): give a "
            "vocabulary whose features name the few quantities that matter."
        )


def _limit(value: float) -> float | None:
    value = float(value)
    return value if math.isfinite(value) and abs(value) < _HUGE else None


def _rows(observations: th.Tensor) -> th.Tensor:
    # SB3 stores Discrete observations as (N,) or (N, 1)
    return observations.flatten(1) if observations.dim() > 1 else observations.unsqueeze(1)


def _column(index: int, now: th.Tensor, _later: th.Tensor | None, start: int = 0) -> th.Tensor:
    column = now[:, index]
    return column - start if start else column
