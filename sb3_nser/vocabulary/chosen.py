"""The vocabulary of an environment with its wrappers seen through."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_nser.errors import ConfigurationError, NSERError, UnsupportedError, warn_user
from sb3_nser.vocabulary.automatic import automatic_actions
from sb3_nser.vocabulary.batches import Batch
from sb3_nser.vocabulary.env_view import EnvView, Level, look_through
from sb3_nser.vocabulary.features import Vocabulary
from sb3_nser.vocabulary.registry import GENERIC, attributes_of, build, check_reads, name_of, refused, vocabulary_for


def vocabulary_of(env: Any, vocabulary: str | Vocabulary = "auto") -> Vocabulary:
    """
    The vocabulary with which rules will speak of an environment, whatever it is wrapped in.

    Known wrappers are undone: of stacked frames the newest is read, flattened and one-hot observations are taken apart,
    rescaled observations and actions keep the units of the environment. Where a wrapper cannot be looked through, a vocabulary
    that was chosen by the id gives way to the automatic one, with a warning.

    :param env: a Gymnasium environment or a Stable-Baselines3 ``VecEnv``
    :param vocabulary: ``auto`` takes the vocabulary registered for the environment's id, else the automatic one; a name takes
        that one, also above wrappers that cannot be looked through; a ``Vocabulary`` is used as it is, on stored observations
    :return: a vocabulary that reads the stored observations (before VecNormalize)
    :raises ConfigurationError: if the name is unknown, or ``env`` is no environment
    :raises UnsupportedError: if the vocabulary cannot read the observations
    """
    if not isinstance(env, (gym.Env, VecEnv)):
        raise ConfigurationError(
            f"env={env!r:.80} must be an environment, such as gymnasium.make('CartPole-v1'), not a {type(env).__name__}."
        )
    view = look_through(env)
    if isinstance(vocabulary, Vocabulary):
        return vocabulary_for(view.stored, view.outer_actions, view.env_id, vocabulary)
    name = name_of(vocabulary, view.env_id)
    if name == GENERIC:
        return _automatic(view)
    by_id = vocabulary == "auto"
    hidden = [wrapper for wrapper in view.opaque if wrapper.same_form]
    if hidden:
        wrapper = hidden[0]
        what = f"the wrapper {wrapper.name} {wrapper.why}, so the names and units of vocabulary {name!r} may not hold above it"
        cure = _CURES.get(wrapper.name, f"if it leaves their meaning alone, say so with vocabulary={name!r}")
        if by_id:
            try:
                automatic = _automatic(view)
            except NSERError:
                raise UnsupportedError(f"{what}, and there are no automatic ones for {view.stored}; {cure}.") from None
            warn_user(f"{what}: numbers are named by their position instead. {cure[:1].upper()}{cure[1:]}.")
            return automatic
        if wrapper.name in _CURES:
            raise UnsupportedError(f"Vocabulary {name!r} cannot be used here: {what}; {cure}.")
    try:
        seen = _named(view, name, by_id)
        if by_id and view.doubtful:
            warn_user(
                f"the wrapper {view.doubtful[0]} runs in another process, where it is out of reach: vocabulary {name!r} is "
                f"used as if it left observations and actions alone. If it does, say so with vocabulary={name!r}; if not, "
                f"give vocabulary={GENERIC!r}."
            )
        return seen
    except UnsupportedError as error:
        why = f"It was chosen for the environment id {view.env_id!r}. " if by_id else ""
        refusal = refused(name, error, view.stored, view.outer_actions, why)
        if not by_id or not view.opaque:
            raise refusal from error
        try:
            automatic = _automatic(view)
        except NSERError:
            raise refusal from error
        wrapper = view.opaque[0]
        warn_user(
            f"the wrapper {wrapper.name} {wrapper.why}, and vocabulary {name!r} cannot read what it gives "
            f"({str(error).rstrip('. ')}): numbers are named by their position instead."
        )
        return automatic


_CURES = {"NormalizeObservation": "use Stable-Baselines3's VecNormalize instead, beneath which rules see the raw numbers"}


def _named(view: EnvView, name: str, by_id: bool) -> Vocabulary:
    """:raises UnsupportedError: what the vocabulary has to say against the stored observation"""
    attributes = view.read(attributes_of(name))
    for level in reversed(view.levels):
        for actions, automatic in _action_choices(view, by_id):
            try:
                built = build(name, level.space, actions, view.env_id, attributes)
                if automatic:
                    built = dataclasses.replace(built, actions=automatic_actions(view.outer_actions))
                seen = _through(built, level)
                check_reads(seen, view.stored, view.outer_actions)
            except UnsupportedError as error:
                refusal = error
                continue
            if automatic:
                wrapper = view.opaque_actions[0]
                warn_user(
                    f"the wrapper {wrapper.name} {wrapper.why}, so actions are called {', '.join(seen.actions.names[:3])}"
                    f"{', ...' if len(seen.actions.names) > 3 else ''} instead of by their names in vocabulary {name!r}."
                )
            return seen
    raise refusal


def _action_choices(view: EnvView, by_id: bool) -> list[tuple[spaces.Space[Any], bool]]:
    """:return: action spaces to build with, the best first, and whether the actions then need automatic names"""
    if not view.opaque_actions:
        return [(view.actions, False)]
    trusted = not by_id or not any(wrapper.same_form for wrapper in view.opaque_actions)
    choices = [(view.outer_actions, False)] if trusted else []
    return [*choices, (view.actions, True)]


def _automatic(view: EnvView) -> Vocabulary:
    """The automatic vocabulary of the innermost observation that has everything the stored one has."""
    actions = view.outer_actions if view.opaque_actions else view.actions
    refusal: NSERError | None = None
    for level in reversed([level for level in view.levels if not level.loses]):
        try:
            seen = _through(build(GENERIC, level.space, actions, view.env_id), level)
            check_reads(seen, view.stored, view.outer_actions)
            return seen
        except (UnsupportedError, ConfigurationError) as error:
            refusal = error
    assert refusal is not None  # the stored observation is always among the levels
    raise refusal


def _through(vocabulary: Vocabulary, level: Level) -> Vocabulary:
    if not level.undo:
        return vocabulary
    return dataclasses.replace(vocabulary, decode=_Through(level, vocabulary.decode))


@dataclass(frozen=True)
class _Through:
    """Undoes the wrappers, then decodes."""

    level: Level
    decode: Callable[[Batch], Any] | None

    def __call__(self, stored: Batch) -> Any:
        batch = self.level(stored)
        return batch if self.decode is None else self.decode(batch)
