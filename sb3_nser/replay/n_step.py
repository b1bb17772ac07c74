"""n-step returns as SB3's ``NStepReplayBuffer`` computes them, for given rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sb3_nser.replay.records import IntArray
from sb3_nser.replay.trace import BoolArray

Float32Array = npt.NDArray[np.float32]


def steps_taken(stops: BoolArray) -> IntArray:
    """
    How many of the next steps a return sums up: to the first stop, which counts itself, or all of them.

    :param stops: whether nothing may be summed beyond a step, shape ``(m, n_steps)``
    :return: numbers in ``[1, n_steps]``, shape ``(m,)``
    """
    taken: IntArray = np.where(stops.any(axis=1), stops.argmax(axis=1) + 1, stops.shape[1]).astype(np.int64)
    return taken


def discounted(rewards: Float32Array, taken: IntArray, gamma: float) -> tuple[Float32Array, Float32Array]:
    """
    The return of the steps taken, and the factor of the value that follows them. In float32 and in SB3's own order of
    operations, so that the numbers are the same to the last bit.

    :param rewards: shape ``(m, n_steps)``; what lies beyond the steps taken is ignored
    :param taken: shape ``(m,)``
    :param gamma: discount of one step, in [0, 1]
    :return: ``Σ γ^k r_k`` and ``γ^taken``, each of shape ``(m, 1)``
    """
    steps = np.arange(rewards.shape[1]).reshape(1, -1)
    powers = gamma ** steps.astype(np.float32)
    returns = (np.where(steps < taken[:, None], rewards, 0) * powers).sum(axis=1, keepdims=True)
    return returns.astype(np.float32), (gamma ** taken[:, None].astype(np.float32)).astype(np.float32)
