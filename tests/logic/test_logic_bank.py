"""The stacked rules say the same as each rule worked out by hand, on any input."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic import RuleBank, build_bank, scales_from, scorer
from sb3_nser.logic.bank import SCORE_FLOOR
from sb3_nser.rules import Entry, Rule, RuleBook, parse_rule
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

FEATURES = (
    Feature("angle", "number", "tilt", lambda o, _: o[:, 0], low=-1.0, high=3.0),
    Feature("speed", "number", "speed", lambda o, _: o[:, 1]),
    Feature("open", "boolean", "whether the door is open", lambda o, _: o[:, 2]),
    Feature("front", "category", "what is in front", lambda o, _: o[:, 3], values=("nothing", "key", "wall")),
)
GRID = Vocabulary("grid", "reach the goal", FEATURES, ActionSet(("left", "right", "stay")))
PENDULUM = Vocabulary("pendulum", "swing up", FEATURES, ActionSet(("torque",), low=(-2.0,), high=(2.0,)))
SCALES = {"angle": 0.5, "speed": 2.0}
TEXTS = [
    "IF angle > 0.1 AND NOT speed > 1 THEN left",
    "IF front is key THEN right",
    "IF front is not key AND open is yes AND angle < 0.5 THEN stay",
    "IF NOT open is yes AND speed < 0.3 THEN avoid left",
]


def rules(*texts: str) -> list[Rule]:
    return [parse_rule(text) for text in texts]


def batch(rows: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    columns = (rng.normal(size=rows), rng.normal(size=rows), rng.integers(0, 2, rows), rng.integers(0, 3, rows))
    return np.stack(columns, axis=1).astype(np.float32), rng.integers(0, 3, rows)


def by_hand(rule: Rule, row: np.ndarray, tnorm: str) -> float:
    truths = []
    for literal in rule.literals:
        x = float(row[[feature.name for feature in FEATURES].index(literal.feature)])
        if isinstance(literal.value, float):
            z = (x - literal.value) / (0.1 * SCALES[literal.feature])
            truth = 1 / (1 + math.exp(-(z if literal.op == ">" else -z)))
        else:
            truth = 0.9999 if x == GRID[literal.feature].code(literal.value) else 0.0001
        truths.append(1 - truth if literal.negated else truth)
    if tnorm == "product":
        return math.prod(truths)
    return min(truths) if tnorm == "goedel" else max(0.0, sum(truths) - len(truths) + 1)


@pytest.mark.parametrize("tnorm", ["product", "goedel", "lukasiewicz"])
def test_the_stack_equals_a_slow_reference(tnorm: str) -> None:
    some = rules(*TEXTS)
    rows, actions = batch()
    bank = RuleBank(some, GRID, SCALES, tnorm)
    features = GRID.evaluate(rows)
    expected = np.array([[by_hand(rule, row, tnorm) for rule in some] for row in rows])
    np.testing.assert_allclose(bank.body(features).detach().numpy(), expected, atol=2e-6)
    heads = np.array([[GRID.actions.names[a] == rule.head.action for rule in some] for a in actions])
    strength = expected * heads
    np.testing.assert_allclose(bank.firing_strength(features, actions).detach().numpy(), strength, atol=2e-6)
    strength[strength <= SCORE_FLOOR] = 0.0
    plain = np.clip(0.5 * strength[:, :3].sum(1), 0, 1)
    np.testing.assert_allclose(bank.score(features, actions).detach().numpy(), plain, atol=2e-6)
    complement = expected[:, 3] * ~heads[:, 3]
    complement[complement <= SCORE_FLOOR] = 0.0
    with_avoid = bank.score(features, actions, use_avoid=True).detach().numpy()
    np.testing.assert_allclose(with_avoid, np.clip(plain + 0.5 * complement, 0, 1), atol=2e-6)


def test_rows_that_do_not_fire_score_exactly_zero() -> None:
    """Else the ε of a false category, summed over a million rows, would outweigh the few rows that fire."""
    rows, actions = batch(500)
    scores = RuleBank(rules(TEXTS[1]), GRID, SCALES).score(GRID.evaluate(rows), actions)
    fires = (rows[:, 3] == 1) & (actions == 1)
    assert bool((scores[~fires] == 0).all()) and bool((scores[fires] > 0.49).all())


def test_the_order_of_rules_does_not_matter() -> None:
    rows, actions = batch()
    forward = RuleBank(rules(*TEXTS), GRID, SCALES).score(GRID.evaluate(rows), actions)
    backward = RuleBank(rules(*reversed(TEXTS)), GRID, SCALES).score(GRID.evaluate(rows), actions)
    th.testing.assert_close(forward, backward)


def test_contradictory_rules_keep_scores_finite() -> None:
    """C25: raise and lower in the same states; scores depend on the action taken, in either order."""
    rows, actions = batch()
    pair = rules("IF angle > 0.1 THEN left", "IF angle > 0.1 THEN right")
    one = scorer(RuleBank(pair, GRID, SCALES), GRID)(rows, None, actions[:, None])
    two = scorer(RuleBank(pair[::-1], GRID, SCALES), GRID)(rows, None, actions[:, None])
    np.testing.assert_array_equal(one, two)
    assert np.isfinite(one).all() and one.min() >= 0 and one.max() <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.floats(width=32), st.sampled_from([0.0, 3.4e38, -3.4e38])), min_size=4, max_size=4))
def test_any_number_gives_a_finite_truth_and_a_finite_gradient(row: list[float]) -> None:
    """C40: infinities, 3.4e38, NaN."""
    for tnorm in ("product", "goedel", "lukasiewicz"):
        bank = RuleBank(rules(*TEXTS), GRID, {}, tnorm)
        features = GRID.evaluate(np.array([row], np.float64))
        body = bank.body(features)
        assert bool(th.isfinite(body).all()) and bool((body >= 0).all()) and bool((body <= 1).all())
        body.sum().backward()
        assert bank.theta.grad is not None and bool(th.isfinite(bank.theta.grad).all())
        assert bank.log_tau.grad is not None and bool(th.isfinite(bank.log_tau.grad).all())


def test_nan_satisfies_no_condition() -> None:
    features = GRID.evaluate(np.full((1, 4), np.nan, np.float32))
    assert bool((RuleBank(rules(*TEXTS), GRID, SCALES).body(features) < 1e-3).all())


def test_float64_rows_give_the_same_truth() -> None:
    rows, _ = batch()
    bank = RuleBank(rules(*TEXTS), GRID, SCALES)
    th.testing.assert_close(
        bank.body(GRID.evaluate(rows)), bank.body(GRID.evaluate(rows.astype(np.float64))), atol=1e-6, rtol=0
    )


def test_scales() -> None:
    """C40: infinite limits, constant features, wild values."""
    rng = np.random.default_rng(0)
    features = {
        "normal": th.tensor(rng.normal(0, 3, 5000)),
        "wild": th.tensor(np.r_[rng.normal(0, 3, 5000), [np.inf, -np.inf, np.nan, 3.4e38]]),
        "constant": th.full((100,), 7.0),
        "empty": th.zeros(0),
        "rare": th.tensor([0.0] * 99 + [1.0]),
    }
    scales = scales_from(features)
    assert set(scales) == {"normal", "wild", "rare"}
    assert scales["normal"] == pytest.approx(3.0, rel=0.1) and scales["wild"] == pytest.approx(3.0, rel=0.1)
    bank = RuleBank(rules("IF angle > 0 AND speed > 0 THEN left"), GRID, {})
    assert bank.scale.tolist() == [4.0, 1.0]  # the stated range, and 1 where there is none


def test_stored_actions_are_unscaled_before_the_head_is_read() -> None:
    """C22: SAC stores 0.9 where a torque of 1.8 was applied; 'torque > 1.5' holds there."""
    bank = RuleBank(rules("IF angle > -9 THEN torque > 1.5").copy(), PENDULUM, SCALES)
    scores = scorer(bank, PENDULUM)(batch(3)[0], None, np.array([[0.9], [0.5], [-0.9]], np.float32))
    assert scores[0] > 0.45 and scores[1] < 1e-3 and scores[2] == 0.0
    match = bank.match(PENDULUM.actions.from_buffer(np.array([[0.9], [0.75], [0.5]]))).detach()
    assert float(match[0, 0]) > 0.95 and float(match[1, 0]) == pytest.approx(0.5) and float(match[2, 0]) < 0.01
    assert bool(th.isfinite(bank.match(np.array([[np.inf], [np.nan]], np.float32))).all())


def test_gradients_reach_every_parameter() -> None:
    rows, _ = batch()
    bank = RuleBank(rules("IF angle > 0.1 AND speed < 1 THEN torque > 0.5"), PENDULUM, SCALES)
    bank.score(PENDULUM.evaluate(rows), np.random.default_rng(0).uniform(-2, 2, (64, 1)).astype(np.float32)).sum().backward()
    for name, parameter in bank.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).all()), name


def test_fitted_values_travel_as_json() -> None:
    bank = RuleBank(rules(*TEXTS), GRID, SCALES)
    with th.no_grad():
        bank.theta.add_(0.3)
        bank.log_tau.sub_(0.5)
        bank.confidence_logit.add_(0.7)
    book = RuleBook(entries=[Entry(rule, "admitted", confidence=1.0) for rule in bank.rules])
    entries = [Entry(e.rule, "admitted", s["confidence"], fitted=s) for e, s in zip(book.entries, bank.state(), strict=True)]
    saved = json.dumps(RuleBook(entries=entries).to_dict())
    again = build_bank(RuleBook.from_dict(json.loads(saved)).entries, GRID, {})  # scales come from the fitted values
    rows, actions = batch()
    one = scorer(bank, GRID)(rows, None, actions[:, None])
    two = scorer(again, GRID)(rows, None, actions[:, None])
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_scoring_in_chunks_and_without_rules() -> None:
    rows, actions = batch(1000)
    bank = RuleBank(rules(*TEXTS), GRID, SCALES)
    whole, parts = scorer(bank, GRID), scorer(bank, GRID, chunk=7)
    np.testing.assert_allclose(whole(rows, None, actions[:, None]), parts(rows, rows, actions[:, None]), atol=1e-6)
    assert whole(rows[:0], None, actions[:0, None]).shape == (0,)
    empty = scorer(RuleBank([], GRID, {}), GRID)(rows, None, actions[:, None])
    assert empty.dtype == np.float32 and not empty.any()
    assert RuleBank([], GRID, {}).score(GRID.evaluate(rows), actions).shape == (1000,)


def test_mistakes_are_sentences() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be grounded in vocabulary 'grid': unknown feature 'angel'"):
        RuleBank(rules("IF angel > 0 THEN left"), GRID, {})
    bank = RuleBank(rules(TEXTS[0]), GRID, {})
    with pytest.raises(ConfigurationError, match="need the features speed"):
        bank.body({"angle": th.zeros(3)})
    with pytest.raises(ConfigurationError, match="1 rules need as many"):
        bank.load_state([])
    with pytest.raises(ConfigurationError, match="1 items for 2 conditions"):
        bank.load_state([{"theta": [1.0]}])
