"""Vocabularies of Gymnasium's MuJoCo tasks with a cart or an arm: the inverted pendulums, Reacher and Pusher."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.parts import angle, box_actions, check_box, number

_POLE = 0.6  # length of each pole in m
_ARM = ("shoulder_pan", "shoulder_lift", "upper_arm_roll", "elbow_flex", "forearm_roll", "wrist_flex", "wrist_roll")


def inverted_pendulum_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """InvertedPendulum: a pole on a cart, pushed by a force."""
    check_box("InvertedPendulum", observation_space, (4,))
    return Vocabulary(
        name="inverted_pendulum",
        task=(
            "Keep the pole on the cart upright by pushing the cart. Every step is rewarded with 1; the episode ends when the "
            "pole leans more than 0.2 rad. A positive push goes right."
        ),
        features=(
            number("pole_angle", 1, "lean of the pole: 0 is upright, positive leans right", "rad", 0.2),
            number("pole_angular_velocity", 3, "how fast the pole turns, positive is to the right", "rad/s"),
            number("cart_position", 0, "position of the cart: 0 is the middle, positive is right", "m", 1.0),
            number("cart_velocity", 2, "velocity of the cart, positive is to the right", "m/s"),
        ),
        actions=box_actions("InvertedPendulum", action_space, ("push",)),
    )


def inverted_double_pendulum_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """InvertedDoublePendulum, v2 to v5 (11 or 9 numbers): two poles on a cart, and where their tip is."""
    _check_sizes("InvertedDoublePendulum", observation_space, (9, 11))
    return Vocabulary(
        name="inverted_double_pendulum",
        task=(
            "Keep two poles, one on the other, upright on a cart by pushing the cart. Every step is rewarded with about 10, "
            "less if the tip is off the middle or the poles turn fast; the episode ends when the tip is not above 1 m. A "
            "positive push goes right."
        ),
        features=(
            Feature("tip_height", "number", "height of the tip above the cart; 1.2 is upright", _tip_height, unit="m",
                    low=-1.2, high=1.2),
            angle("first_angle", 3, 1, "lean of the lower pole: 0 is upright, positive leans right"),
            angle("second_angle", 4, 2, "angle of the upper pole relative to the lower one: 0 is in line with it"),
            number("first_angular_velocity", 6, "how fast the lower pole turns, positive is to the right", "rad/s", 10.0),
            number("second_angular_velocity", 7, "how fast the joint between the poles turns", "rad/s", 10.0),
            number("cart_position", 0, "position of the cart: 0 is the middle, positive is right", "m", 1.0),
            number("cart_velocity", 5, "velocity of the cart, positive is to the right", "m/s", 10.0),
        ),
        actions=box_actions("InvertedDoublePendulum", action_space, ("push",)),
    )  # fmt: skip


def reacher_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """Reacher, v2 to v5 (11 or 10 numbers): two joints, and where the target is from the fingertip."""
    _check_sizes("Reacher", observation_space, (10, 11))
    return Vocabulary(
        name="reacher",
        task=(
            "Move the fingertip of an arm with two joints to the target. Every step costs the distance in m between the two, "
            "and a little for the torques. Positive torques turn counter-clockwise."
        ),
        features=(
            Feature("target_angle", "number", "direction of the target from the base, relative to the first link: 0 is along "
                    "it, positive is counter-clockwise", _target_angle, unit="rad", low=-math.pi, high=math.pi),
            angle("elbow_angle", 1, 3, "angle of the second link relative to the first: 0 is in line with it"),
            Feature("target_distance", "number", "distance from the fingertip to the target", partial(_norm, (8, 9)),
                    unit="m", low=0.0, high=0.4),
            angle("shoulder_angle", 0, 2, "angle of the first link: 0 is along x, positive is counter-clockwise"),
            number("shoulder_velocity", 6, "how fast the first joint turns", "rad/s"),
            number("elbow_velocity", 7, "how fast the second joint turns", "rad/s"),
            number("target_x", 4, "x of the target", "m", 0.2),
            number("target_y", 5, "y of the target", "m", 0.2),
            number("tip_right_of_target", 8, "x of the fingertip minus x of the target", "m", 0.4),
            number("tip_above_target", 9, "y of the fingertip minus y of the target", "m", 0.4),
        ),
        actions=box_actions("Reacher", action_space, ("shoulder_torque", "elbow_torque")),
    )  # fmt: skip


def pusher_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """Pusher: seven joints, the fingertip, the object it pushes and the goal."""
    check_box("Pusher", observation_space, (23,))
    joints: list[Feature] = []
    for i, joint in enumerate(_ARM):
        words = joint.replace("_", " ")
        joints.append(number(f"{joint}_angle", i, f"angle of the joint {words}", "rad"))
        joints.append(number(f"{joint}_velocity", 7 + i, f"how fast the joint {words} turns", "rad/s"))
    return Vocabulary(
        name="pusher",
        task=(
            "Push an object on a table to the goal with the fingertip of an arm. Every step costs the distance in m from "
            "object to goal, half the distance from fingertip to object, and a little for large torques."
        ),
        features=(
            Feature("object_goal_distance", "number", "distance from the object to the goal",
                    partial(_distance, (17, 18, 19), (20, 21, 22)), unit="m", low=0.0),
            Feature("tip_object_distance", "number", "distance from the fingertip to the object",
                    partial(_distance, (14, 15, 16), (17, 18, 19)), unit="m", low=0.0),
            Feature("object_right_of_goal", "number", "x of the object minus x of the goal", partial(_difference, 17, 20),
                    unit="m"),
            Feature("object_beyond_goal", "number", "y of the object minus y of the goal", partial(_difference, 18, 21),
                    unit="m"),
            Feature("tip_right_of_object", "number", "x of the fingertip minus x of the object", partial(_difference, 14, 17),
                    unit="m"),
            Feature("tip_beyond_object", "number", "y of the fingertip minus y of the object", partial(_difference, 15, 18),
                    unit="m"),
            number("tip_height", 16, "z of the fingertip", "m"),
            *joints,
        ),
        actions=box_actions("Pusher", action_space, tuple(f"{joint}_torque" for joint in _ARM)),
    )  # fmt: skip


def _check_sizes(task: str, space: spaces.Space[Any], sizes: tuple[int, ...]) -> None:
    if not isinstance(space, spaces.Box) or space.shape not in [(size,) for size in sizes]:
        wanted = " or ".join(map(str, sizes))
        raise UnsupportedError(
            f"the {task} vocabulary reads the task's own observation, a Box of {wanted} numbers, but found {space}."
        )


def _tip_height(now: th.Tensor, _later: Any) -> th.Tensor:
    sin1, sin2, cos1, cos2 = now[:, 1], now[:, 2], now[:, 3], now[:, 4]
    return _POLE * (cos1 + cos1 * cos2 - sin1 * sin2)  # the second angle is relative to the first


def _target_angle(now: th.Tensor, _later: Any) -> th.Tensor:
    cos, sin, x, y = now[:, 0], now[:, 2], now[:, 4], now[:, 5]
    return th.atan2(cos * y - sin * x, cos * x + sin * y)  # the target seen in the first link's own frame


def _norm(columns: tuple[int, ...], now: th.Tensor, _later: Any) -> th.Tensor:
    length: th.Tensor = th.linalg.vector_norm(now[:, list(columns)], dim=1)
    return length


def _distance(one: tuple[int, ...], other: tuple[int, ...], now: th.Tensor, _later: Any) -> th.Tensor:
    length: th.Tensor = th.linalg.vector_norm(now[:, list(one)] - now[:, list(other)], dim=1)
    return length


def _difference(one: int, other: int, now: th.Tensor, _later: Any) -> th.Tensor:
    return now[:, one] - now[:, other]
