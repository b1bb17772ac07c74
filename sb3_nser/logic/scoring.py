"""A rule bank as a function on what a replay buffer holds."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch as th

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic.bank import RuleBank
from sb3_nser.logic.frozen import FrozenBank
from sb3_nser.logic.steps import Steps
from sb3_nser.vocabulary.batches import Batch, rows_of
from sb3_nser.vocabulary.features import Vocabulary


class Scorer(Protocol):
    """``(observations, next_observations, stored_actions) -> scores``; see ``scorer``."""

    def __call__(
        self,
        observations: Batch,
        next_observations: Batch,
        stored_actions: np.ndarray,
        episodes: np.ndarray | None = None,
        n_envs: int = 1,
    ) -> np.ndarray: ...


def scorer(bank: RuleBank, vocabulary: Vocabulary, *, use_avoid: bool = False, chunk: int = 65_536) -> Scorer:
    """
    The bank as a function on what a replay buffer holds.

    :param bank: the rules, with the parameters they have now
    :param vocabulary: the vocabulary they were grounded in
    :param use_avoid: count ``avoid`` rules through their complement
    :param chunk: rows per call, which bounds memory; rules that speak of earlier steps are given all rows in one
    :return: ``(observations, next_observations, stored_actions) -> scores``, float32 of shape (N,), in [0, 1]; observations
        are raw, actions as stored (scaled to [-1, 1] if continuous). If ``bank.history`` is not 0 it also needs ``episodes``,
        the number of each row's episode, shape (N,), and ``n_envs``, the rows from one step of an episode to its next;
        earlier steps that are not among the rows do not count
    """
    frozen = FrozenBank(bank, use_avoid) if FrozenBank.fits(bank) else None
    device = bank.confidence_logit.device

    @th.no_grad()
    def scores(
        observations: Batch,
        next_observations: Batch,
        stored_actions: np.ndarray,
        episodes: np.ndarray | None = None,
        n_envs: int = 1,
    ) -> np.ndarray:
        rows = len(stored_actions)
        out = np.zeros(rows, np.float32)
        if not bank.rules:
            return out
        steps = None
        if bank.history:
            if episodes is None:
                raise ConfigurationError("the rules speak of earlier steps: give the number of each row's episode (episodes).")
            steps = Steps.of(episodes, n_envs, device)
        for start in range(0, rows, rows if steps else chunk):
            part = slice(start, start + (rows if steps else chunk))
            later = None if next_observations is None else rows_of(next_observations, part)
            features = vocabulary.evaluate(rows_of(observations, part), later, bank.names)
            actions = vocabulary.actions.from_buffer(stored_actions[part])
            if frozen is not None:
                out[part] = frozen.score(features, actions)
            else:
                score = bank.score(features, th.from_numpy(actions), use_avoid=use_avoid, steps=steps)
                out[part] = score.cpu().numpy()
        return out

    return scores
