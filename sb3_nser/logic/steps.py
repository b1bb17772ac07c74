"""Quantifiers over the earlier steps of an episode, for many rows at once.

For the row of step t of an episode and a reach of h steps, with a_j the truth of the body at step j:

    exists within h steps:   (1/n Σ a_jᵖ)^(1/p)             over the n = min(t, h) steps j = t − n, ..., t − 1
    forall within h steps:   1 − (1/n Σ (1 − a_j)ᵖ)^(1/p)   over the same

The step itself does not count. At the first step, where n = 0, the one is false and the other true. The sums over a window
are built from sums over 1, 2, 4, ... steps, without a subtraction, since a small aᵖ would vanish beside a large one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch as th
from numpy.typing import ArrayLike

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic.operators import EPSILON


@dataclass(frozen=True)
class Steps:
    """
    Which rows of a batch are steps of one episode. Use ``Steps.of``.

    :param episodes: number of the episode, int64, shape (N,)
    :param before: how many earlier steps of it are in the batch, int64, shape (N,)
    :param stride: rows from one step of an episode to its next
    :param longest: steps of the longest episode
    """

    episodes: th.Tensor
    before: th.Tensor
    stride: int
    longest: int

    @classmethod
    def of(cls, episodes: ArrayLike, stride: int = 1, device: th.device | str = "cpu") -> Steps:
        """
        :param episodes: number of each row's episode, shape (N,); the rows of one episode follow each other in time
        :param stride: rows from one step to the next: 1, or the number of environments if their steps alternate
        :param device: where the rows are
        :raises ConfigurationError: if the rows of an episode do not follow each other
        """
        numbers = np.asarray(episodes)
        if numbers.ndim != 1 or stride < 1 or len(numbers) % stride:
            raise ConfigurationError(f"episodes must have shape (N,), a multiple of stride={stride}; got {numbers.shape}.")
        ids = np.unique(numbers, return_inverse=True)[1].astype(np.int64)
        table = ids.reshape(-1, stride)
        begins = np.ones(table.shape, dtype=bool)
        begins[1:] = table[1:] != table[:-1]
        if len(ids) and begins.sum() != ids.max() + 1:
            raise ConfigurationError("the rows of an episode must follow each other: sort them by episode and step.")
        return cls._made(ids, begins, stride, device)

    @classmethod
    def _made(cls, ids: np.ndarray, begins: np.ndarray, stride: int, device: th.device | str) -> Steps:
        number = np.arange(len(begins))[:, None]
        before = number - np.maximum.accumulate(np.where(begins, number, 0), axis=0)
        longest = int(before.max()) + 1 if before.size else 0
        return cls(th.from_numpy(ids).to(device), th.from_numpy(before.ravel()).to(device), stride, longest)

    def take(self, index: th.Tensor) -> Steps:
        """:return: the steps of some rows, whose index rises; what is left out does not count as an earlier step"""
        if self.stride != 1:
            raise ConfigurationError("rows of alternating environments cannot be picked out one by one.")
        return Steps.of(self.episodes[index].cpu().numpy(), device=self.episodes.device)

    def exists(self, truths: th.Tensor, reach: int, p: float) -> th.Tensor:
        """
        :param truths: truth of the body at each row, in [0, 1], shape (N,)
        :param reach: how many steps back, at least 1
        :param p: exponent of the mean, 1 to 64
        :return: truth that it held at an earlier step, shape (N,)
        """
        # in float64 even (1e-4)^64 is far from the smallest number
        powers = ((1.0 - EPSILON) * truths.double() + EPSILON) ** p
        count = self.before.clamp(max=reach)
        some = count > 0
        mean = th.where(some, self._past_sum(powers, reach), 1.0) / count.clamp(min=1)
        return th.where(some, mean ** (1.0 / p), 0.0).to(truths.dtype)

    def forall(self, truths: th.Tensor, reach: int, p: float) -> th.Tensor:
        """:return: truth that it held at every earlier step within reach, shape (N,)"""
        return 1.0 - self.exists(1.0 - truths, reach, p)

    def _past_sum(self, values: th.Tensor, reach: int) -> th.Tensor:
        reach = min(reach, self.longest - 1)
        total = th.zeros_like(values)
        block, size, done = values, 1, 0  # block: sum over the ``size`` steps that end with a row
        while size <= reach:
            if reach & size:
                total = total + self._back(block, done + 1)
                done += size
            if 2 * size <= reach:
                block = block + self._back(block, size)
            size *= 2
        return total

    def _back(self, values: th.Tensor, steps: int) -> th.Tensor:
        """The value of the row some steps earlier, 0 where that is another episode."""
        rows = steps * self.stride
        if rows >= len(values):
            return th.zeros_like(values)
        same = self.episodes[rows:] == self.episodes[:-rows]
        return th.nn.functional.pad(th.where(same, values[:-rows], 0.0), (rows, 0))
