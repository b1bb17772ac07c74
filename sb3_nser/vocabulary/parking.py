"""The vocabulary of highway-env's parking task, whose observation is a Dict with goals (for hindsight replay)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.batches import Batch
from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.highway import driving_actions

_COLUMNS = ("x", "y", "vx", "vy", "cos_h", "sin_h")
_SCALES = (100.0, 100.0, 5.0, 5.0, 1.0, 1.0)


@dataclass(frozen=True)
class _Lot:
    """Own state and goal as columns in m, m/s; ``ahead`` and ``left`` are where the goal lies from the driver's seat."""

    scales: tuple[float, ...]

    def decode(self, batch: Batch) -> dict[str, th.Tensor]:
        scales = th.tensor(self.scales)
        own, goal = batch["achieved_goal"].float() * scales, batch["desired_goal"].float() * scales
        dx, dy = goal[:, 0] - own[:, 0], goal[:, 1] - own[:, 1]
        cos, sin = own[:, 4], own[:, 5]
        return {
            "distance": th.hypot(dx, dy),
            "ahead": dx * cos + dy * sin,
            "right": dy * cos - dx * sin,  # y grows downwards: a positive turn is clockwise
            "speed": own[:, 2] * cos + own[:, 3] * sin,
            "turn": th.atan2(goal[:, 5] * cos - goal[:, 4] * sin, goal[:, 4] * cos + goal[:, 5] * sin),
        }


def parking_vocabulary(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    env_id: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Vocabulary:
    """
    Parking: where the parking space is from the driver's seat, and the own speed.

    :param observation_space: the Dict with ``achieved_goal`` and ``desired_goal`` of x, y, vx, vy, cos_h, sin_h
    :param action_space: acceleration and steering
    :param env_id: not used
    :param config: the environment's configuration, for the scales; that of ``parking-v0`` if it is not at hand
    :raises UnsupportedError: if the observation is another one
    """
    observation = dict((config or {}).get("observation") or {})
    parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {}
    if (
        not all(key in parts and parts[key].shape == (len(_COLUMNS),) for key in ("achieved_goal", "desired_goal"))
        or tuple(observation.get("features") or _COLUMNS) != _COLUMNS
    ):
        raise UnsupportedError(
            f"the parking vocabulary reads a Dict with achieved_goal and desired_goal of the features {', '.join(_COLUMNS)}, "
            f"but found {observation_space}."
        )
    lot = _Lot(tuple(float(scale) for scale in observation.get("scales") or _SCALES))
    return Vocabulary(
        name="parking",
        task=(
            "Park the car in the given space with the right heading. Every step costs the distance from position and heading; "
            "the episode ends when the car is parked or collides. Positive steering turns right."
        ),
        features=(
            Feature("goal_ahead", "number", "how far ahead of the car the space lies, negative if behind",
                    partial(_get, "ahead"), unit="m"),
            Feature("goal_right", "number", "how far to the right of the car it lies, negative if left",
                    partial(_get, "right"), unit="m"),
            Feature("goal_turn", "number", "turn from the own heading to that of the space, positive is to the right",
                    partial(_get, "turn"), unit="rad", low=-3.1416, high=3.1416),
            Feature("speed", "number", "own speed, negative is backwards", partial(_get, "speed"), unit="m/s"),
            Feature("goal_distance", "number", "distance to the parking space", partial(_get, "distance"), unit="m", low=0.0),
        ),
        actions=driving_actions(action_space, config or {}),
        decode=lot.decode,
    )  # fmt: skip


def _get(name: str, now: dict[str, th.Tensor], _later: Any) -> th.Tensor:
    return now[name]
