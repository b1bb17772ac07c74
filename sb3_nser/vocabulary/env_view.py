"""Through the wrappers of an environment: what is stored, what lies beneath it, and what cannot be looked through."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper

from sb3_nser.errors import warn_user
from sb3_nser.vocabulary.batches import Batch
from sb3_nser.vocabulary.env_id import env_id_of
from sb3_nser.vocabulary.wrappers import (
    ACTION_WRAPPERS,
    OTHER_FORM,
    PLAIN,
    SAME_FORM,
    Opaque,
    Undo,
    inside,
    undo_action,
    undo_observation,
)

_MISSING = object()


@dataclass(frozen=True)
class Level:
    """
    An observation somewhere between the wrappers.

    :param space: its space
    :param undo: the steps that lead to it from the stored observation, in order
    :param loses: True if they lose something that is not merely older
    """

    space: spaces.Space[Any]
    undo: tuple[Undo, ...] = ()
    loses: bool = False

    def __call__(self, stored: Batch) -> Batch:
        """:return: the batch of this level, from a batch of stored observations"""
        for step in self.undo:
            stored = step.step(stored)
        return stored


@dataclass(frozen=True)
class EnvView:
    """
    What is known of an environment from outside.

    :param env: the environment or ``VecEnv`` that was looked at
    :param env_id: its id, None if unknown
    :param levels: observations that can be computed from the stored one, that one first, the innermost last
    :param opaque: observation wrappers that could not be looked through, outermost first
    :param actions: the actions as the innermost environment takes them; as the agent gives them if that is unknown
    :param outer_actions: the actions as the agent gives them
    :param opaque_actions: action wrappers that could not be looked through
    :param doubtful: unknown wrappers in another process that may or may not change observations or actions
    """

    env: Any
    env_id: str | None
    levels: tuple[Level, ...]
    opaque: tuple[Opaque, ...]
    actions: spaces.Space[Any]
    outer_actions: spaces.Space[Any]
    opaque_actions: tuple[Opaque, ...]
    doubtful: tuple[str, ...] = ()

    @property
    def stored(self) -> spaces.Space[Any]:
        """The space of the observations that a replay buffer stores."""
        return self.levels[0].space

    def read(self, names: Sequence[str]) -> dict[str, Any]:
        """
        :param names: attributes of the innermost environment
        :return: those that are there and the same in all environments of a ``VecEnv``; warns where they differ
        """
        found = {}
        for name in names:
            values = _attribute(self.env, name)
            if any(value is _MISSING for value in values) or not values:
                continue
            if all(_same(values[0], value) for value in values[1:]):
                found[name] = values[0]
            else:
                warn_user(
                    f"the environments of this VecEnv differ in {name!r}, so what depends on it gets no names: give all of "
                    "them the same one if rules should speak of it."
                )
        return found


def look_through(env: Any) -> EnvView:
    """
    :param env: a Gymnasium environment or a Stable-Baselines3 ``VecEnv``, wrapped or not
    :return: what its wrappers do, as far as that can be found out without running anything
    """
    level = Level(env.observation_space)
    levels, opaque, opaque_actions = [level], [], []
    remote = []
    actions = outer_actions = env.action_space
    for wrapper in _wrappers(env):
        if isinstance(wrapper, str):  # in another process, where only its name is known
            remote.append(wrapper)
            if wrapper in ACTION_WRAPPERS:
                opaque_actions.append(Opaque(wrapper, "runs in another process, where its limits are out of reach", True))
            elif wrapper in SAME_FORM | OTHER_FORM:
                opaque.append(Opaque(wrapper, "runs in another process, where it is out of reach", wrapper in SAME_FORM))
            continue
        undo = undo_observation(wrapper, level.space if not opaque else wrapper.observation_space)
        if isinstance(undo, Opaque):
            opaque.append(undo)
        elif not opaque:
            for step in undo:
                level = Level(step.space, (*level.undo, step), level.loses or step.loses)
                levels.append(level)
        inner_actions = undo_action(wrapper, actions)
        if isinstance(inner_actions, Opaque):
            opaque_actions.append(inner_actions)
            inner_actions = inside(wrapper).action_space
        actions = inner_actions
    return EnvView(
        env,
        env_id_of(env),
        tuple(levels),
        tuple(opaque),
        actions,
        outer_actions,
        tuple(opaque_actions),
        _doubtful(env, remote),
    )


def _doubtful(env: Any, remote: list[str]) -> tuple[str, ...]:
    """:return: unknown wrappers in another process, if one of them must be an observation or action wrapper"""
    unknown = tuple(name for name in remote if name not in PLAIN | SAME_FORM | OTHER_FORM | ACTION_WRAPPERS)
    if not unknown:
        return ()
    for kind, known in ((gym.ObservationWrapper, SAME_FORM | OTHER_FORM), (gym.ActionWrapper, ACTION_WRAPPERS)):
        if env.env_is_wrapped(kind, indices=0)[0] and not known & set(remote):
            return unknown
    return ()


def _wrappers(env: Any) -> Iterator[Any]:
    """:return: the wrappers from the outermost to the innermost; names only of those in another process"""
    while isinstance(env, VecEnvWrapper):
        yield env
        env = env.venv
    if isinstance(env, SubprocVecEnv):
        # a wrapper may not be picklable, and asking for it would end the worker; text always travels
        printed = str(env.env_method("__str__", indices=0)[0])
        names = re.findall(r"<([^<> ]+)(?=<)", printed)
        yield from names if " instance>" in printed else names[:-1]  # the last is the environment, if it has an id
        return
    if isinstance(env, DummyVecEnv):
        env = env.envs[0]
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env


def _attribute(env: Any, name: str) -> list[Any]:
    while isinstance(env, VecEnvWrapper):
        env = env.venv
    if isinstance(env, DummyVecEnv):
        return [getattr(one.unwrapped, name, _MISSING) for one in env.envs]
    if isinstance(env, VecEnv):
        return env.get_attr(name) if env.has_attr(name) else []
    return [getattr(getattr(env, "unwrapped", env), name, _MISSING)]


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)
    except Exception:  # what cannot be compared may differ
        return False
