"""What an action was worth: the advantage, from returns of which a fitted value of the state has been subtracted.

Generalised advantage estimation (Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
Estimation"). With e_t = G_t − V(s_t), the temporal-difference error is e_t − γ e_{t+1}, whatever the rewards, so that

    A_t = e_t − γ e_{t+1} + γ λ A_{t+1},      A_T = e_T at the last step T of an episode.

λ = 1 gives e_t itself, the whole rest of the episode: unbiased whatever V is, and noisy, and a player who has become better
does better for the rest of the episode whatever this action was. λ = 0 looks one step ahead and trusts V for all the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

ADVANTAGE_TRACE = 0.6
"""λ of the judgement of rules. Chosen on three environments of ``python -m sb3_nser.bench rules``: at 1 a rule's lift drowns
in what happens later, at 0 the errors of V are taken for the rule's merit."""


def advantages(errors: ArrayLike, episode_ids: ArrayLike, gamma: float, trace: float) -> NDArray[np.float64]:
    """
    :param errors: return-to-go less the value of the state, e, shape (N,); rows of an episode together and in order
    :param episode_ids: episode of each row, shape (N,)
    :param gamma: discount of the returns, in [0, 1]
    :param trace: λ in [0, 1]; higher looks further ahead, with more noise and less bias
    :return: advantages A, float64 of shape (N,)
    """
    e: NDArray[np.float64] = np.array(errors, np.float64)
    out: NDArray[np.float64] = np.array(e)
    if not len(e) or trace == 1.0:
        return out
    ids = np.asarray(episode_ids)
    follows = ids[1:] == ids[:-1]
    out[:-1] -= gamma * e[1:] * follows
    starts = np.flatnonzero(np.concatenate([[True], ~follows]))
    lengths = np.diff(np.append(starts, len(e)))
    decay = gamma * trace
    # backwards, all episodes at once: those that have a step ``back`` before their last
    order = np.argsort(-lengths, kind="stable")
    last, longest = (starts + lengths - 1)[order], -lengths[order]
    for back in range(1, int(lengths.max())):
        rows = last[: np.searchsorted(longest, -back, side="left")] - back
        out[rows] += decay * out[rows + 1]
    return out
