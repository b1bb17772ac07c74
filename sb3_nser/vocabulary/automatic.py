"""The automatic vocabulary: names made from the spaces alone, for environments nobody has described."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from sb3_nser.errors import ConfigurationError, UnsupportedError
from sb3_nser.vocabulary.batches import Batch
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

Path = tuple[str | int, ...]
"""Keys and indices that lead to a part of a Dict or Tuple observation; empty for the observation itself."""

MAX_NUMBERS = 64
"""More numbers than this are not named one by one: no prompt has room for them and no rule would find the right one."""

MAX_STATES = 64
"""A Discrete observation with more states than this is a number, not a category."""

_OWN_FEATURES = (
    "give features of your own that compute something nameable from it, "
    'RuleInductionCallback(vocabulary=Vocabulary("mine", "Follow the line.", (Feature("brightness", "number", "mean level", '
    'lambda now, later: now.float().mean((1, 2, 3))),), ActionSet(("left", "right")))); the network still sees the image.'
)

_HUGE = 1e30  # limits beyond this mean "no limit" (3.4e38 is the largest float32)


def automatic_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    Name every number of an observation by its position: ``obs_0``, ``state``, ``part_0``, ``bit_0``; in a Dict by its key too:
    ``achieved_goal.0``, ``robot.joints.2``.

    :param observation_space: Box (up to ``MAX_NUMBERS`` numbers, no image), Discrete, MultiDiscrete, MultiBinary, or a Dict or
        Tuple of these, nested or not. Of a Dict, images and other parts that cannot be named are left out, and the task
        sentence says which.
    :param action_space: Discrete or bounded Box
    :param env_id: named in the task sentence if known
    :return: a vocabulary that reads the raw observations of this space
    :raises UnsupportedError: if the space is an image or too large, or a Dict holds nothing else
    :raises ConfigurationError: if a Box action has no finite limits
    """
    features, left_out = _features(observation_space)
    where = f" in the environment {env_id}" if env_id else ""
    rest = f" Without names: {'; '.join(left_out)}." if left_out else ""
    return Vocabulary(
        name="generic",
        task=f"Collect as much reward as possible{where}. What the numbers mean is not known.{rest}",
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


def _features(space: spaces.Space[Any]) -> tuple[tuple[Feature, ...], list[str]]:
    """:return: the features, and what was left out and why"""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return _leaf(space, (), ""), []
    features: list[Feature] = []
    left_out: list[str] = []
    used: set[str] = set()
    for path, leaf in _leaves(space, ()):
        name = _unused(".".join(_word(part) for part in path), used)
        try:
            features.extend(_leaf(leaf, path, name))
        except UnsupportedError:
            what = "an image" if _is_image(leaf) else f"{leaf}"[:60]
            left_out.append(f"{'.'.join(map(str, path))} ({what})")
    if not features:
        raise UnsupportedError(
            f"nothing in this {type(space).__name__} observation can be named: {'; '.join(left_out)}. {_OWN_FEATURES}"
        )
    _check_size(len(features), space)
    return tuple(features), left_out


def _leaves(space: spaces.Space[Any], path: Path) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, index))
    else:
        yield path, space


def _leaf(space: spaces.Space[Any], path: Path, prefix: str) -> tuple[Feature, ...]:
    """:return: the features of a space that is neither Dict nor Tuple; ``prefix`` is the name of its place, if it has one"""
    whole = f"{prefix!r}" if prefix else "the observation"

    def name(word: str, index: int, size: int) -> str:
        return f"{word}_{index}" if not prefix else prefix if size == 1 else f"{prefix}.{index}"

    if isinstance(space, spaces.Discrete):
        meaning = f"the value of {whole}" if prefix else "the state the agent is in"
        return (_discrete_feature(prefix or "state", path, 0, int(space.n), int(space.start), meaning),)
    if isinstance(space, spaces.Box):
        return _box_features(space, path, name, whole)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec).ravel()
        starts = np.asarray(getattr(space, "start", np.zeros_like(space.nvec))).ravel()
        _check_size(sizes.size, space)
        return tuple(
            _discrete_feature(name("part", i, sizes.size), path, i, int(n), int(start), f"part {i} of {whole}")
            for i, (n, start) in enumerate(zip(sizes, starts, strict=True))
        )
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        _check_size(size, space)
        return tuple(
            Feature(name("bit", i, size), "boolean", f"bit {i} of {whole}", partial(_column, path, i)) for i in range(size)
        )
    raise UnsupportedError(
        f"observation space {space} is not supported: the automatic vocabulary reads Box, Discrete, MultiDiscrete, "
        "MultiBinary, and Dicts of these; wrap the environment so that it gives one of these."
    )


def _box_features(space: spaces.Box, path: Path, name: Callable[[str, int, int], str], whole: str) -> tuple[Feature, ...]:
    if _is_image(space):
        raise UnsupportedError(
            f"observations are images of shape {space.shape}, and rules cannot name pixels: {_OWN_FEATURES}"
        )
    size = int(np.prod(space.shape))
    _check_size(size, space)
    if len(space.shape) > 1:
        places = [f"entry {list(map(int, index))} of {whole}" for index in np.ndindex(*space.shape)]
    else:
        places = [f"number {i} of {whole}" for i in range(size)]
    limits = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
    return tuple(
        Feature(name("obs", i, size), "number", place, partial(_column, path, i), low=_limit(low), high=_limit(high))
        for i, (place, (low, high)) in enumerate(zip(places, limits, strict=True))
    )


def _is_image(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and (is_image_space(space) or (len(space.shape) == 3 and space.dtype == np.uint8))


def _discrete_feature(name: str, path: Path, index: int, n: int, start: int, meaning: str) -> Feature:
    if 2 <= n <= MAX_STATES:
        values = tuple(f"s{start + i}" for i in range(n))
        return Feature(name, "category", meaning, partial(_column, path, index, start=start), values=values)
    low, high = float(start), float(start + n - 1)
    return Feature(name, "number", f"{meaning}, as its number", partial(_column, path, index), low=low, high=high)


def _check_size(size: int, space: spaces.Space[Any]) -> None:
    if not 1 <= size <= MAX_NUMBERS:
        raise UnsupportedError(
            f"an observation of {size} numbers ({space}) cannot be named automatically (1 to {MAX_NUMBERS} are): give a "
            "vocabulary whose features name the few quantities that matter."
        )


def _limit(value: float) -> float | None:
    value = float(value)
    return value if math.isfinite(value) and abs(value) < _HUGE else None


def _word(part: str | int) -> str:
    """A key, or the index in a Tuple, as a word that can stand in a name."""
    word = re.sub(r"[^A-Za-z0-9_]+", "_", f"part_{part}" if isinstance(part, int) else part)[:30]
    return word if word[:1].isalpha() else f"key_{word}"


def _unused(name: str, used: set[str]) -> str:
    """The name, with a number behind it if another key has it already; short enough for a feature's name."""
    name = name[:52]
    number = 2
    unique = name
    while unique in used:
        unique, number = f"{name}_{number}", number + 1
    used.add(unique)
    return unique


def _rows(observations: Batch) -> Batch:
    if isinstance(observations, dict):
        return {key: _rows(value) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_rows(value) for value in observations)
    # SB3 stores Discrete observations as (N,) or (N, 1)
    return observations.flatten(1) if observations.dim() > 1 else observations.unsqueeze(1)


def _column(path: Path, index: int, now: Batch, _later: Batch | None, start: int = 0) -> th.Tensor:
    for part in path:
        now = now[part]
    column: th.Tensor = now[:, index]
    return column - start if start else column
