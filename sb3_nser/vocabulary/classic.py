"""Vocabularies of Gymnasium's classic control tasks, in the units of their equations of motion."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

Function = Callable[[Any, Any], th.Tensor]


def cartpole_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """CartPole: four numbers, two actions."""
    _check_spaces("CartPole", observation_space, (4,), action_space, 2)
    return Vocabulary(
        name="cartpole",
        task=(
            "Keep the pole on the cart upright by pushing the cart. Every step is rewarded with 1; the episode ends when the "
            "pole leans more than 0.2095 rad (12 degrees) to either side or the cart leaves -2.4..2.4 m."
        ),
        features=(
            _number("pole_angle", 2, "lean of the pole: 0 is upright, positive leans right", "rad", 0.2095),
            _number("pole_angular_velocity", 3, "how fast the pole turns, positive is to the right", "rad/s"),
            _number("cart_position", 0, "position of the cart on the track: 0 is the middle, positive is right", "m", 2.4),
            _number("cart_velocity", 1, "velocity of the cart, positive is to the right", "m/s"),
        ),
        actions=ActionSet(("push_left", "push_right")),
    )


def mountain_car_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """MountainCar with three discrete pushes."""
    _check_spaces("MountainCar", observation_space, (2,), action_space, 3)
    return Vocabulary(
        name="mountain_car",
        task=(
            "Drive the car out of the valley to the flag on the right hill, at position 0.5 m. Every step costs 1 until the "
            "flag is reached, which ends the episode. The engine is too weak to climb directly: swing back and forth."
        ),
        features=_car_features(),
        actions=ActionSet(("push_left", "no_push", "push_right")),
    )


def mountain_car_continuous_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """MountainCarContinuous: one push of any strength."""
    low, high = _check_spaces("MountainCarContinuous", observation_space, (2,), action_space, None)
    return Vocabulary(
        name="mountain_car_continuous",
        task=(
            "Drive the car out of the valley to the flag on the right hill, at position 0.45 m: reward 100, which ends the "
            "episode. Every step costs 0.1 times the squared push. The engine is too weak to climb directly: swing back "
            "and forth."
        ),
        features=_car_features(),
        actions=ActionSet(("push",), low, high, ("",)),
    )


def acrobot_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """Acrobot: two joint angles from their sines and cosines, and the height of the tip."""
    _check_spaces("Acrobot", observation_space, (6,), action_space, 3)
    return Vocabulary(
        name="acrobot",
        task=(
            "Swing the free end of a two-link arm above the height of 1 m by torque on the joint between the links. Every "
            "step costs 1 until the height is reached, which ends the episode."
        ),
        features=(
            Feature("tip_height", "number", "height of the free end above the fixed joint; above 1 is the goal", _tip_height,
                    unit="m", low=-2.0, high=2.0),
            _angle("first_angle", 0, 1, "angle of the first link: 0 hangs straight down, positive is counter-clockwise"),
            _angle("second_angle", 2, 3, "angle of the second link relative to the first: 0 is in line with it"),
            _number("first_angular_velocity", 4, "how fast the first link turns", "rad/s", 4 * math.pi),
            _number("second_angular_velocity", 5, "how fast the joint between the links turns", "rad/s", 9 * math.pi),
        ),
        actions=ActionSet(("torque_negative", "torque_none", "torque_positive")),
    )  # fmt: skip


def pendulum_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """Pendulum: angle from upright, angular velocity, one torque in N·m."""
    low, high = _check_spaces("Pendulum", observation_space, (3,), action_space, None)
    return Vocabulary(
        name="pendulum",
        task=(
            "Swing the pendulum up and hold it upright, at angle 0. Every step costs angle² + 0.1 angular_velocity² + 0.001 "
            "torque², so the best reward is 0: upright, at rest, without torque. The episode lasts 200 steps. The motor is "
            "too weak to lift it directly: swing it."
        ),
        features=(
            _angle("angle", 0, 1, "angle of the pendulum: 0 is upright, ±3.14 hangs down, positive is counter-clockwise"),
            _number("angular_velocity", 2, "how fast the pendulum turns, positive is counter-clockwise", "rad/s", 8.0),
        ),
        actions=ActionSet(("torque",), low, high, ("N·m",)),
    )


def _car_features() -> tuple[Feature, ...]:
    return (
        Feature("position", "number", "position of the car: the valley's bottom is near -0.52, the flag is on the right",
                partial(_column, 0), unit="m", low=-1.2, high=0.6),
        _number("velocity", 1, "velocity of the car, positive is to the right", "m/step", 0.07),
    )  # fmt: skip


def _check_spaces(
    task: str,
    observation_space: spaces.Space[Any],
    shape: tuple[int, ...],
    action_space: spaces.Space[Any],
    n_actions: int | None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """:return: the limits of a one-dimensional Box action (empty for discrete ones); raises if a space is another one."""
    if not isinstance(observation_space, spaces.Box) or observation_space.shape != shape:
        raise UnsupportedError(
            f"the {task} vocabulary reads the task's own observation, a Box of shape {shape}, but found {observation_space}."
        )
    if n_actions is not None:
        if not isinstance(action_space, spaces.Discrete) or int(action_space.n) != n_actions or int(action_space.start) != 0:
            raise UnsupportedError(f"the {task} vocabulary names {n_actions} discrete actions, but found {action_space}.")
        return (), ()
    if not isinstance(action_space, spaces.Box) or action_space.shape != (1,) or not np.isfinite(action_space.high).all():
        raise UnsupportedError(f"the {task} vocabulary names one bounded continuous action, but found {action_space}.")
    return (float(action_space.low[0]),), (float(action_space.high[0]),)


def _number(name: str, index: int, meaning: str, unit: str, bound: float | None = None) -> Feature:
    low = None if bound is None else -bound
    return Feature(name, "number", meaning, partial(_column, index), unit=unit, low=low, high=bound)


def _angle(name: str, cos: int, sin: int, meaning: str) -> Feature:
    return Feature(name, "number", meaning, partial(_atan2, cos, sin), unit="rad", low=-math.pi, high=math.pi)


def _column(index: int, now: th.Tensor, _later: th.Tensor | None) -> th.Tensor:
    return now[:, index]


def _atan2(cos: int, sin: int, now: th.Tensor, _later: th.Tensor | None) -> th.Tensor:
    return th.atan2(now[:, sin], now[:, cos])


def _tip_height(now: th.Tensor, _later: th.Tensor | None) -> th.Tensor:
    cos1, sin1, cos2, sin2 = now[:, 0], now[:, 1], now[:, 2], now[:, 3]
    return -cos1 - (cos1 * cos2 - sin1 * sin2)  # the links are 1 m long; the second angle is relative to the first
