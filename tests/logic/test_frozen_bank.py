"""The bank in NumPy that scores a replay buffer says what the differentiable one says."""

import numpy as np
import pytest
import torch as th

from sb3_nser.logic import RuleBank, scorer
from sb3_nser.logic.bank import SCORE_FLOOR
from sb3_nser.logic.frozen import FrozenBank
from sb3_nser.rules import parse_rule
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

FEATURES = (
    Feature("angle", "number", "tilt", lambda o, _: o[:, 0]),
    Feature("speed", "number", "speed", lambda o, _: o[:, 1]),
    Feature("open", "boolean", "whether the door is open", lambda o, _: o[:, 2]),
    Feature("front", "category", "what is in front", lambda o, _: o[:, 3], values=("nothing", "key", "wall")),
)
DISCRETE = Vocabulary("grid", "reach the goal", FEATURES, ActionSet(("left", "right", "stay")))
CONTINUOUS = Vocabulary("pendulum", "swing up", FEATURES, ActionSet(("torque",), low=(-2.0,), high=(2.0,)))
BODIES = (
    "angle > 0.1 AND NOT speed > 1",
    "front is key",
    "front is not key AND open is yes AND angle < 0.5",
    "NOT open is yes AND speed < 0.3",
    "angle between -0.5 and 0.3 AND front in {key, wall}",
    "speed about 0.5 AND front not in {nothing, wall} AND angle between -2 and 2",
)


@pytest.mark.parametrize("use_avoid", [False, True])
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_frozen_scores_are_those_of_the_bank(rows: int, kind: str, use_avoid: bool) -> None:
    vocabulary, heads = (DISCRETE, ("left", "right", "avoid stay", "left", "right", "stay"))
    if kind == "continuous":
        vocabulary, heads = (CONTINUOUS, ("torque > 0.5", "torque < -0.5", "avoid torque > 1", "torque > -1") * 2)
    bank = RuleBank([parse_rule(f"IF {b} THEN {h}") for b, h in zip(BODIES, heads, strict=False)], vocabulary, {"speed": 2.0})
    rng = np.random.default_rng(rows)
    columns = [rng.normal(size=rows), rng.normal(size=rows), rng.integers(0, 2, rows), rng.integers(0, 3, rows)]
    observations = np.stack(columns, axis=1).astype(np.float32)
    observations[rng.random(observations.shape) < 0.05] = np.nan
    observations[rng.random(observations.shape) < 0.05] = np.inf
    stored = rng.integers(0, 3, (rows, 1)) if kind == "discrete" else rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    actions = th.from_numpy(vocabulary.actions.from_buffer(stored))
    expected = bank.score(vocabulary.evaluate(observations), actions, use_avoid=use_avoid).detach().numpy()
    found = scorer(bank, vocabulary, use_avoid=use_avoid)(observations, None, stored)
    near_floor = np.abs(found - expected) > 1e-5  # rounding decides on which side of the floor a strength lies
    assert np.all(np.abs(found - expected)[near_floor] <= 1.1 * SCORE_FLOOR) and near_floor.sum() <= rows * 1e-3
    assert found.dtype == np.float32


def test_other_tnorms_and_rules_without_a_condition_keep_to_the_bank() -> None:
    rule = parse_rule("IF angle > 0.1 THEN left")
    assert FrozenBank.fits(RuleBank([rule], DISCRETE, {}))
    assert FrozenBank.fits(RuleBank([parse_rule(f"IF {body} THEN left") for body in BODIES], DISCRETE, {}))
    assert not FrozenBank.fits(RuleBank([rule], DISCRETE, {}, tnorm="goedel"))
    for body in ("angle > 0 OR speed > 0", "NOT angle about 0", "NOT angle between 0 and 1", "exists earlier (angle > 0)"):
        assert not FrozenBank.fits(RuleBank([parse_rule(f"IF {body} THEN left")], DISCRETE, {}))
    assert not FrozenBank.fits(RuleBank([], DISCRETE, {}))
