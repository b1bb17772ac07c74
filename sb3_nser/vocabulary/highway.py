"""Vocabularies of highway-env: what a driver sees, in metres and metres per second, from its Kinematics observation.

It needs no highway-env: everything is computed from the stored observations and the environment's ``config``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary
from sb3_nser.vocabulary.parts import discrete_actions

LANE_WIDTH = 4.0
"""Width of a lane in m."""

FAR = 200.0
"""Gap in m where no vehicle is seen: as far as any is seen."""

_META = ("lane_left", "idle", "lane_right", "faster", "slower")
_LONGITUDINAL, _LATERAL = ("slower", "idle", "faster"), ("lane_left", "idle", "lane_right")
_SPEED = 80.0  # m/s that stand for 1 where nothing else is configured
_TASKS = {
    "highway": "Drive fast on a busy highway without collisions, on the right lanes if possible.",
    "merge": "Drive on a highway where vehicles join from a ramp; keep speed, make room for them, and do not collide.",
    "exit": "Drive on a busy highway, change to the rightmost lane in time, and take the exit without collisions.",
    "roundabout": "Drive through a busy roundabout as quickly as possible without collisions.",
    "intersection": "Cross a busy intersection without traffic lights as quickly as possible without collisions.",
}


@dataclass(frozen=True)
class Traffic:
    """
    Vehicles in metres, the ego vehicle's own columns apart; made from a batch of observations.

    :param ego: name -> shape (N,): x, y, vx, vy of the ego vehicle
    :param dx: shape (N, vehicles): how far ahead of the ego vehicle, along x; ``dy`` likewise to the right
    :param dvx: shape (N, vehicles): velocity relative to the ego vehicle; ``dvy`` likewise
    :param there: shape (N, vehicles): whether this row holds a vehicle
    """

    ego: dict[str, th.Tensor]
    dx: th.Tensor
    dy: th.Tensor
    dvx: th.Tensor
    dvy: th.Tensor
    there: th.Tensor


@dataclass(frozen=True)
class TrafficForm:
    """
    How to read a Kinematics observation.

    :param columns: names of its columns
    :param scale: column -> (offset, factor): value in metres or m/s is offset + factor * stored
    :param absolute: other vehicles' columns are not relative to the ego vehicle
    """

    columns: tuple[str, ...]
    scale: dict[str, tuple[float, float]]
    absolute: bool

    def decode(self, observations: th.Tensor) -> Traffic:
        """:return: the vehicles of observations of shape (N, vehicles, columns)"""
        table = observations.float()
        values = {}
        for name, (offset, factor) in self.scale.items():
            values[name] = offset + factor * table[:, :, self.columns.index(name)]
        there = table[:, 1:, self.columns.index("presence")] > 0.5
        ego = {name: column[:, 0] for name, column in values.items()}
        others = {name: column[:, 1:] - ego[name][:, None] * self.absolute for name, column in values.items()}
        return Traffic(ego, others["x"], others["y"], others["vx"], others["vy"], there)


def highway_vocabulary(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    env_id: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Vocabulary:
    """
    highway, merge, exit, roundabout and intersection: own speed and lane, gaps and closing speeds to the vehicles around.

    :param observation_space: Box of shape (vehicles, columns): a Kinematics observation with presence, x, y, vx, vy
    :param action_space: highway-env's meta-actions, or throttle and steering
    :param env_id: chooses the task sentence, and whether lanes are spoken of
    :param config: the environment's configuration; without it, that of ``highway-v0`` is taken for ids that begin with highway
    :raises UnsupportedError: if the observation is of another type
    """
    kind = (env_id or "highway").split("-")[0]
    if config is None:
        if kind != "highway":
            raise UnsupportedError(f"the highway vocabulary needs the environment's config to know the scales of {env_id!r}.")
        config = {"observation": {"type": "Kinematics"}, "lanes_count": 3 if (env_id or "").startswith("highway-fast") else 4}
    form, lanes = _form(observation_space, config)
    in_lanes = kind in ("highway", "merge", "exit")
    features = _lane_features(lanes) if in_lanes else _crossing_features(form.scale)
    actions = driving_actions(action_space, config)
    return Vocabulary("highway", _TASKS.get(kind, "Drive without collisions."), features, actions, form.decode)


def _form(space: spaces.Space[Any], config: Mapping[str, Any]) -> tuple[TrafficForm, int]:
    observation = dict(config.get("observation") or {})
    columns = tuple(observation.get("features") or ("presence", "x", "y", "vx", "vy"))
    if (
        observation.get("type") not in ("Kinematics", "ExitObservation")
        or not isinstance(space, spaces.Box)
        or len(space.shape) != 2
        or space.shape[1] != len(columns)
        or space.shape[0] < 2
        or not {"presence", "x", "y", "vx", "vy"} <= set(columns)
    ):
        raise UnsupportedError(
            'the highway vocabulary reads config["observation"] of type Kinematics with the features presence, x, y, vx, vy, '
            f"at least two vehicles, but found type {observation.get('type')!r} with {space}."
        )
    lanes = int(config.get("lanes_count") or 2)  # merge has two and does not say so
    width = LANE_WIDTH * lanes
    ranges = observation.get("features_range") or {
        "x": (-FAR, FAR), "y": (-width, width), "vx": (-_SPEED, _SPEED), "vy": (-_SPEED, _SPEED),
    }  # fmt: skip
    scale = {}
    for name in ("x", "y", "vx", "vy"):
        low, high = ranges.get(name, (-1.0, 1.0)) if observation.get("normalize", True) else (-1.0, 1.0)
        scale[name] = ((low + high) / 2.0, (high - low) / 2.0)
    return TrafficForm(columns, scale, bool(observation.get("absolute", False))), lanes


def driving_actions(space: spaces.Space[Any], config: Mapping[str, Any]) -> ActionSet:
    """
    :param space: the actions of a highway-env environment
    :param config: its configuration
    :return: meta-actions by name, or acceleration in m/s² and steering in rad
    :raises UnsupportedError: if the space does not fit the configuration
    """
    action = dict(config.get("action") or {})
    along, across = action.get("longitudinal", True), action.get("lateral", True)
    if isinstance(space, spaces.Box):
        names = (("acceleration",) if along else ()) + (("steering",) if across else ())
        pushes = tuple(action.get("acceleration_range") or (-5.0, 5.0))
        turns = tuple(action.get("steering_range") or (-math.pi / 4, math.pi / 4))
        low, high = zip(*((pushes,) if along else ()) + ((turns,) if across else ()), strict=True)
        if space.shape != (len(names),):
            raise UnsupportedError(f"the highway vocabulary names the actions {', '.join(names)}, but found {space}.")
        units = (("m/s²",) if along else ()) + (("rad",) if across else ())
        return ActionSet(names, low, high, units)  # highway-env maps -1..1 to these
    return discrete_actions("highway", space, _META if along and across else _LONGITUDINAL if along else _LATERAL)


def _lane_features(lanes: int) -> tuple[Feature, ...]:
    features = []
    for name, side, where in (("front", 0, "own lane"), ("left", -1, "lane to the left"), ("right", 1, "lane to the right")):
        ahead = f"distance to the next vehicle ahead in the {where}, {FAR:g} if none is seen"
        features.append(Feature(f"{name}_gap", "number", ahead, partial(_gap, side), unit="m", low=0.0, high=FAR))
        closing = f"how fast that gap shrinks, negative if it grows, 0 if no vehicle is seen in the {where}"
        features.append(Feature(f"{name}_closing_speed", "number", closing, partial(_closing, side), unit="m/s"))
    for name, side in (("left", -1), ("right", 1)):
        free = f"yes if there is a lane to the {name} and no vehicle within 15 m ahead or behind in it"
        features.append(Feature(f"{name}_lane_free", "boolean", free, partial(_free, side, lanes)))
    lane = f"own lane, 0 is the leftmost, {lanes - 1} the rightmost"
    features.append(Feature("speed", "number", "own speed", _speed, unit="m/s", low=0.0, high=40.0))
    features.append(Feature("lane", "number", lane, _lane, low=0.0, high=lanes - 1.0))
    return tuple(features)


def _crossing_features(scale: Mapping[str, tuple[float, float]]) -> tuple[Feature, ...]:
    reach = scale["x"][1]
    return (
        Feature("nearest_distance", "number", f"distance to the nearest vehicle, {FAR:g} if none is seen", _nearest, unit="m",
                low=0.0, high=FAR),
        Feature("nearest_closing_speed", "number", "how fast that distance shrinks, negative if it grows", _nearest_closing,
                unit="m/s"),
        Feature("nearest_ahead", "boolean", "yes if the nearest vehicle lies in the direction of travel", _nearest_ahead),
        Feature("speed", "number", "own speed", _speed, unit="m/s", low=0.0),
        Feature("x", "number", "own position along x", partial(_own, "x"), unit="m", low=-reach, high=reach),
        Feature("y", "number", "own position along y", partial(_own, "y"), unit="m", low=-reach, high=reach),
        Feature("x_velocity", "number", "own velocity along x", partial(_own, "vx"), unit="m/s"),
        Feature("y_velocity", "number", "own velocity along y", partial(_own, "vy"), unit="m/s"),
    )  # fmt: skip


def _own(name: str, now: Traffic, _later: Any) -> th.Tensor:
    return now.ego[name]


def _speed(now: Traffic, _later: Any) -> th.Tensor:
    return th.hypot(now.ego["vx"], now.ego["vy"])


def _lane(now: Traffic, _later: Any) -> th.Tensor:
    return th.round(now.ego["y"] / LANE_WIDTH)


def _in_lane(now: Traffic, side: int) -> th.Tensor:
    """Which vehicles are in the own lane (side 0) or the one beside it; y grows to the right."""
    return now.there & ((now.dy - side * LANE_WIDTH).abs() < LANE_WIDTH / 2)


def _first_ahead(now: Traffic, side: int) -> tuple[th.Tensor, th.Tensor]:
    """:return: gap and column of the nearest vehicle ahead in that lane"""
    gaps = th.where(_in_lane(now, side) & (now.dx >= 0), now.dx, th.full_like(now.dx, FAR))
    gap, which = gaps.min(1)
    return gap, which


def _gap(side: int, now: Traffic, _later: Any) -> th.Tensor:
    return _first_ahead(now, side)[0]


def _closing(side: int, now: Traffic, _later: Any) -> th.Tensor:
    gap, which = _first_ahead(now, side)
    closing = -now.dvx.gather(1, which[:, None])[:, 0]
    return th.where(gap < FAR, closing, th.zeros_like(closing))


def _free(side: int, lanes: int, now: Traffic, _later: Any) -> th.Tensor:
    beside = (_in_lane(now, side) & (now.dx.abs() < 15.0)).any(1)
    lane = _lane(now, None) + side
    return ~beside & (lane >= 0) & (lane <= lanes - 1)


def _distances(now: Traffic) -> tuple[th.Tensor, th.Tensor]:
    distances = th.where(now.there, th.hypot(now.dx, now.dy), th.full_like(now.dx, FAR))
    distance, which = distances.min(1)
    return distance, which[:, None]


def _nearest(now: Traffic, _later: Any) -> th.Tensor:
    return _distances(now)[0]


def _nearest_closing(now: Traffic, _later: Any) -> th.Tensor:
    distance, which = _distances(now)
    dx, dy, dvx, dvy = (values.gather(1, which)[:, 0] for values in (now.dx, now.dy, now.dvx, now.dvy))
    closing = -(dx * dvx + dy * dvy) / distance.clamp_min(1e-6)
    return th.where(now.there.any(1), closing, th.zeros_like(closing))


def _nearest_ahead(now: Traffic, _later: Any) -> th.Tensor:
    _, which = _distances(now)
    dx, dy = (values.gather(1, which)[:, 0] for values in (now.dx, now.dy))
    return now.there.any(1) & (dx * now.ego["vx"] + dy * now.ego["vy"] > 0)
