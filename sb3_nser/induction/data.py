"""From the replay buffer to columns: whole episodes, named features, returns-to-go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sb3_nser.induction.episodes import Experience
from sb3_nser.rules import discounted_returns
from sb3_nser.vocabulary import Vocabulary


class _Episode(Protocol):
    @property
    def indices(self) -> np.ndarray: ...
    @property
    def truncated(self) -> bool: ...


class _Transitions(Protocol):
    @property
    def observations(self) -> np.ndarray: ...
    @property
    def next_observations(self) -> np.ndarray: ...
    @property
    def actions(self) -> np.ndarray: ...
    @property
    def rewards(self) -> np.ndarray: ...


class EpisodeSource(Protocol):
    """What is asked of a replay buffer."""

    def complete_episodes(self, max_transitions: int | None = None) -> Sequence[_Episode]:
        """:return: whole episodes, newest first"""
        ...

    def transitions(self, indices: np.ndarray) -> _Transitions:
        """:return: raw stored arrays of those transitions"""
        ...


def returns_to_go(rewards: np.ndarray, gamma: float, truncated: bool) -> np.ndarray:
    """
    Discounted return-to-go of one episode. An episode cut by a time limit is taken to go on at its own mean reward: otherwise
    the cut would look like a loss (or, with negative rewards, a gain) to whatever action is taken near it. Our own choice.

    :param rewards: shape (T,)
    :param gamma: discount in [0, 1]; with 1 nothing can be added behind a time limit
    :param truncated: True if a time limit ended the episode
    :return: float64 of shape (T,)
    """
    beyond = float(np.mean(rewards)) / (1.0 - gamma) if truncated and gamma < 1.0 else 0.0
    return discounted_returns(rewards, gamma, beyond)


def no_experience(vocabulary: Vocabulary) -> Experience:
    """:return: columns without rows"""
    columns = {feature.name: np.zeros(0, np.float32) for feature in vocabulary.features}
    shape = (0, len(vocabulary.actions.names)) if vocabulary.actions.continuous else (0,)
    return Experience(columns, np.zeros(shape), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))


def collect(
    source: EpisodeSource, vocabulary: Vocabulary, gamma: float, max_transitions: int, objects: Sequence[str] = ()
) -> Experience:
    """
    :param source: the replay buffer
    :param vocabulary: names for its raw observations
    :param gamma: the algorithm's discount
    :param max_transitions: most transitions, newest episodes first, at least one episode if there is one
    :param objects: features of objects to compute (see ``object_features``)
    :return: episodes in the order in which they happened; empty columns if no episode is complete
    """
    episodes = [
        episode
        for episode in source.complete_episodes(max_transitions)[::-1]
        if np.isfinite(source.transitions(episode.indices).rewards).all()  # a NaN reward says nothing about any rule
    ]
    if not episodes:
        return no_experience(vocabulary)
    lengths = np.array([len(episode.indices) for episode in episodes])
    rows = source.transitions(np.concatenate([episode.indices for episode in episodes]))
    names = [feature.name for feature in vocabulary.features]
    found = vocabulary.evaluate(rows.observations, rows.next_observations, [*names, *objects])
    columns = {name: column.numpy() for name, column in found.items()}
    rewards = np.asarray(rows.rewards, np.float64).reshape(-1)
    return Experience(
        {name: columns[name] for name in names},
        vocabulary.actions.from_buffer(rows.actions),
        rewards,
        np.concatenate(
            [
                returns_to_go(part, gamma, episode.truncated)
                for part, episode in zip(np.split(rewards, np.cumsum(lengths)[:-1]), episodes, strict=True)
            ]
        ),
        np.repeat(np.arange(len(episodes)), lengths),
        gamma,
        {name: columns[name] for name in objects},
    )
