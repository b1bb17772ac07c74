"""Small immutable records that cross the border of the replay room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Observations = Any
"""An array, or a dictionary of arrays where the observation space is a Dict; all of the same length."""


@dataclass(frozen=True)
class SampleInfo:
    """
    What was drawn by the last ``sample()`` call, and how.

    :param indices: flat slots ``row * n_envs + env``, int64, shape ``(batch_size,)``, read-only
    :param probabilities: chance of each slot in one draw, float64 in ``(0, 1]``, same shape
    :param weights: importance weights divided by their maximum, float64 in ``(0, 1]``, same shape
    :param newest: serial number of the newest row at that time
    :param rows: rows of the buffer
    :param n_envs: transitions of a row
    :param learner_weights: the weights as the learner needs them, float32 on the CPU; None where all are 1
    """

    indices: IntArray
    probabilities: FloatArray
    weights: FloatArray
    newest: int
    rows: int
    n_envs: int
    learner_weights: th.Tensor | None

    @classmethod
    def of(
        cls, indices: IntArray, probabilities: FloatArray, weights: FloatArray | None, newest: int, rows: int, n_envs: int
    ) -> SampleInfo:
        """
        :param weights: None for all 1; the other parameters are those of the class
        """
        if weights is None:
            return cls(indices, probabilities, np.ones(len(indices)), newest, rows, n_envs, None)
        learner_weights = th.from_numpy(weights.astype(np.float32))
        return cls(indices, probabilities, weights, newest, rows, n_envs, learner_weights)

    @cached_property
    def env_indices(self) -> IntArray:
        """The environment of each transition, int64, shape ``(batch_size,)``."""
        return self.indices % self.n_envs

    @cached_property
    def generations(self) -> IntArray:
        """Which writing of its slot each was; ``update_priorities`` uses it to drop late news. int64, same shape."""
        return self.newest - (self.newest - self.indices // self.n_envs) % self.rows


@dataclass(frozen=True)
class Transitions:
    """
    Transitions as they are stored: raw observations (before VecNormalize), actions as the algorithm stored them
    (SAC and TD3 store them scaled to [-1, 1]).

    :param observations: shape ``(n, *observation_shape)``, dtype of the observation space; for a Dict space a dictionary
        with one such array per key
    :param next_observations: the same; at an episode's end the true last observation
    :param actions: shape ``(n, action_dim)``
    :param rewards: float32, shape ``(n,)``
    :param dones: float32, shape ``(n,)``: 1 where the episode ended, time limits included
    :param timeouts: float32, shape ``(n,)``: 1 where it ended by a time limit
    :param episodes: given to a scorer that asked for a history (``set_scorer``): a number for each row's episode, int64, shape
        ``(n,)``. The rows are consecutive steps then, each with all environments, so that the same environment's next step
        follows ``n_envs`` rows later; else None, and the rows are in any order
    :param n_envs: number of environments
    """

    observations: Observations
    next_observations: Observations
    actions: Array
    rewards: Array
    dones: Array
    timeouts: Array
    episodes: IntArray | None = None
    n_envs: int = 1


@dataclass(frozen=True)
class Episode:
    """
    One whole episode that is still in the buffer.

    :param indices: its flat slots ``row * n_envs + env`` in time order, int64, shape ``(length,)``
    :param truncated: whether a time limit ended it
    :param env: the environment it was played in
    """

    indices: IntArray
    truncated: bool
    env: int


Scorer = Callable[[Transitions], Array]
"""Rule scores of transitions: shape ``(n,)``, numbers in [0, 1]; those of earlier steps that it asked for too."""
