"""A rule bank as a function on what a replay buffer holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch as th

from sb3_nser.logic.bank import RuleBank
from sb3_nser.logic.frozen import FrozenBank
from sb3_nser.vocabulary.batches import Batch, rows_of
from sb3_nser.vocabulary.features import Vocabulary

Scorer = Callable[[Batch, Batch, np.ndarray], np.ndarray]


def scorer(bank: RuleBank, vocabulary: Vocabulary, *, use_avoid: bool = False, chunk: int = 65_536) -> Scorer:
    """
    The bank as a function on what a replay buffer holds.

    :param bank: the rules, with the parameters they have now
    :param vocabulary: the vocabulary they were grounded in
    :param use_avoid: count ``avoid`` rules through their complement
    :param chunk: rows per call, which bounds memory
    :return: ``(observations, next_observations, stored_actions) -> scores``, float32 of shape (N,), in [0, 1]; observations
        are raw, actions as stored (scaled to [-1, 1] if continuous)
    """

    frozen = FrozenBank(bank, use_avoid) if FrozenBank.fits(bank) else None

    @th.no_grad()
    def scores(observations: Batch, next_observations: Batch | None, stored_actions: np.ndarray) -> np.ndarray:
        rows = len(stored_actions)
        out = np.zeros(rows, np.float32)
        if not bank.rules:
            return out
        for start in range(0, rows, chunk):
            part = slice(start, start + chunk)
            later = None if next_observations is None else rows_of(next_observations, part)
            features = vocabulary.evaluate(rows_of(observations, part), later, bank.feature_names)
            actions = vocabulary.actions.from_buffer(stored_actions[part])
            if frozen is not None:
                out[part] = frozen.score(features, actions)
            else:
                out[part] = bank.score(features, th.from_numpy(actions), use_avoid=use_avoid).numpy()
        return out

    return scores
