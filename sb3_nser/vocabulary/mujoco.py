"""Vocabularies of Gymnasium's MuJoCo robots that walk, run or swim: joints, posture and speed.

Their observation is the joint positions, some of them left out, then all joint velocities, then (Ant, Humanoid) forces, which
get no names. Positive x is forward, positive y is left, positive z is up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.parts import box_actions, number

_RUN = "Actions are torques at the joints, as shares of the motors' strength; large ones cost a little."


@dataclass(frozen=True)
class Robot:
    """
    A robot's joints.

    :param task: the task sentence
    :param joints: hinges in the order of the observation, named for people
    :param motors: the hinges that have a motor, in the order of the actions; empty if that is the order of ``joints``
    :param free: True for a body that floats freely in three dimensions, False for one that moves in the x-z plane
    :param height: what the height means, empty if there is none (the swimmer lies flat)
    :param forces: sizes of the blocks of numbers that may follow, all or some of them
    :param fastest: velocities are cut at this, None if they are not
    """

    task: str
    joints: tuple[str, ...]
    motors: tuple[str, ...] = ()
    free: bool = False
    height: str = "height of the torso"
    forces: tuple[int, ...] = ()
    fastest: float | None = None


_LEGS = ("front_left", "back_left", "back_right", "front_right")
_ANT = tuple(f"{leg}_{part}" for leg in _LEGS for part in ("hip", "ankle"))
_BODY = (
    "abdomen_z", "abdomen_y", "abdomen_x",
    "right_hip_x", "right_hip_z", "right_hip_y", "right_knee", "left_hip_x", "left_hip_z", "left_hip_y", "left_knee",
    "right_shoulder1", "right_shoulder2", "right_elbow", "left_shoulder1", "left_shoulder2", "left_elbow",
)  # fmt: skip
_BODY_FORCES = (130, 78, 17, 78, 331)  # blocks of v5; v4 has all of its own, 331 numbers

ROBOTS = {
    "Hopper": Robot(
        "Make a one-legged robot hop forward as fast as possible without falling: the episode ends when the torso is lower "
        f"than 0.7 m or leans more than 0.2 rad. Speed forward and every step upright are rewarded. {_RUN}",
        ("thigh", "leg", "foot"),
        fastest=10.0,
    ),
    "HalfCheetah": Robot(
        f"Make a flat two-legged cheetah run forward as fast as possible. Speed forward is rewarded. {_RUN}",
        ("back_thigh", "back_shin", "back_foot", "front_thigh", "front_shin", "front_foot"),
        height="height of the torso relative to where it starts",
    ),
    "Walker2d": Robot(
        "Make a two-legged robot walk forward as fast as possible without falling: the episode ends when the torso is not "
        f"between 0.8 and 2 m high or leans more than 1 rad. Speed forward and every step upright are rewarded. {_RUN}",
        ("right_thigh", "right_leg", "right_foot", "left_thigh", "left_leg", "left_foot"),
        fastest=10.0,
    ),
    "Swimmer": Robot(
        f"Make a three-link swimmer in a viscous fluid swim along x as fast as possible. Speed along x is rewarded. {_RUN}",
        ("first_joint", "second_joint"),
        height="",
    ),
    "Ant": Robot(
        "Make a four-legged robot walk forward (along x) as fast as possible without tipping over: the episode ends when the "
        f"torso is not between 0.2 and 1 m high. Speed forward and every step upright are rewarded. {_RUN}",
        _ANT,
        motors=(*_ANT[-2:], *_ANT[:-2]),
        free=True,
        forces=(78, 84),
    ),
    "Humanoid": Robot(
        "Make a humanoid walk forward (along x) as fast as possible without falling: the episode ends when the torso is not "
        f"between 1 and 2 m high. Speed forward and every step upright are rewarded. {_RUN}",
        _BODY,
        motors=("abdomen_y", "abdomen_z", *_BODY[2:]),
        free=True,
        forces=_BODY_FORCES,
    ),
    "HumanoidStandup": Robot(
        f"Make a humanoid that lies on the ground stand up. Height of the torso is rewarded. {_RUN}",
        _BODY,
        motors=("abdomen_y", "abdomen_z", *_BODY[2:]),
        free=True,
        forces=_BODY_FORCES,
    ),
}
"""Robots by the name their environment ids begin with."""


def robot_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    Hopper, HalfCheetah, Walker2d, Swimmer, Ant, Humanoid and HumanoidStandup, v2 to v5.

    :param observation_space: the task's own Box, with or without the position in the world and the forces
    :param action_space: one bounded dimension per motor
    :param env_id: tells which robot it is
    :raises UnsupportedError: if the robot is not known or the spaces are others
    """
    kind = (env_id or "").split("-")[0]
    if kind not in ROBOTS:
        raise UnsupportedError(
            f"the robot vocabulary needs the environment's id to know the robot: one that begins with {', '.join(ROBOTS)}, "
            f"not {env_id!r}."
        )
    robot = ROBOTS[kind]
    first = _first_column(kind, robot, observation_space)
    return Vocabulary(
        name="mujoco_robot",
        task=robot.task,
        features=_free_features(robot, first) if robot.free else _plane_features(robot, first),
        actions=box_actions(kind, action_space, tuple(f"{joint}_torque" for joint in robot.motors or robot.joints)),
    )


