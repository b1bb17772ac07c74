"""The vocabulary of Blackjack.

Stable-Baselines3 cannot store its Tuple observation; flattened, or as three numbers, it can.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.batches import Batch, unflatten
from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.parts import column, discrete_actions, flag

ACTIONS = ("stick", "hit")
"""Blackjack's actions in index order."""

_PARTS = spaces.Tuple([spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2)])


def blackjack_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    Blackjack: the player's sum, the dealer's card, and whether an ace counts as 11.

    :param observation_space: the Tuple of 32, 11 and 2 values beneath a wrapper; or one-hot codes of 45 numbers, as
        ``gymnasium.wrappers.FlattenObservation`` makes them; or MultiDiscrete([32, 11, 2])
    :param action_space: Discrete(2)
    :param env_id: not used
    :raises UnsupportedError: if the spaces are others
    """
    if isinstance(observation_space, spaces.Tuple):
        fits = [getattr(part, "n", None) for part in observation_space.spaces] == [32, 11, 2]
    elif isinstance(observation_space, spaces.MultiDiscrete):
        fits = observation_space.nvec.tolist() == [32, 11, 2]
    else:
        fits = isinstance(observation_space, (spaces.Box, spaces.MultiBinary)) and observation_space.shape == (45,)
    if not fits:
        raise UnsupportedError(
            "the Blackjack vocabulary reads the observation as gymnasium.wrappers.FlattenObservation gives it (45 one-hot "
            f"numbers) or as MultiDiscrete([32, 11, 2]), but found {observation_space}."
        )
    return Vocabulary(
        name="blackjack",
        task=(
            "Win at Blackjack: come closer to 21 than the dealer without going over it. Sticking ends the episode and the "
            "dealer draws up to 17; winning gives 1, a draw 0, losing or going over 21 gives -1."
        ),
        features=(
            Feature("player_sum", "number", "sum of the player's cards", partial(column, 0), low=4.0, high=31.0),
            Feature(
                "dealer_card", "number", "value of the dealer's open card, 1 is an ace", partial(column, 1), low=1.0, high=10.0
            ),
            flag("usable_ace", 2, "yes if the player has an ace that counts as 11"),
        ),
        actions=discrete_actions("Blackjack", action_space, ACTIONS),
        decode=_three_numbers,
    )


def _three_numbers(batch: Batch) -> th.Tensor:
    """The observation in any of its forms as a tensor of shape (N, 3)."""
    if not isinstance(batch, tuple):
        batch = batch.reshape(len(batch), -1)
        if batch.shape[1] == 3:
            return th.as_tensor(batch)
        batch = unflatten(_PARTS, batch)
    return th.cat([part.reshape(len(part), 1) for part in batch], 1)
