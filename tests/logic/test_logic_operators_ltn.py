"""Connectives, implications and quantifiers are those of LTNtorch, the reference implementation of Logic Tensor Networks."""

from __future__ import annotations

import warnings

import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.logic import Goedel, Lukasiewicz, Product, operators
from sb3_nser.logic.operators import p_mean, p_mean_error

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ltn import fuzzy_ops as ltn

unit = st.floats(0.0, 1.0, width=32)
pairs = st.lists(st.tuples(unit, unit), min_size=1, max_size=12)
several = st.lists(unit, min_size=1, max_size=40)

BINARY = [
    (Product(), ltn.AndProd(stable=False)),
    (Goedel(), ltn.AndMin()),
    (Lukasiewicz(), ltn.AndLuk()),
    (lambda a, b: Product().disjunction(th.stack((a, b), -1)), ltn.OrProbSum(stable=False)),
    (lambda a, b: Goedel().disjunction(th.stack((a, b), -1)), ltn.OrMax()),
    (lambda a, b: Lukasiewicz().disjunction(th.stack((a, b), -1)), ltn.OrLuk()),
    (operators.reichenbach, ltn.ImpliesReichenbach(stable=False)),
    (Product().implication, ltn.ImpliesReichenbach(stable=False)),
    (operators.kleene_dienes, ltn.ImpliesKleeneDienes()),
    (Goedel().implication, ltn.ImpliesKleeneDienes()),
    (operators.lukasiewicz_implication, ltn.ImpliesLuk()),
    (Lukasiewicz().implication, ltn.ImpliesLuk()),
    (operators.goedel_implication, ltn.ImpliesGodel()),
    (operators.goguen, ltn.ImpliesGoguen(stable=False)),
]


def close(ours: th.Tensor, theirs: th.Tensor) -> None:
    th.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("ours", "theirs"), BINARY)
@settings(max_examples=60, deadline=None)
@given(values=pairs)
def test_connectives_and_implications(ours, theirs, values) -> None:  # type: ignore[no-untyped-def]
    a, b = th.tensor(values, dtype=th.float64).T
    close(ours(a, b), theirs(a, b).double())


@given(values=several)
def test_negation(values: list[float]) -> None:
    a = th.tensor(values, dtype=th.float64)
    close(operators.negation(a), ltn.NotStandard()(a))


@pytest.mark.parametrize("p", [1, 2, 5, 20])
@pytest.mark.parametrize(("ours", "theirs"), [(p_mean, ltn.AggregPMean), (p_mean_error, ltn.AggregPMeanError)])
@settings(max_examples=60, deadline=None)
@given(values=several)
def test_quantifiers(ours, theirs, p: int, values: list[float]) -> None:  # type: ignore[no-untyped-def]
    a = th.tensor(values, dtype=th.float64)
    close(ours(a, p), theirs(p=p, stable=True)(a, dim=0))
    close(ours(a.clamp(0.01, 0.99), p, epsilon=0.0), theirs(p=p, stable=False)(a.clamp(0.01, 0.99), dim=0))


@pytest.mark.parametrize(("ours", "theirs"), [(p_mean, ltn.AggregPMean), (p_mean_error, ltn.AggregPMeanError)])
@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.tuples(unit, st.booleans()), min_size=1, max_size=40).filter(lambda v: any(m for _, m in v)))
def test_guarded_quantifiers(ours, theirs, values) -> None:  # type: ignore[no-untyped-def]
    a, mask = th.tensor([v for v, _ in values], dtype=th.float64), th.tensor([m for _, m in values])
    close(ours(a, 2.0, mask=mask), theirs(p=2, stable=True)(a, dim=0, mask=mask))


@given(values=several, p=st.sampled_from([1.0, 2.0, 20.0, 64.0]))
def test_the_quantifiers_are_dual_and_lie_between_the_elements(values: list[float], p: float) -> None:
    a = th.tensor(values, dtype=th.float64)
    some, every = p_mean(a, p), p_mean_error(a, p)
    close(every, 1 - p_mean(1 - a, p))
    squeeze = 1.01e-4
    assert a.min() - squeeze <= some <= a.max() + squeeze and a.min() - squeeze <= every <= a.max() + squeeze
    assert some >= a.mean() - squeeze and every <= a.mean() + squeeze


def test_nothing_exists_among_nothing_and_all_of_nothing_holds() -> None:
    empty = th.zeros(3, 0)
    assert p_mean(empty, 20.0).tolist() == [0.0] * 3 and p_mean_error(empty, 20.0).tolist() == [1.0] * 3
    a = th.rand(2, 4, requires_grad=True)
    mask = th.tensor([[False] * 4, [True] * 4])
    some, every = p_mean(a, 20.0, mask=mask), p_mean_error(a, 20.0, mask=mask)
    assert some[0] == 0.0 and every[0] == 1.0
    (some.sum() + every.sum()).backward()
    assert a.grad is not None and bool(th.isfinite(a.grad).all()) and bool((a.grad[0] == 0).all())


@pytest.mark.parametrize("aggregate", [p_mean, p_mean_error])
@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("fill", [0.0, 1e-6, 0.5, 1.0])
def test_two_hundred_truths_keep_a_gradient(aggregate, dtype, fill: float) -> None:  # type: ignore[no-untyped-def]
    """In float32 0.0001^20 is 0, and the root of 0 has no slope."""
    a = th.full((200,), fill, dtype=dtype, requires_grad=True)
    aggregate(a, 20.0).backward()
    assert a.grad is not None and bool(th.isfinite(a.grad).all())
    th.testing.assert_close(a.grad.sum(), th.ones((), dtype=dtype), atol=1e-3, rtol=0)


@pytest.mark.parametrize("aggregate", [p_mean, p_mean_error])
def test_gradients_of_the_quantifiers(aggregate) -> None:  # type: ignore[no-untyped-def]
    a = th.tensor([0.1, 0.5, 0.93], dtype=th.float64, requires_grad=True)
    assert th.autograd.gradcheck(lambda x: aggregate(x, 3.0), a)
