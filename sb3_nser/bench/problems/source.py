"""A recorded problem as a source of episodes, in the arrays that a replay buffer would hold."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError
from sb3_nser.vocabulary import Vocabulary, vocabulary_for

VERSION = 1
"""Version of the set of problems; numbers of different versions do not compare."""
HALVES = ("development", "report")
_FOLDER = files("sb3_nser.bench.problems") / f"v{VERSION}"


@dataclass(frozen=True)
class RecordedEpisode:
    """
    :param indices: its transitions, in order
    :param truncated: True if a time limit ended it
    """

    indices: np.ndarray
    truncated: bool


@dataclass(frozen=True)
class RecordedRows:
    """Transitions as a replay buffer stores them: raw observations, continuous actions scaled to [-1, 1]."""

    observations: np.ndarray
    next_observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray


@dataclass(frozen=True)
class Problem:
    """
    One recorded environment.

    :param name: short name
    :param env_id: Gymnasium id
    :param half: ``development`` or ``report``
    :param gamma: discount of the returns
    :param vocabulary: the shipped vocabulary of the environment
    :param episodes: those that rules are learnt from and judged on
    :param fresh: those that only measure what came of it
    :param rows: all transitions
    """

    name: str
    env_id: str
    half: str
    gamma: float
    vocabulary: Vocabulary
    episodes: tuple[RecordedEpisode, ...]
    fresh: tuple[RecordedEpisode, ...]
    rows: RecordedRows

    def source(self, fresh: bool = False) -> RecordedSource:
        """
        :param fresh: True for the fresh episodes, False for the others
        :return: what a replay buffer with these episodes would answer
        """
        return RecordedSource(self.rows, self.fresh if fresh else self.episodes)


@dataclass(frozen=True)
class RecordedSource:
    """An ``EpisodeSource``.

    :param rows: all transitions
    :param episodes: in the order in which they happened
    """

    rows: RecordedRows
    episodes: tuple[RecordedEpisode, ...]

    def complete_episodes(self, max_transitions: int | None = None) -> Sequence[RecordedEpisode]:
        """:return: newest first, at most so many transitions, at least one episode"""
        taken: list[RecordedEpisode] = []
        total = 0
        for episode in reversed(self.episodes):
            total += len(episode.indices)
            if taken and max_transitions is not None and total > max_transitions:
                break
            taken.append(episode)
        return taken

    def transitions(self, indices: np.ndarray) -> RecordedRows:
        """:return: those transitions"""
        rows = self.rows
        return RecordedRows(
            rows.observations[indices], rows.next_observations[indices], rows.actions[indices], rows.rewards[indices]
        )


def problem_names(half: str | None = None) -> tuple[str, ...]:
    """
    :param half: ``development``, ``report``, or None for both
    :return: the problems in their fixed order
    """
    return tuple(name for name, about in _index().items() if half in (None, about["half"]))


def load_problem(name: str) -> Problem:
    """
    :param name: one of ``problem_names()``
    :raises ConfigurationError: if there is no such problem, or its file is not the one that belongs to this version
    """
    index = _index()
    if name not in index:
        raise ConfigurationError(f"there is no induction problem {name!r}.{closest(name, index)} Known: {', '.join(index)}.")
    about = index[name]
    data = (_FOLDER / f"{name}.npz").read_bytes()
    if hashlib.sha256(data).hexdigest() != about["sha256"]:
        raise ConfigurationError(
            f"the recorded episodes of {name!r} are not those of version {VERSION} (their sha256 differs); install sb3-nser "
            "again."
        )
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    return _problem(name, about, arrays)


def _problem(name: str, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Problem:
    lengths = arrays["lengths"].astype(np.int64)
    ends = np.cumsum(lengths)
    # of T + 1 observations per episode the first T are seen before an action, the last T after one
    before = np.arange(ends[-1]) + np.repeat(np.arange(len(lengths)), lengths)
    observation_space, action_space = _space("observation", arrays), _space("action", arrays)
    observations = arrays["observations"].astype(observation_space.dtype)
    if isinstance(observation_space, spaces.Discrete):
        observations = observations[:, None]
    actions = arrays["actions"]
    if isinstance(action_space, spaces.Box):
        low, high = action_space.low.astype(np.float64), action_space.high.astype(np.float64)
        actions = (2.0 * (actions.astype(np.float64) - low) / (high - low) - 1.0).astype(np.float32)
    else:
        actions = actions.astype(np.int64)[:, None]
    episodes = [
        RecordedEpisode(np.arange(end - length, end), bool(cut))
        for end, length, cut in zip(ends, lengths, arrays["truncated"], strict=True)
    ]
    marked = list(zip(episodes, arrays["fresh"], strict=True))
    kept = [tuple(episode for episode, fresh in marked if fresh == side) for side in (False, True)]
    vocabulary = vocabulary_for(observation_space, action_space, about["env_id"])
    rows = RecordedRows(observations[before], observations[before + 1], actions, arrays["rewards"])
    return Problem(name, about["env_id"], about["half"], float(about["gamma"]), vocabulary, kept[0], kept[1], rows)


def _space(name: str, arrays: dict[str, np.ndarray]) -> spaces.Space[Any]:
    if f"{name}_n" in arrays:
        return spaces.Discrete(int(arrays[f"{name}_n"]))
    low, high = arrays[f"{name}_low"], arrays[f"{name}_high"]
    return spaces.Box(low, high, dtype=low.dtype.type)


def _index() -> dict[str, dict[str, Any]]:
    content = json.loads((_FOLDER / "index.json").read_text(encoding="utf-8"))
    problems: dict[str, dict[str, Any]] = content["problems"]
    return problems
