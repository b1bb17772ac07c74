"""Which vocabulary belongs to which environment: the shipped ones, the automatic one, and users' own."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError, NSERError, UnsupportedError
from sb3_nser.vocabulary.batches import Batch
from sb3_nser.vocabulary.features import Vocabulary

Builder = Callable[..., Vocabulary]
"""Takes observation space, action space and environment id (None if unknown), and as keywords the attributes of the
environment it was registered with; returns a vocabulary that reads these spaces."""

GENERIC = "generic"
"""Name of the automatic vocabulary, which names numbers by their position."""

_N_SAMPLES = 8  # rows on which a vocabulary is tried before training


@dataclass(frozen=True)
class _Entry:
    builder: Builder
    env_ids: tuple[str, ...]
    attributes: tuple[str, ...] = ()


_entries: dict[str, _Entry] = {}


def register_vocabulary(name: str, builder: Builder, env_ids: Sequence[str] = (), attributes: Sequence[str] = ()) -> None:
    """
    Make a vocabulary known by name and, if patterns are given, by environment id.

    A name registered twice keeps the later builder. Where several patterns match an id, the vocabulary registered
    last is taken, so that users' own go before the shipped ones.

    :param name: the name users give as ``vocabulary="..."``
    :param builder: called with observation space, action space and environment id (None if unknown); it raises
        ``UnsupportedError`` if it cannot read the space
    :param env_ids: shell-style patterns of environment ids, for example ``"MiniGrid-*"``; the ``namespace/`` of an id
        is ignored
    :param attributes: names of attributes of the innermost environment that the builder takes as keyword arguments, for
        example FrozenLake's map ``desc``. A keyword is left out where the environment is not at hand, lacks the attribute, or
        where several environments differ in it; so give it a default in the builder.
    :raises ConfigurationError: if the name is empty or ``auto``, ``env_ids`` or ``attributes`` is a plain string, or the
        builder does not take an attribute
    """
    if not isinstance(name, str) or not name.strip() or name == "auto":
        raise ConfigurationError(f"vocabulary name {name!r} cannot be used: give a word of your own that is not 'auto'.")
    if isinstance(env_ids, str):
        raise ConfigurationError(f"env_ids={env_ids!r} must be a list of patterns; write env_ids=[{env_ids!r}].")
    if isinstance(attributes, str):
        raise ConfigurationError(f"attributes={attributes!r} must be a list of names; write attributes=[{attributes!r}].")
    if not callable(builder):
        raise ConfigurationError(
            f"the builder of vocabulary {name!r} must be a function of (observation_space, action_space, env_id), "
            f"got {type(builder).__name__}."
        )
    taken = inspect.signature(builder).parameters if attributes else {}
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        for attribute in attributes:
            if attribute not in taken:
                raise ConfigurationError(
                    f"the builder of vocabulary {name!r} must take {attribute!r}, which attributes= asks for: give it a "
                    f"parameter {attribute}=None."
                )
    _entries.pop(name, None)  # a later registration goes to the end, and so before the earlier ones
    _entries[name] = _Entry(builder, tuple(env_ids), tuple(attributes))


def registered() -> tuple[str, ...]:
    """:return: the names of all known vocabularies, sorted."""
    return tuple(sorted(_entries))


def vocabulary_for(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    env_id: str | None = None,
    vocabulary: str | Vocabulary = "auto",
) -> Vocabulary:
    """
    The vocabulary with which rules will speak of an environment.

    :param observation_space: the space of raw observations, as the replay buffer stores them
    :param action_space: the environment's action space
    :param env_id: the Gymnasium id, see ``env_id_of``; a ``namespace/`` is ignored
    :param vocabulary: ``auto`` takes the vocabulary registered for the id, else the automatic one; a name takes that
        one; a ``Vocabulary`` is used as it is
    :return: a vocabulary that has been tried on this space
    :raises ConfigurationError: if the name is unknown
    :raises UnsupportedError: if the vocabulary cannot read the space
    """
    if isinstance(vocabulary, Vocabulary):
        check_reads(vocabulary, observation_space, action_space)
        return vocabulary
    name = name_of(vocabulary, env_id)
    try:
        built = build(name, observation_space, action_space, env_id)
    except UnsupportedError as error:
        if name == GENERIC:
            raise
        why = f"It was chosen for the environment id {env_id!r}. " if vocabulary == "auto" else ""
        raise refused(name, error, observation_space, action_space, why) from error
    check_reads(built, observation_space, action_space)
    return built


def name_of(vocabulary: str, env_id: str | None) -> str:
    """
    :param vocabulary: ``auto`` or the name of a vocabulary
    :param env_id: the environment's id, None if unknown
    :return: the name of the vocabulary that is meant
    :raises ConfigurationError: if it is not known
    """
    if not isinstance(vocabulary, str):
        raise ConfigurationError(
            f"vocabulary={vocabulary!r} must be 'auto', the name of a vocabulary, or a Vocabulary, "
            f"not a {type(vocabulary).__name__}."
        )
    if vocabulary == "auto":
        return _name_for(_short(env_id))
    if vocabulary not in _entries:
        raise ConfigurationError(_unknown_name(vocabulary))
    return vocabulary


def build(
    name: str,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    env_id: str | None,
    attributes: Mapping[str, Any] | None = None,
) -> Vocabulary:
    """
    :param attributes: of the innermost environment, as far as they are known
    :return: what the named vocabulary's builder makes of the spaces
    :raises UnsupportedError: if it cannot read them
    """
    return _entries[name].builder(observation_space, action_space, _short(env_id), **(attributes or {}))


def attributes_of(name: str) -> tuple[str, ...]:
    """:return: the attributes of the environment that the named vocabulary's builder takes"""
    return _entries[name].attributes


