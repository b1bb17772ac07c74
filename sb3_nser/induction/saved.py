"""Replay buffers of earlier runs as a source of episodes: those of SB3 itself, and ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl

from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.induction.data import EpisodeSource
from sb3_nser.replay.records import Episode, IntArray, Transitions

_NEEDED = (
    "observation_space action_space observations actions rewards dones timeouts pos full buffer_size n_envs "
    "optimize_memory_usage handle_timeout_termination"
).split()


class SavedEpisodes:
    """
    The whole episodes of a plain SB3 buffer, found from what it stores.

    An episode begins behind a ``done``, at the very first row, or where an observation does not continue the one before (SB3
    resets the environments at each ``learn()`` without marking it). Left out are the episode that still runs, the one whose
    beginning the ring has overwritten, and one that was cut by such a reset. With ``optimize_memory_usage`` a reset cannot be
    seen, and the last next observation of an episode is the first of the one that follows, as in SB3.

    :param buffer: an SB3 ``ReplayBuffer`` (or a subclass) with one array per quantity
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self._one_array = bool(buffer.optimize_memory_usage)
        size, full = buffer.size(), bool(buffer.full)
        first = buffer.pos if full else 0
        self._rows: IntArray = (first + np.arange(size, dtype=np.int64)) % buffer.buffer_size
        self._overwritten = full
        if full and self._one_array:
            self._rows = self._rows[1:]  # the oldest row has lost its own observation to the newest

    def complete_episodes(self, max_transitions: int | None = None) -> list[Episode]:
        """
        :param max_transitions: stop before this many are exceeded; the newest episode is always given
        :return: whole episodes, newest first
        """
        rows, buffer = self._rows, self.buffer
        if not len(rows):
            return []
        dones, timeouts = buffer.dones[rows] > 0, buffer.timeouts[rows] > 0
        breaks = self._breaks(rows) & ~dones
        found: list[tuple[int, int, int]] = []
        for env in range(buffer.n_envs):
            stops = np.flatnonzero(dones[:, env] | breaks[:, env])
            starts = np.concatenate([[0], stops[:-1] + 1]) if len(stops) else stops
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                whole = start > 0 or not self._overwritten
                if whole and dones[stop, env]:
                    found.append((stop, env, start))
        found.sort(reverse=True)
        episodes: list[Episode] = []
        total = 0
        for stop, env, start in found:
            total += stop + 1 - start
            if episodes and max_transitions is not None and total > max_transitions:
                break
            episodes.append(Episode(rows[start : stop + 1] * buffer.n_envs + env, bool(timeouts[stop, env]), env))
        return episodes

    def transitions(self, indices: IntArray) -> Transitions:
        """
        :param indices: flat slots ``row * n_envs + env``, shape ``(n,)``
        :return: the stored arrays of those transitions, raw
        """
        buffer = self.buffer
        rows, envs = np.divmod(np.asarray(indices, np.int64), buffer.n_envs)
        following = (
            _take(buffer.observations, (rows + 1) % buffer.buffer_size, envs)
            if self._one_array
            else _take(buffer.next_observations, rows, envs)
        )
        return Transitions(
            _take(buffer.observations, rows, envs),
            following,
            buffer.actions[rows, envs],
            buffer.rewards[rows, envs],
            buffer.dones[rows, envs],
            buffer.timeouts[rows, envs],
        )

    def _breaks(self, rows: IntArray) -> np.ndarray:
        """Whether the row that follows does not go on from this one, shape ``(len(rows), n_envs)``; False for the newest."""
        out = np.zeros((len(rows), self.buffer.n_envs), np.bool_)
        if self._one_array or len(rows) < 2:
            return out
        now, later = self.buffer.observations, self.buffer.next_observations
        pairs = [(now[key], later[key]) for key in now] if isinstance(now, dict) else [(now, later)]
        chunk = 4_096
        for begin in range(0, len(rows) - 1, chunk):
            here = rows[begin : min(begin + chunk, len(rows) - 1)]
            there = rows[begin + 1 : begin + 1 + len(here)]
            for first, second in pairs:
                reached, started = second[here], first[there]
                same = reached == started
                if reached.dtype.kind == "f":
                    same |= np.isnan(reached) & np.isnan(started)
                out[begin : begin + len(here)] |= ~same.reshape(*same.shape[:2], -1).all(axis=2)
        return out


def _take(array: Any, rows: IntArray, envs: IntArray) -> Any:
    return {key: one[rows, envs] for key, one in array.items()} if isinstance(array, dict) else array[rows, envs]


def load_buffer(path: str | os.PathLike[str]) -> ReplayBuffer:
    """
    Load what ``model.save_replay_buffer`` wrote, by SB3's own ``load_from_pkl``. **A pickle is a program: loading one runs
    what is in it.** Load only files that you, or people you trust, have written.

    :param path: the file; ``.pkl`` may be left out, as in SB3
    :return: the buffer
    :raises ConfigurationError: if there is no such file, it cannot be loaded, or it holds something else
    """
    file = Path(path)
    if not file.is_file() and not (file.name and file.with_suffix(".pkl").is_file()):
        raise ConfigurationError(
            f"buffer {str(path)!r} does not exist; give the file that model.save_replay_buffer(...) wrote."
        )
    try:
        found = load_from_pkl(file)
    except Exception as error:
        raise ConfigurationError(
            f"buffer {str(path)!r} cannot be loaded ({type(error).__name__}: {printable(error, 160)}); give the file that "
            "model.save_replay_buffer(...) wrote, and the packages whose classes it names."
        ) from None
    if not isinstance(found, ReplayBuffer):
        raise ConfigurationError(
            f"buffer {str(path)!r} holds a {type(found).__name__}, not a replay buffer; give the file that "
            "model.save_replay_buffer(...) wrote."
        )
    missing = [name for name in _NEEDED if not hasattr(found, name)]
    if missing:
        raise ConfigurationError(
            f"buffer {str(path)!r} holds a {type(found).__name__} without {', '.join(missing)}: it is damaged, or of another "
            "version of its class; give one that this version has written."
        )
    return found


def episodes_of(buffer: ReplayBuffer) -> EpisodeSource:
    """:return: the buffer as a source of whole episodes; ours know theirs, SB3's are searched"""
    if hasattr(buffer, "complete_episodes") and hasattr(buffer, "transitions"):
        return cast(EpisodeSource, buffer)
    return SavedEpisodes(buffer)
