"""Vocabularies of Gymnasium's classic control tasks, in the units of their equations of motion."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch as th
from gymnasium import spaces

from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.parts import angle, box_actions, check_box, column, discrete_actions, number


def cartpole_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """CartPole: four numbers, two actions."""
    check_box("CartPole", observation_space, (4,))
    return Vocabulary(
        name="cartpole",
        task=(
            "Keep the pole on the cart upright by pushing the cart. Every step is rewarded with 1; the episode ends when the "
            "pole leans more than 0.2095 rad (12 degrees) to either side or the cart leaves -2.4..2.4 m."
        ),
        features=(
            number("pole_angle", 2, "lean of the pole: 0 is upright, positive leans right", "rad", 0.2095),
            number("pole_angular_velocity", 3, "how fast the pole turns, positive is to the right", "rad/s"),
            number("cart_position", 0, "position of the cart on the track: 0 is the middle, positive is right", "m", 2.4),
            number("cart_velocity", 1, "velocity of the cart, positive is to the right", "m/s"),
        ),
        actions=discrete_actions("CartPole", action_space, ("push_left", "push_right")),
    )


def mountain_car_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """MountainCar with three discrete pushes."""
    check_box("MountainCar", observation_space, (2,))
    return Vocabulary(
        name="mountain_car",
        task=(
            "Drive the car out of the valley to the flag on the right hill, at position 0.5 m. Every step costs 1 until the "
            "flag is reached, which ends the episode. The engine is too weak to climb directly: swing back and forth."
        ),
        features=_car_features(),
        actions=discrete_actions("MountainCar", action_space, ("push_left", "no_push", "push_right")),
    )


def mountain_car_continuous_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """MountainCarContinuous: one push of any strength."""
    check_box("MountainCarContinuous", observation_space, (2,))
    return Vocabulary(
        name="mountain_car_continuous",
        task=(
            "Drive the car out of the valley to the flag on the right hill, at position 0.45 m: reward 100, which ends the "
            "episode. Every step costs 0.1 times the squared push. The engine is too weak to climb directly: swing back "
            "and forth."
        ),
        features=_car_features(),
        actions=box_actions("MountainCarContinuous", action_space, ("push",)),
    )


def acrobot_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """Acrobot: two joint angles from their sines and cosines, and the height of the tip."""
    check_box("Acrobot", observation_space, (6,))
    return Vocabulary(
        name="acrobot",
        task=(
            "Swing the free end of a two-link arm above the height of 1 m by torque on the joint between the links. Every "
            "step costs 1 until the height is reached, which ends the episode."
        ),
        features=(
            Feature("tip_height", "number", "height of the free end above the fixed joint; above 1 is the goal", _tip_height,
                    unit="m", low=-2.0, high=2.0),
            angle("first_angle", 0, 1, "angle of the first link: 0 hangs straight down, positive is counter-clockwise"),
            angle("second_angle", 2, 3, "angle of the second link relative to the first: 0 is in line with it"),
            number("first_angular_velocity", 4, "how fast the first link turns", "rad/s", 4 * math.pi),
            number("second_angular_velocity", 5, "how fast the joint between the links turns", "rad/s", 9 * math.pi),
        ),
        actions=discrete_actions("Acrobot", action_space, ("torque_negative", "torque_none", "torque_positive")),
    )  # fmt: skip


def pendulum_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """Pendulum: angle from upright, angular velocity, one torque in N·m."""
    check_box("Pendulum", observation_space, (3,))
    return Vocabulary(
        name="pendulum",
        task=(
            "Swing the pendulum up and hold it upright, at angle 0. Every step costs angle² + 0.1 angular_velocity² + 0.001 "
            "torque², so the best reward is 0: upright, at rest, without torque. The episode lasts 200 steps. The motor is "
            "too weak to lift it directly: swing it."
        ),
        features=(
            angle("angle", 0, 1, "angle of the pendulum: 0 is upright, ±3.14 hangs down, positive is counter-clockwise"),
            number("angular_velocity", 2, "how fast the pendulum turns, positive is counter-clockwise", "rad/s", 8.0),
        ),
        actions=box_actions("Pendulum", action_space, ("torque",), "N·m"),
    )


def _car_features() -> tuple[Feature, ...]:
    return (
        Feature("position", "number", "position of the car: the valley's bottom is near -0.52, the flag is on the right",
                partial(column, 0), unit="m", low=-1.2, high=0.6),
        number("velocity", 1, "velocity of the car, positive is to the right", "m/step", 0.07),
    )  # fmt: skip


def _tip_height(now: th.Tensor, _later: th.Tensor | None) -> th.Tensor:
    cos1, sin1, cos2, sin2 = now[:, 0], now[:, 1], now[:, 2], now[:, 3]
    return -cos1 - (cos1 * cos2 - sin1 * sin2)  # the links are 1 m long; the second angle is relative to the first