def env_ids_of(name: str) -> tuple[str, ...]:
    """:return: the patterns of environment ids for which the named vocabulary is taken"""
    return _entries[name].env_ids


def refused(
    name: str, error: Exception, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], why: str = ""
) -> UnsupportedError:
    """:return: the error that says which vocabulary cannot be used, why, and what to do"""
    reason = str(error).rstrip(". ")
    way_out = _way_out(observation_space, action_space)
    return UnsupportedError(f"Vocabulary {name!r} cannot be used here: {reason}. {why}{way_out}")


def _short(env_id: str | None) -> str | None:
    return re.split(r"[/:]", env_id)[-1] if env_id else None


def _way_out(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> str:
    own = "register one of your own with register_vocabulary()."
    try:
        _entries[GENERIC].builder(observation_space, action_space, None)
    except NSERError:
        return f"To go on, change the wrapper that made the space, or {own}"  # the automatic one cannot read it either
    return f"To go on, change the wrapper that made the space, give vocabulary={GENERIC!r} for the automatic one, or {own}"


def _name_for(short_id: str | None) -> str:
    if short_id is not None:
        for name, entry in reversed(_entries.items()):
            if any(fnmatchcase(short_id, pattern) for pattern in entry.env_ids):
                return name
    return GENERIC


def _unknown_name(name: str) -> str:
    return f"vocabulary={name!r} is not known.{closest(name.lower(), registered())} Known: auto, {', '.join(registered())}."


def check_reads(vocabulary: Vocabulary, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    """:raises UnsupportedError: if it cannot read drawn observations, or names other actions than there are"""
    _check_actions(vocabulary, action_space)
    rows = _sample_rows(observation_space)
    try:
        vocabulary.evaluate(rows, rows)
    except Exception as error:
        raise UnsupportedError(
            f"Vocabulary {vocabulary.name!r} cannot read observations of the space {observation_space}: "
            f"{str(error).rstrip('. ')}. {_way_out(observation_space, action_space)}"
        ) from error


def _check_actions(vocabulary: Vocabulary, action_space: spaces.Space[Any]) -> None:
    names = vocabulary.actions.names
    if isinstance(action_space, spaces.Discrete):
        fits, wanted = not vocabulary.actions.continuous and len(names) == int(action_space.n), f"{action_space.n} actions"
    elif isinstance(action_space, spaces.Box):
        size = int(np.prod(action_space.shape))
        fits, wanted = vocabulary.actions.continuous and len(names) == size, f"{size} continuous dimensions"
    else:
        raise UnsupportedError(f"action space {action_space} is not supported: rules speak of Discrete or Box actions.")
    if not fits:
        named = f"{len(names)} {'dimensions' if vocabulary.actions.continuous else 'actions'} ({', '.join(names)})"
        raise UnsupportedError(
            f"Vocabulary {vocabulary.name!r} names {named}, but the environment has {wanted}; give it an ActionSet that fits."
        )


def _sample_rows(space: spaces.Space[Any]) -> Batch:
    if isinstance(space, spaces.Dict):
        rows = {key: _sample_rows(part) for key, part in space.spaces.items()}
        return {key: part for key, part in rows.items() if isinstance(part, dict) or part.dtype.kind in "biuf"}  # no texts
    if isinstance(space, spaces.Tuple):
        raise UnsupportedError(
            "Tuple observations are not supported, by Stable-Baselines3 neither: wrap the environment in "
            "gymnasium.wrappers.FlattenObservation, or pick one part of the observation."
        )
    private = copy.deepcopy(space)  # the environment's own random stream stays as it is
    private.seed(0)
    try:
        return np.stack([np.asarray(private.sample()) for _ in range(_N_SAMPLES)])
    except (OverflowError, ValueError):  # limits too wide to draw between
        if not isinstance(space, spaces.Box):
            raise
        row = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
        return np.stack([row] * _N_SAMPLES)
