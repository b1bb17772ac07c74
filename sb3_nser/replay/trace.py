"""Credit spreads backwards: ``S_t ← max(S_t, ψ S_{t+1})`` within an episode (our own choice)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sb3_nser.replay.records import FloatArray

TRACE_FLOOR = 1e-6
"""What has faded below this is not spread any further."""

BoolArray = npt.NDArray[np.bool_]


def reach(decay: float) -> float:
    """
    :param decay: ψ in [0, 1]
    :return: how many steps back a score of 1 is felt (infinite for ψ = 1)
    """
    if decay <= 0.0:
        return 0.0
    return math.inf if decay >= 1.0 else math.log(TRACE_FLOOR) / math.log(decay)


def spread_back(scores: FloatArray, ends: BoolArray, decay: float) -> FloatArray:
    """
    The trace over consecutive steps, in logarithmically many array operations: after the passes with distances
    1, 2, 4 … 2^k every distance up to 2^(k+1) − 1 has been seen, and a pass that changes nothing makes later ones idle.

    :param scores: S, shape ``(steps, n_envs)``, in time order
    :param ends: whether the episode ended with that step, same shape
    :param decay: ψ in [0, 1]
    :return: the spread scores, same shape
    """
    out: FloatArray = scores.copy()
    if decay <= 0.0 or not out.any():
        return out
    episode: npt.NDArray[np.int64] = np.cumsum(ends, axis=0) - ends
    distance = 1
    while distance < len(out) and decay**distance >= TRACE_FLOOR:
        credit = decay**distance * out[distance:]
        credit[(credit < TRACE_FLOOR) | (episode[:-distance] != episode[distance:])] = 0.0
        earlier = out[:-distance]
        better = credit > earlier
        if not better.any():
            break
        earlier[better] = credit[better]
        distance *= 2
    return out


def carry_back(first: FloatArray, before: FloatArray, ends: BoolArray, decay: float) -> FloatArray:
    """
    Take the score of one step back over steps that were scored earlier.

    :param first: spread score of the step that follows them, shape ``(n_envs,)``
    :param before: their scores, already spread among themselves, shape ``(steps, n_envs)``
    :param ends: whether the episode ended with that step, same shape
    :param decay: ψ in [0, 1]
    :return: their new scores, same shape
    """
    linked = ~np.logical_or.accumulate(ends[::-1], axis=0)[::-1]
    powers = decay ** np.arange(len(before), 0, -1, dtype=np.float64)
    credit = powers[:, None] * first[None, :]
    credit[(credit < TRACE_FLOOR) | ~linked] = 0.0
    np.maximum(before, credit, out=credit)
    return credit
