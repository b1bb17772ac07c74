"""Episodes whose best action is known, for inducers that learn from data."""

from __future__ import annotations

import numpy as np

from sb3_nser.induction import InductionRequest
from sb3_nser.induction.episodes import Experience
from sb3_nser.rules.schema import reply_schema
from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary


def _column(name: str):
    return lambda now, later: now[name]


def words(actions: ActionSet) -> Vocabulary:
    def number(name: str, **more: object) -> Feature:
        return Feature(name, "number", name, _column(name), **more)  # type: ignore[arg-type]

    return Vocabulary(
        "lab",
        "Do what pays.",
        (
            number("heat", low=-1.0, high=1.0),
            number("noise"),
            Feature("ahead", "category", "what is ahead", _column("ahead"), values=("wall", "door", "key")),
            Feature("armed", "boolean", "whether it is armed", _column("armed")),
            number("constant"),
            number("aftermath", uses_next=True),
        ),
        actions,
    )


DISCRETE = words(ActionSet(("left", "right", "open")))
CONTINUOUS = words(ActionSet(("force", "spin"), (-2.0, 0.0), (2.0, 1.0)))


def experience(
    vocabulary: Vocabulary, episodes: int = 60, length: int = 40, seed: int = 0, rewarded: bool = True
) -> Experience:
    """
    ``open`` pays at a door, ``right`` where heat > 0.2, ``left`` where it is not; continuous: force > 0 where heat > 0.2, and
    force < 0 where it is not. ``aftermath`` is the reward itself, which no rule about states may use.
    """
    rng = np.random.default_rng(seed)
    n = episodes * length
    heat, ahead = rng.uniform(-1, 1, n), rng.integers(0, 3, n)
    if vocabulary.actions.continuous:
        actions = np.stack([rng.uniform(-2, 2, n), rng.uniform(0, 1, n)], axis=1).astype(np.float32)
        good = (actions[:, 0] > 0) == (heat > 0.2)
    else:
        actions = rng.integers(0, 3, n)
        good = actions == np.where(ahead == 1, 2, np.where(heat > 0.2, 1, 0))
    gain = good.astype(float)
    returns = gain + rng.normal(0, 0.5, n) + 0.5 * heat if rewarded else np.zeros(n)
    columns = {
        "heat": heat,
        "noise": rng.normal(0, 1, n),
        "ahead": ahead,
        "armed": rng.integers(0, 2, n),
        "constant": np.ones(n),
        "aftermath": gain,
    }
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    return Experience(columns, actions, returns, returns, np.repeat(np.arange(episodes), length))


def question(vocabulary: Vocabulary, seen: Experience, number: int = 0, most: int = 6, **schema: object) -> InductionRequest:
    form = reply_schema(vocabulary, most, **schema)  # type: ignore[arg-type]
    return InductionRequest(number, 1_000, (), form, most, "free", vocabulary, seen)
