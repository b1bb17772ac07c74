"""The fuzzy operators keep their algebra, stay in [0, 1] and keep their gradients."""

from __future__ import annotations

import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic import Goedel, Lukasiewicz, Product, negation, reichenbach, tnorm_by_name
from sb3_nser.logic.operators import TNORMS, log_stable

truth = st.floats(0.0, 1.0)
norms = st.sampled_from([cls() for cls in TNORMS.values()])


def t(*values: float) -> th.Tensor:
    return th.tensor(values, dtype=th.float64)


@given(norms, truth, truth, truth, truth)
def test_t_norm_axioms(norm, a: float, b: float, c: float, d: float) -> None:  # type: ignore[no-untyped-def]
    def and_(x: float, y: float) -> float:
        return float(norm(t(x), t(y)))

    assert and_(a, b) == pytest.approx(and_(b, a), abs=1e-12)
    assert and_(and_(a, b), c) == pytest.approx(and_(a, and_(b, c)), abs=1e-12)
    assert and_(a, 1.0) == pytest.approx(a, abs=1e-12) and and_(a, 0.0) == 0.0
    assert 0.0 <= and_(a, b) <= min(a, b) + 1e-12
    assert and_(min(a, d), b) <= and_(max(a, d), b) + 1e-12
    assert float(norm.conjunction(t(a, b, c))) == pytest.approx(and_(a, and_(b, c)), abs=1e-12)
    dual = 1.0 - and_(1.0 - a, 1.0 - b)
    assert float(norm.disjunction(t(a, b))) == pytest.approx(dual, abs=1e-12)


@given(truth, truth)
def test_implication_and_negation(a: float, b: float) -> None:
    assert float(reichenbach(t(a), t(b))) == pytest.approx(1 - a + a * b)
    assert float(negation(t(a))) == 1 - a
    assert -9.3 < float(log_stable(t(a))) <= 1e-12


@pytest.mark.parametrize("norm", [Product(), Goedel(), Lukasiewicz()])
def test_gradients_are_right_away_from_kinks(norm) -> None:  # type: ignore[no-untyped-def]
    truths = t(0.9, 0.8, 0.95).requires_grad_()
    assert th.autograd.gradcheck(lambda x: norm.conjunction(x), truths)
    assert th.autograd.gradcheck(lambda x: norm.disjunction(1 - x), truths)


def test_an_empty_conjunction_is_true() -> None:
    for cls in TNORMS.values():
        assert cls().conjunction(th.zeros(3, 0)).tolist() == [1.0, 1.0, 1.0]


def test_two_hundred_literals_neither_underflow_nor_lose_their_gradient() -> None:
    z = th.full((200,), -3.0, requires_grad=True)
    log_truth = Product().log_conjunction(th.nn.functional.logsigmoid(z))
    log_truth.backward()
    assert th.isfinite(log_truth) and log_truth.exp().item() == 0.0  # the product itself underflows
    assert z.grad is not None and bool((z.grad > 0.9).all())


def test_names() -> None:
    assert isinstance(tnorm_by_name("goedel"), Goedel)
    with pytest.raises(ConfigurationError, match="product, goedel, lukasiewicz"):
        tnorm_by_name("min")
