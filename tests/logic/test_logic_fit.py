"""Fitting: thresholds move to where the effect is, confidences follow the data, and nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic import RuleBank, fit, scales_from
from sb3_nser.rules import parse_rule
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

FEATURES = tuple(Feature(name, "number", name, lambda o, _, i=i: o[:, i]) for i, name in enumerate(("x", "y", "z")))  # type: ignore[misc]
PUSH = Vocabulary("push", "", FEATURES, ActionSet(("left", "right")))
TURN = Vocabulary("turn", "", FEATURES, ActionSet(("torque",), low=(-2.0,), high=(2.0,)))


def world(rows: int = 10_000, seed: int = 0, effect: float = 0.8, threshold: float = 0.5):  # type: ignore[no-untyped-def]
    """Going right is good where x > threshold and makes no difference elsewhere; the state itself matters as well."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows, 3)).astype(np.float32)
    actions = rng.integers(0, 2, rows)
    returns = effect * (actions == 1) * (states[:, 0] > threshold) + states[:, 1] + 0.5 * states[:, 0] + rng.normal(size=rows)
    return PUSH.evaluate(states), actions, returns


def bank_of(*texts: str, vocabulary: Vocabulary = PUSH, confidence: float = 0.5) -> RuleBank:
    rules = [parse_rule(text).model_copy(update={"confidence": confidence}) for text in texts]
    return RuleBank(rules, vocabulary, {"x": 1.0, "y": 1.0, "z": 1.0})


@pytest.mark.parametrize("start", [-0.2, 0.0, 1.0, 1.2])
def test_a_badly_placed_threshold_moves_to_the_true_one(start: float) -> None:
    features, actions, returns = world()
    bank = bank_of(f"IF x > {start} THEN right")
    report = fit(bank, features, actions, returns)
    assert bank.theta[0].item() == pytest.approx(0.5, abs=0.15)
    assert report.gain_after[0] > report.gain_before[0]
    assert (
        report.z[0] > 5
        and 0.5 < report.effect[0] * np.std(returns - 0.5 * features["x"].numpy() - features["y"].numpy()) < 1.1
    )


def test_an_avoid_rule_learns_from_the_other_side() -> None:
    features, actions, returns = world()
    bank = bank_of("IF x > 0 THEN avoid left")
    fit(bank, features, actions, returns)
    assert bank.theta[0].item() == pytest.approx(0.5, abs=0.15) and bank.confidence[0].item() > 0.9


def test_a_continuous_head_moves_too() -> None:
    rng = np.random.default_rng(1)
    states = rng.normal(size=(10_000, 3)).astype(np.float32)
    torque = rng.uniform(-2, 2, (10_000, 1)).astype(np.float32)
    returns = 1.0 * (torque[:, 0] > 0.5) * (states[:, 0] > 0) + rng.normal(size=10_000)
    bank = bank_of("IF x > 0.4 THEN torque > 0.2", vocabulary=TURN)
    fit(bank, TURN.evaluate(states), torque, returns)
    assert bank.head_theta[0].item() == pytest.approx(0.5, abs=0.15)
    assert bank.theta[0].item() == pytest.approx(0.0, abs=0.2)


def test_confidence_follows_the_data() -> None:
    features, actions, returns = world()
    bank = bank_of("IF x > 0.5 THEN right", "IF x > 0.5 THEN left", "IF x > 99 THEN right")
    start = bank.theta.tolist()
    report = fit(bank, features, actions, returns)
    right, wrong, silent = report.confidence
    assert right > 0.9 and wrong < 0.05 and silent == pytest.approx(0.5, abs=1e-3)
    assert bank.theta.tolist()[1:] == start[1:]  # a wrong rule is not bent into another one
    for prior in (0.2, 0.8):
        few = [{name: column[:4] for name, column in features.items()}, actions[:4], returns[:4]]
        assert fit(bank_of("IF x > 9 THEN right", confidence=prior), *few).confidence[0] == pytest.approx(prior, abs=1e-3)


