"""Advantages and the value they are measured against, by explicit sums and on a chain whose value is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.logic.advantage import advantages
from sb3_nser.logic.baseline import Baseline
from sb3_nser.rules import discounted_returns


def by_hand(rewards: list[float], values: list[float], gamma: float, trace: float) -> list[float]:
    """Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V(s_{t+1}) − V(s_t), and V = 0 behind the end."""
    ahead = [*values[1:], 0.0]
    errors = [r + gamma * after - now for r, after, now in zip(rewards, ahead, values, strict=True)]
    return [sum((gamma * trace) ** (later - t) * errors[later] for later in range(t, len(errors))) for t in range(len(errors))]


numbers = st.floats(-10, 10, allow_nan=False)
episode = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)


@settings(deadline=None)
@given(st.lists(episode, min_size=1, max_size=5), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_discounted_sums_of_temporal_differences(
    episodes: list[list[tuple[float, float]]], gamma: float, trace: float
) -> None:
    errors, ids, expected = [], [], []
    for number, steps in enumerate(episodes):
        rewards, values = [r for r, _ in steps], [v for _, v in steps]
        errors += list(discounted_returns(rewards, gamma) - np.array(values))
        ids += [number] * len(steps)
        expected += by_hand(rewards, values, gamma, trace)
    np.testing.assert_allclose(advantages(errors, ids, gamma, trace), expected, atol=1e-8)


def test_the_ends_of_the_trace() -> None:
    errors, ids = [3.0, 1.0, 2.0, 5.0], [0, 0, 0, 1]
    assert advantages(errors, ids, 0.9, 1.0).tolist() == errors  # the whole rest of the episode
    assert advantages(errors, ids, 0.9, 0.0) == pytest.approx([3 - 0.9, 1 - 1.8, 2, 5])  # one step
    assert advantages([], [], 0.9, 0.5).shape == (0,)


def test_one_success_is_felt_along_the_way_of_the_failures() -> None:
    """
    Six cells in a row; most episodes are cut in the third, a few start there and reach the end, which pays 1. No episode that
    started in the first cell was ever paid, so their returns say 0; temporal differences join the two halves.
    """
    gamma, cells, returns, ids = 0.9, [], [], []
    for number in range(400):
        way, rewards = ([0, 1, 2], [0.0, 0.0, 0.0]) if number % 2 else ([2, 3, 4, 5], [0.0, 0.0, 0.0, 1.0])
        beyond = 0.0 if number % 2 == 0 else gamma**3 / gamma  # the cut episode goes on as it would have from there
        cells += way
        returns += list(discounted_returns(rewards, gamma, beyond if number % 2 else 0.0))
        ids += [number] * len(way)
    features = {"cell": th.tensor(cells, dtype=th.float32)}
    base = Baseline(features)
    design = base.design(features)
    value = (design @ base.value(design, np.array(returns), (ids, gamma)))[:, 0].numpy()
    for cell in range(6):
        assert value[np.array(cells) == cell][0] == pytest.approx(gamma ** (5 - cell), abs=0.08)


def test_without_a_discount_the_value_is_the_regression_of_the_returns() -> None:
    rng = np.random.default_rng(0)
    features = {"x": th.from_numpy(rng.normal(size=500).astype(np.float32))}
    base, returns = Baseline(features), rng.normal(size=500)
    design = base.design(features)
    assert th.allclose(base.value(design, returns), base.coefficients(design, th.from_numpy(returns)[:, None]))


def test_what_is_more_than_the_sum_of_its_parts_is_explained() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 2, (2, 4000))
    features = {
        "a": th.from_numpy(a).float(),
        "b": th.from_numpy(b).float(),
        "c": th.from_numpy(rng.normal(size=4000)).float(),
    }
    target = th.from_numpy((a != b) * 1.0)[:, None]
    base = Baseline(features)
    left = base.residual(base.design(features), target)
    assert float(left.square().mean()) < 0.02  # exclusive or: columns a and b alone leave 0.25
