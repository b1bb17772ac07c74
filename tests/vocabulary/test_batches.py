"""Batches of any space: what Gymnasium's flatten takes apart is put together again, row by row the same."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.batches import as_tensors, n_rows, rows_of, same_form, unflatten

LEAVES = st.one_of(
    st.integers(1, 4).map(lambda n: spaces.Box(-5, 5, (n,), np.float32)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda shape: spaces.Box(-5, 5, shape, np.float64)),
    st.tuples(st.integers(1, 6), st.integers(-3, 3)).map(lambda a: spaces.Discrete(a[0], start=a[1])),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.integers(1, 4).map(spaces.MultiBinary),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def parts(space, batch):
    """Leaves of a batch as arrays, in the order of the space."""
    if isinstance(space, spaces.Dict):
        return [leaf for key in space.spaces for leaf in parts(space[key], batch[key])]
    if isinstance(space, spaces.Tuple):
        return [leaf for inner, value in zip(space.spaces, batch, strict=True) for leaf in parts(inner, value)]
    return [np.asarray(batch)]


@given(SPACES, st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_flattened_observations_are_found_again(space, seed):
    space.seed(seed)
    samples = [space.sample() for _ in range(3)]
    flat = np.stack([np.asarray(spaces.flatten(space, sample)) for sample in samples])
    batch = unflatten(space, th.as_tensor(flat))
    assert n_rows(batch) == 3
    for row, sample in enumerate(samples):
        found = parts(space, rows_of(batch, slice(row, row + 1)))
        for one, other in zip(found, parts(space, sample), strict=True):
            np.testing.assert_allclose(one.reshape(-1), other.reshape(-1), rtol=1e-6)
    assert same_form(space, space)


def test_what_has_no_fixed_length_is_refused():
    with pytest.raises(UnsupportedError, match="Text"):
        unflatten(spaces.Text(3), th.zeros(2, 3))


@pytest.mark.parametrize(
    "one, other, same",
    [
        (spaces.Box(-1, 1, (3,)), spaces.Box(-9, 9, (3,)), True),
        (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (4,)), False),
        (spaces.Discrete(3), spaces.Discrete(3, start=1), True),
        (spaces.Discrete(3), spaces.MultiBinary(3), False),
        (spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(b=spaces.Discrete(2)), False),
        (spaces.Tuple([spaces.Discrete(2)]), spaces.Tuple([spaces.Discrete(2)] * 2), False),
    ],
)
def test_form_is_shape_and_kind_not_limits(one, other, same):
    assert same_form(one, other) is same


def test_double_and_single_precision_become_the_same():
    batch = as_tensors({"a": np.array([0.1]), "b": (np.array([1], np.int64),)})
    assert batch["a"].dtype == th.float32 and batch["b"][0].dtype == th.int64
