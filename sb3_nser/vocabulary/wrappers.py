"""What each known wrapper does to observations and actions, and how to undo it.

Three kinds: those that leave observations and actions as they are, those that can be undone from the stored observation
alone, and opaque ones, below which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nser.vocabulary.batches import Batch, same_form, unflatten

PLAIN = frozenset(
    {
        # Gymnasium
        "TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "Autoreset", "AutoResetWrapper", "RecordEpisodeStatistics",
        "RecordVideo", "HumanRendering", "RenderCollection", "EnvCompatibility", "ClipReward", "TransformReward",
        "NormalizeReward", "StickyAction", "RepeatAction", "DelayObservation", "DtypeObservation",
        # Stable-Baselines3, sb3-contrib, rl_zoo3
        "Monitor", "NoopResetEnv", "FireResetEnv", "EpisodicLifeEnv", "StickyActionEnv", "ClipRewardEnv", "ActionMasker",
        "VecMonitor", "VecCheckNan", "VecVideoRecorder", "VecNormalize", "TruncatedOnSuccessWrapper", "ActionNoiseWrapper",
        "ActionSmoothingWrapper", "DelayedRewardWrapper", "PatchedTimeLimit", "FrameSkip", "MaskVelocityWrapper",
        # MiniGrid
        "ReseedWrapper", "ActionBonus", "PositionBonus", "NoDeath", "StochasticActionWrapper",
    }
)  # fmt: skip
"""Wrappers that leave names and units as they are. VecNormalize is one: the replay buffer stores what it was given."""

SAME_FORM = frozenset({"NormalizeObservation", "RescaleObservation", "TransformObservation"})
"""Observation wrappers that may give other numbers in the same form, for where only a wrapper's name is known."""

OTHER_FORM = frozenset(
    {
        "FlattenObservation", "FrameStackObservation", "FrameStack", "TimeAwareObservation", "TimeFeatureWrapper",
        "ReshapeObservation", "FilterObservation", "GrayscaleObservation", "ResizeObservation", "AddRenderObservation",
        "AtariWrapper", "AtariPreprocessing", "WarpFrame", "HistoryWrapper",
        "ImgObsWrapper", "RGBImgPartialObsWrapper", "RGBImgObsWrapper", "FlatObsWrapper", "OneHotPartialObsWrapper",
        "FullyObsWrapper", "ViewSizeWrapper", "DictObservationSpaceWrapper", "SymbolicObsWrapper", "DirectionObsWrapper",
    }
)  # fmt: skip
"""Observation wrappers that give another form, so that a vocabulary can tell whether it reads what they give."""

ACTION_WRAPPERS = frozenset({"RescaleAction", "ClipAction", "TransformAction", "DiscretizeAction"})
"""Gymnasium's action wrappers, for where only a wrapper's name is known."""


_PACKAGES = ("gymnasium", "stable_baselines3", "sb3_contrib", "rl_zoo3", "minigrid")


@dataclass(frozen=True)
class Undo:
    """
    One step back.

    :param space: the space one gets to
    :param step: makes a batch of it from a batch of the wrapper's own space
    :param loses: True if something is lost that is not merely older, such as the time
    """

    space: spaces.Space[Any]
    step: Callable[[Batch], Batch]
    loses: bool = False


@dataclass(frozen=True)
class Opaque:
    """
    A wrapper below which nothing is known.

    :param name: its class
    :param why: what it does, to complete "NAME ..."
    :param same_form: True if what it gives has the form of what it was given, so that names would silently be wrong
    """

    name: str
    why: str
    same_form: bool


def undo_observation(wrapper: Any, outer: spaces.Space[Any]) -> list[Undo] | Opaque:
    """
    :param wrapper: a Gymnasium wrapper or an SB3 ``VecEnvWrapper``
    :param outer: the space of the observations it gives
    :return: the steps back to its inner environment's observation (none if it leaves them alone), or why there is no way
    """
    name = known_name(wrapper)
    if name in PLAIN:
        return []
    inner = inside(wrapper).observation_space
    undo = _UNDO.get(name)
    steps = undo(wrapper, inner, outer) if undo is not None else None
    if steps is not None:
        return steps
    if name == "NormalizeObservation":
        return Opaque(name, "changes every number by statistics that drift", True)
    if not isinstance(wrapper, gym.ObservationWrapper) and inner == outer:
        return []  # a wrapper of rewards, resets, ... that gives observations of the very space it was given
    return Opaque(type(wrapper).__name__, "changes observations in a way that cannot be looked up", same_form(inner, outer))


