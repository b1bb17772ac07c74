"""Pieces that the shipped vocabularies are put together from: checks of spaces, and features that read columns."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.features import ActionSet, Feature


def check_box(task: str, space: spaces.Space[Any], shape: tuple[int, ...]) -> None:
    """:raises UnsupportedError: if the observation is not a Box of this shape"""
    if not isinstance(space, spaces.Box) or space.shape != shape:
        raise UnsupportedError(
            f"the {task} vocabulary reads the task's own observation, a Box of shape {shape}, but found {space}."
        )


def check_states(task: str, space: spaces.Space[Any], n: int) -> None:
    """:raises UnsupportedError: if the observation is not Discrete with ``n`` states counted from 0"""
    if not isinstance(space, spaces.Discrete) or int(space.n) != n or int(space.start) != 0:
        raise UnsupportedError(f"the {task} vocabulary reads the task's own observation, Discrete({n}), but found {space}.")


def discrete_actions(task: str, space: spaces.Space[Any], names: tuple[str, ...]) -> ActionSet:
    """
    :return: the named actions
    :raises UnsupportedError: if the space is not Discrete with as many actions, counted from 0
    """
    if not isinstance(space, spaces.Discrete) or int(space.n) != len(names) or int(space.start) != 0:
        raise UnsupportedError(f"the {task} vocabulary names {len(names)} discrete actions, but found {space}.")
    return ActionSet(names)


def box_actions(task: str, space: spaces.Space[Any], names: tuple[str, ...], unit: str = "") -> ActionSet:
    """
    :return: the named dimensions with the limits of the space
    :raises UnsupportedError: if the space is not a bounded Box with as many dimensions
    """
    if (
        not isinstance(space, spaces.Box)
        or space.shape != (len(names),)
        or not (np.isfinite(space.low).all() and np.isfinite(space.high).all())
    ):
        wanted = "one bounded continuous action" if len(names) == 1 else f"{len(names)} bounded continuous actions"
        raise UnsupportedError(f"the {task} vocabulary names {wanted}, but found {space}.")
    low, high = (tuple(float(value) for value in side) for side in (space.low, space.high))
    return ActionSet(names, low, high, (unit,) * len(names))


def number(name: str, index: int, meaning: str, unit: str = "", bound: float | None = None, scale: float = 1.0) -> Feature:
    """
    :param index: column of the observation
    :param bound: largest size worth naming in the feature's unit, None if unbounded
    :param scale: what one unit of the observation is in the feature's unit
    :return: a number that lies between ``-bound`` and ``bound``
    """
    low = None if bound is None else -bound
    return Feature(name, "number", meaning, partial(column, index, scale=scale), unit=unit, low=low, high=bound)


def flag(name: str, index: int, meaning: str) -> Feature:
    """:return: yes where the column is above one half"""
    return Feature(name, "boolean", meaning, partial(_above_half, index))


def angle(name: str, cos: int, sin: int, meaning: str) -> Feature:
    """:return: the angle in -pi..pi whose cosine and sine stand in these columns"""
    return Feature(name, "number", meaning, partial(_atan2, cos, sin), unit="rad", low=-math.pi, high=math.pi)


def column(index: int, now: th.Tensor, _later: th.Tensor | None, scale: float = 1.0) -> th.Tensor:
    """:return: one column of the observation"""
    values = now[:, index]
    return values * scale if scale != 1.0 else values


def state_numbers(observations: th.Tensor) -> th.Tensor:
    """:return: a Discrete observation, stored by SB3 as (N,) or (N, 1), as int64 of shape (N,)"""
    return observations.reshape(len(observations), -1)[:, 0].to(th.int64)


def of_state(table: np.ndarray, name: str, meaning: str, values: tuple[str, ...] = (), unit: str = "") -> Feature:
    """
    A feature that is looked up by the number of the state.

    :param table: one entry per state: bool for a boolean feature, codes if ``values`` are given, else numbers
    :return: a feature that reads what ``state_numbers`` gives
    """
    looked_up = partial(_look_up, th.as_tensor(np.ascontiguousarray(table)).to(th.float32))
    if table.dtype == bool:
        return Feature(name, "boolean", meaning, looked_up)
    if values:
        return Feature(name, "category", meaning, looked_up, values=values)
    return Feature(name, "number", meaning, looked_up, unit=unit, low=float(table.min()), high=float(table.max()))


def _look_up(table: th.Tensor, states: th.Tensor, _later: th.Tensor | None) -> th.Tensor:
    return table.to(states.device)[states]


def _above_half(index: int, now: th.Tensor, _later: th.Tensor | None) -> th.Tensor:
    return now[:, index] > 0.5


def _atan2(cos: int, sin: int, now: th.Tensor, _later: th.Tensor | None) -> th.Tensor:
    return th.atan2(now[:, sin], now[:, cos])