def _first_column(kind: str, robot: Robot, space: spaces.Space[Any]) -> int:
    """:return: the column of the first position that is not left out by default"""
    joints = len(robot.joints)
    skipped = 2 if robot.free or not robot.height else 1
    # a free body has 7 positions and 6 velocities, one in a plane 3 and 3
    size = 2 * joints + ((7 + 6) if robot.free else (3 + 3)) - skipped
    blocks = {sum(chosen) for n in range(len(robot.forces) + 1) for chosen in combinations(robot.forces, n)}
    if isinstance(space, spaces.Box) and space.shape is not None and len(space.shape) == 1:
        for first in (0, skipped):
            if space.shape[0] - size - first in blocks:
                return first
    raise UnsupportedError(
        f"the {kind} vocabulary reads the task's own observation, a Box of {size} numbers (more with positions or forces "
        f"included), but found {space}."
    )


def _plane_features(robot: Robot, first: int) -> tuple[Feature, ...]:
    joints, rate = len(robot.joints), robot.fastest
    velocity = first + joints + (2 if robot.height else 1)  # column of the first velocity
    if robot.height:
        posture: tuple[Feature, ...] = (
            number("height", first, robot.height, "m"),
            number("lean", first + 1, "lean of the torso: 0 is as built, positive leans forward (nose down)", "rad"),
            number("forward_velocity", velocity, "speed forward", "m/s", rate),
            number("vertical_velocity", velocity + 1, "vertical speed, positive is up", "m/s", rate),
            number("lean_velocity", velocity + 2, "how fast the torso turns forward", "rad/s", rate),
        )
    else:
        posture = (
            number("heading", first, "angle of the first link to the x axis, counter-clockwise", "rad"),
            number("forward_velocity", velocity, "speed along x", "m/s"),
            number("sideways_velocity", velocity + 1, "speed along y", "m/s"),
            number("turn_velocity", velocity + 2, "how fast the first link turns, counter-clockwise", "rad/s"),
        )
    before = first + (2 if robot.height else 1)
    return posture + _hinges(robot.joints, before, velocity + 3, rate)


def _free_features(robot: Robot, first: int) -> tuple[Feature, ...]:
    turn = first + 1  # columns of the quaternion w, x, y, z
    joint = first + 5
    velocity = joint + len(robot.joints)
    posture = (
        number("height", first, robot.height, "m"),
        Feature("uprightness", "number", "1 is upright, 0 lies on a side, -1 is upside down", partial(_up, turn),
                low=-1.0, high=1.0),
        Feature("pitch", "number", "lean forward (negative: backward)", partial(_pitch, turn), unit="rad"),
        Feature("roll", "number", "lean to the right (negative: left)", partial(_roll, turn), unit="rad"),
        Feature("heading", "number", "direction it faces: 0 is forward along x, positive is to the left", partial(_yaw, turn),
                unit="rad"),
        number("forward_velocity", velocity, "speed along x", "m/s"),
        number("sideways_velocity", velocity + 1, "speed along y, positive is to the left", "m/s"),
        number("vertical_velocity", velocity + 2, "vertical speed, positive is up", "m/s"),
        number("roll_velocity", velocity + 3, "how fast the torso turns about its own forward axis", "rad/s"),
        number("pitch_velocity", velocity + 4, "how fast the torso turns about its own left-right axis", "rad/s"),
        number("turn_velocity", velocity + 5, "how fast the torso turns about its own vertical axis, to the left", "rad/s"),
    )  # fmt: skip
    return posture + _hinges(robot.joints, joint, velocity + 6, None)


def _hinges(joints: tuple[str, ...], position: int, velocity: int, fastest: float | None) -> tuple[Feature, ...]:
    features = []
    for i, joint in enumerate(joints):
        words = joint.replace("_", " ")
        features.append(number(f"{joint}_angle", position + i, f"angle of the {words}", "rad"))
        features.append(number(f"{joint}_velocity", velocity + i, f"how fast the {words} turns", "rad/s", fastest))
    return tuple(features)


def _quaternion(turn: int, now: th.Tensor) -> tuple[th.Tensor, ...]:
    return now[:, turn], now[:, turn + 1], now[:, turn + 2], now[:, turn + 3]


def _up(turn: int, now: th.Tensor, _later: Any) -> th.Tensor:
    _, x, y, _ = _quaternion(turn, now)
    return 1.0 - 2.0 * (x * x + y * y)


def _pitch(turn: int, now: th.Tensor, _later: Any) -> th.Tensor:
    w, x, y, z = _quaternion(turn, now)
    return th.asin((2.0 * (w * y - z * x)).clamp(-1.0, 1.0))


def _roll(turn: int, now: th.Tensor, _later: Any) -> th.Tensor:
    w, x, y, z = _quaternion(turn, now)
    return th.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y))


def _yaw(turn: int, now: th.Tensor, _later: Any) -> th.Tensor:
    w, x, y, z = _quaternion(turn, now)
    return th.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