def undo_action(wrapper: Any, outer: spaces.Space[Any]) -> spaces.Space[Any] | Opaque:
    """
    :param wrapper: a Gymnasium wrapper or an SB3 ``VecEnvWrapper``
    :param outer: the space of the actions it takes
    :return: the space of its inner environment's actions if they differ from those by their limits at most, else why not
    """
    name = known_name(wrapper)
    inner: spaces.Space[Any] = inside(wrapper).action_space
    if name in PLAIN or name == "RescaleAction":
        return inner
    if isinstance(wrapper, gym.ActionWrapper) or inner != outer:
        return Opaque(type(wrapper).__name__, "changes actions in a way that cannot be looked up", same_form(inner, outer))
    return inner


def known_name(wrapper: Any) -> str:
    """:return: the class's name if it comes from a package whose wrappers are known, else an empty string"""
    package = type(wrapper).__module__.split(".")[0]
    return type(wrapper).__name__ if package in _PACKAGES else ""


def inside(wrapper: Any) -> Any:
    """:return: the environment that a Gymnasium wrapper or an SB3 ``VecEnvWrapper`` is put around"""
    return wrapper.env if isinstance(wrapper, gym.Wrapper) else wrapper.venv


def _flatten(_wrapper: Any, inner: spaces.Space[Any], _outer: spaces.Space[Any]) -> list[Undo] | None:
    if not _can_unflatten(inner):
        return None
    return [Undo(inner, partial(unflatten, inner))]


def _frame_stack(_wrapper: Any, inner: spaces.Space[Any], _outer: spaces.Space[Any]) -> list[Undo]:
    return [Undo(inner, partial(_newest, -1))]


def _time_aware(wrapper: Any, inner: spaces.Space[Any], outer: spaces.Space[Any]) -> list[Undo] | None:
    time = spaces.Box(0.0, np.inf, (1,), np.float32)
    steps = []
    if isinstance(inner, spaces.Dict):
        # Gymnasium puts the time first, then the keys in the order that Dict gives them
        key = getattr(wrapper, "_saved_kwargs", {}).get("dict_time_key", "time")
        whole = outer if isinstance(outer, spaces.Dict) else spaces.Dict({key: time, **inner.spaces})
        pick: Callable[[Batch], Batch] = partial(_keys, tuple(inner.spaces))
    elif isinstance(inner, spaces.Tuple):
        return None
    else:
        whole, pick = spaces.Dict({"obs": inner, "time": time}), partial(_key, "obs")
    if not isinstance(outer, spaces.Dict):
        if not _can_unflatten(whole):
            return None
        steps = [Undo(whole, partial(unflatten, whole))]
    return [*steps, Undo(inner, pick, loses=True)]


def _time_feature(_wrapper: Any, inner: spaces.Space[Any], outer: spaces.Space[Any]) -> list[Undo] | None:
    # this wrapper writes the longer space into the environment it wraps: the shorter one is worked out from its own
    if isinstance(outer, spaces.Box):
        return [Undo(_shorter(outer), _without_last, loses=True)]
    observation = outer.spaces.get("observation") if isinstance(outer, spaces.Dict) else None
    if isinstance(outer, spaces.Dict) and isinstance(observation, spaces.Box):
        shorter = spaces.Dict({**outer.spaces, "observation": _shorter(observation)})
        return [Undo(shorter, _observation_without_last, loses=True)]
    return None


def _rescale(_wrapper: Any, inner: spaces.Space[Any], outer: spaces.Space[Any]) -> list[Undo] | None:
    if not isinstance(inner, spaces.Box) or not isinstance(outer, spaces.Box):
        return None
    low, high, new_low, new_high = (side.astype(np.float64) for side in (inner.low, inner.high, outer.low, outer.high))
    finite = np.isfinite(low) & np.isfinite(high)
    scale, shift = np.ones_like(low), np.zeros_like(low)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(finite, (high - low) / (new_high - new_low), scale)
        shift = np.where(np.isfinite(low), low - scale * new_low, np.where(np.isfinite(high), high - new_high, shift))
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        return None
    return [Undo(inner, partial(_affine, th.as_tensor(scale).float(), th.as_tensor(shift).float()))]