def test_no_reward_seen_leaves_everything_as_it_was() -> None:
    features, actions, _ = world(500)
    bank = bank_of("IF x > 0.3 THEN right", confidence=0.7)
    before = bank.state()
    report = fit(bank, features, actions, np.zeros(500))
    assert report.steps == 0 and bank.state() == before and report.confidence[0] == pytest.approx(0.7)


def test_the_data_s_noise_does_not_collapse_the_body() -> None:
    for seed in range(4):
        features, actions, returns = world(2000, seed=seed, effect=0.0)
        bank = bank_of("IF x > 0 AND y > 0 THEN right", "IF z < 0.5 THEN right")
        before = bank.body(features).mean(0)
        fit(bank, features, actions, returns)
        after = bank.body(features).mean(0)
        assert bool((after >= 0.25 * before).all())
        assert bool(((bank.theta - th.tensor([0.0, 0.0, 0.5])).abs() <= 1.5).all())
        assert bool((bank.log_tau.exp() >= 0.0199).all()) and bool((bank.log_tau.exp() <= 1.001).all())


def test_deterministic_and_alone() -> None:
    features, actions, returns = world(15_000)  # more rows than one fit uses
    threads, stream = th.get_num_threads(), th.get_rng_state()
    states = []
    for _ in range(2):
        bank = bank_of("IF x > 0 AND y > 0 THEN right")
        fit(bank, features, actions, returns, seed=3)
        states.append(bank.state())
    assert states[0] == states[1]
    assert th.get_num_threads() == threads and bool((th.get_rng_state() == stream).all())
    with th.no_grad():  # a caller's no_grad does not keep it from fitting
        bank = bank_of("IF x > 0 AND y > 0 THEN right")
        fit(bank, features, actions, returns, seed=3)
        assert bank.state() == states[0]


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("spread", [1e-12, 1.0, 1e12])
def test_never_nan(rows: int, spread: float) -> None:
    rng = np.random.default_rng(rows)
    states = rng.normal(size=(rows, 3)).astype(np.float32)
    states[rows // 2 :, 0] = np.inf
    states[: rows // 3, 1] = np.nan
    features = PUSH.evaluate(states)
    bank = RuleBank(
        [parse_rule("IF x > 0 AND y < 1 THEN right"), parse_rule("IF z > 0 THEN avoid left")], PUSH, scales_from(features)
    )
    report = fit(bank, features, rng.integers(0, 2, rows), spread * rng.normal(size=rows), episode_ids=np.zeros(rows))
    assert all(bool(th.isfinite(parameter).all()) for parameter in bank.parameters())
    assert np.isfinite([*report.effect, *report.z, *report.confidence]).all()


def test_confounding_by_the_state_is_removed() -> None:
    """The policy goes right in good states; going right does nothing."""
    rng = np.random.default_rng(5)
    states = rng.normal(size=(8000, 3)).astype(np.float32)
    actions = (rng.random(8000) < 1 / (1 + np.exp(-2 * states[:, 1]))).astype(int)
    returns = 3 * states[:, 1] + rng.normal(size=8000)
    report = fit(bank_of("IF x > 0 THEN right"), PUSH.evaluate(states), actions, returns)
    raw = returns[(states[:, 0] > 0) & (actions == 1)].mean() - returns[(states[:, 0] > 0) & (actions == 0)].mean()
    assert raw > 2 and abs(report.effect[0]) < 0.1


def test_mistakes_are_sentences() -> None:
    features, actions, returns = world(50)
    with pytest.raises(ConfigurationError, match="same number of rows"):
        fit(bank_of("IF x > 0 THEN right"), features, actions[:-1], returns)
    with pytest.raises(ConfigurationError, match="finite"):
        fit(bank_of("IF x > 0 THEN right"), features, actions, np.full(50, np.nan))