def _history(wrapper: Any, _inner: spaces.Space[Any], outer: spaces.Space[Any]) -> list[Undo] | None:
    # like the time feature's, this wrapper's inner space is overwritten; its observation is all observations, then all actions
    start, end = len(wrapper.low_obs) * (wrapper.horizon - 1) // wrapper.horizon, len(wrapper.low_obs)
    if not isinstance(outer, spaces.Box):
        return None
    space = spaces.Box(outer.low[start:end], outer.high[start:end], dtype=outer.dtype.type)
    return [Undo(space, partial(_columns, start, end), loses=True)]


def _filter(_wrapper: Any, inner: spaces.Space[Any], outer: spaces.Space[Any]) -> list[Undo] | None:
    # what was filtered out is gone: whoever needs it finds its key missing, and is tried on the outer observation next
    return [Undo(inner, _as_it_is)] if isinstance(inner, spaces.Dict) and isinstance(outer, spaces.Dict) else None


def _reshape(_wrapper: Any, inner: spaces.Space[Any], _outer: spaces.Space[Any]) -> list[Undo] | None:
    return [Undo(inner, partial(unflatten, inner))] if isinstance(inner, spaces.Box) else None


def _vec_frame_stack(wrapper: Any, inner: spaces.Space[Any], _outer: spaces.Space[Any]) -> list[Undo] | None:
    stacked = wrapper.stacked_obs
    if isinstance(inner, spaces.Dict):
        parts = {
            key: (part.repeat_axis, tuple(inner[key].shape or ())) for key, part in stacked.sub_stacked_observations.items()
        }
        return [Undo(inner, partial(_newest_of_each, parts))]
    return [Undo(inner, partial(_newest_along, stacked.repeat_axis, tuple(inner.shape or ())))]


def _vec_transpose(wrapper: Any, inner: spaces.Space[Any], _outer: spaces.Space[Any]) -> list[Undo]:
    if wrapper.skip:
        return []
    keys = tuple(wrapper.image_space_keys) if isinstance(inner, spaces.Dict) else None
    return [Undo(inner, partial(_channels_last, keys))]


_UNDO: dict[str, Callable[[Any, spaces.Space[Any], spaces.Space[Any]], list[Undo] | None]] = {
    "FlattenObservation": _flatten,
    "FrameStackObservation": _frame_stack,
    "FrameStack": _frame_stack,
    "TimeAwareObservation": _time_aware,
    "TimeFeatureWrapper": _time_feature,
    "RescaleObservation": _rescale,
    "ReshapeObservation": _reshape,
    "FilterObservation": _filter,
    "HistoryWrapper": _history,
    "VecFrameStack": _vec_frame_stack,
    "VecTransposeImage": _vec_transpose,
}


def _can_unflatten(space: spaces.Space[Any]) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(_can_unflatten(part) for part in parts)
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def _newest(axis: int, batch: Batch) -> Batch:
    """The last frame of a stack whose first axis, behind the rows, is time."""
    if isinstance(batch, dict):
        return {key: _newest(axis, value) for key, value in batch.items()}
    return batch[:, axis]


def _newest_along(axis: int, shape: tuple[int, ...], batch: th.Tensor) -> th.Tensor:
    """The last frame of a stack that was joined along an axis: 0 or -1 of the observation."""
    dim = 1 if axis == 0 else batch.dim() - 1
    size = shape[axis]
    return batch.narrow(dim, batch.shape[dim] - size, size)


def _newest_of_each(parts: dict[str, tuple[int, tuple[int, ...]]], batch: Batch) -> Batch:
    return {key: _newest_along(*parts[key], value) for key, value in batch.items()}


def _columns(start: int, end: int, batch: th.Tensor) -> th.Tensor:
    return batch[:, start:end]


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _key(key: str, batch: Batch) -> Batch:
    return batch[key]


def _keys(keys: tuple[str, ...], batch: Batch) -> Batch:
    return {key: batch[key] for key in keys}


def _without_last(batch: th.Tensor) -> th.Tensor:
    return batch[..., :-1]


def _observation_without_last(batch: Batch) -> Batch:
    return {**batch, "observation": batch["observation"][..., :-1]}


def _shorter(space: spaces.Box) -> spaces.Box:
    return spaces.Box(space.low[..., :-1], space.high[..., :-1], dtype=space.dtype.type)


def _affine(scale: th.Tensor, shift: th.Tensor, batch: th.Tensor) -> th.Tensor:
    return batch.to(th.float32) * scale.to(batch.device) + shift.to(batch.device)


def _channels_last(keys: tuple[str, ...] | None, batch: Batch) -> Batch:
    if keys is None:
        return batch.permute(0, 2, 3, 1)
    return {key: value.permute(0, 2, 3, 1) if key in keys else value for key, value in batch.items()}
