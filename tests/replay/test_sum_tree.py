"""The trees against a plain array, with and without numba."""

import importlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.replay import MaxTree, SumTree, _kernels
from sb3_nser.replay._kernels import FAN_OUT, kernels

try:
    kernels("numba")
    BACKENDS = ["numpy", "numba"]
except ValueError:
    BACKENDS = ["numpy"]

backends = pytest.mark.parametrize("backend", BACKENDS)
CAPACITIES = [1, 2, 3, FAN_OUT - 1, FAN_OUT, FAN_OUT + 1, 1000, FAN_OUT**2, FAN_OUT**2 + 1, 5000]


@backends
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_agrees_with_a_plain_array(backend, capacity):
    rng = np.random.default_rng(capacity)
    tree, largest, plain = SumTree(capacity, backend), MaxTree(capacity, backend), np.zeros(capacity)
    for _ in range(20):
        indices = rng.integers(capacity, size=rng.integers(1, 200))
        values = rng.random(len(indices)) * (rng.random(len(indices)) < 0.7)
        tree.set(indices, values)
        largest.set(indices, values)
        plain[indices] = values  # NumPy too lets the last of repeated indices win
        np.testing.assert_array_equal(tree.leaves, plain)
        np.testing.assert_array_equal(tree.get(indices), plain[indices])
        assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
        assert largest.maximum == plain.max()
    queries = rng.random(500) * tree.total
    found = tree.find(queries)
    upper = np.cumsum(plain)
    assert np.all(plain[found] > 0)
    assert np.all(queries < upper[found] + 1e-9) and np.all(queries >= upper[found] - plain[found] - 1e-9)


@backends
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_writes(backend, data):
    capacity = data.draw(st.integers(1, 200))
    tree, plain = SumTree(capacity, backend), np.zeros(capacity)
    value = st.one_of(st.just(0.0), st.floats(1e-12, 1e12))
    for _ in range(data.draw(st.integers(1, 5))):
        writes = data.draw(st.lists(st.tuples(st.integers(0, capacity - 1), value), min_size=1, max_size=40))
        where, what = (np.array(column) for column in zip(*writes, strict=True))
        tree.set(where, what)
        plain[where] = what
    assert tree.total == pytest.approx(plain.sum(), rel=1e-12)
    if plain.any():
        shares = np.array(data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=20)))
        found = tree.find(
            np.concatenate([shares * tree.total, [tree.total, 2 * tree.total, -1.0, np.nextafter(tree.total, 0)]])
        )
        assert np.all(plain[found] > 0)
        assert found[-4] == np.flatnonzero(plain)[-1]  # the end belongs to the last leaf with mass
        assert found[-2] == np.flatnonzero(plain)[0]


@pytest.mark.skipif(len(BACKENDS) < 2, reason="numba is not installed")
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_both_backends_are_equal_to_the_last_bit(capacity):
    trees = [SumTree(capacity, backend) for backend in BACKENDS]
    rng = np.random.default_rng(1)
    for _ in range(10):
        indices = rng.integers(capacity, size=100)
        values = 10 ** rng.uniform(-8, 8, size=100) * (rng.random(100) < 0.8)
        for tree in trees:
            tree.set(indices, values)
        np.testing.assert_array_equal(trees[0]._data, trees[1]._data)
        if trees[0].total == 0.0:
            continue
        queries = rng.random(300) * trees[0].total
        np.testing.assert_array_equal(trees[0].find(queries), trees[1].find(queries))


@backends
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_rebuild_is_the_same_as_writing_every_leaf(backend, capacity):
    values = np.random.default_rng(0).random(capacity)
    for kind in (SumTree, MaxTree):
        rebuilt, written = kind(capacity, backend), kind(capacity, backend)
        rebuilt.rebuild(values)
        written.set(np.arange(capacity), values)
        np.testing.assert_array_equal(rebuilt._data, written._data)


@backends
def test_c23_the_end_of_the_sum_is_still_inside(backend):
    tree = SumTree(3, backend)
    tree.set([0, 1, 2], 1.0)
    assert tree.find([3.0, np.nextafter(3.0, 0), 2.0, 0.0]).tolist() == [2, 2, 2, 0]


@backends
def test_c23_no_drift_and_no_leaf_without_mass(backend):
    rng = np.random.default_rng(0)
    tree = SumTree(131_072, backend)
    for _ in range(40):
        indices = rng.integers(131_072, size=10_000)
        tree.set(indices, rng.choice([0.0, 1e-4, 10.0], size=10_000))
    assert tree.total == pytest.approx(tree.leaves.sum(), rel=1e-12)
    for _ in range(10):
        found = tree.find(rng.random(100_000) * tree.total)
        assert found.max() < 131_072 and np.all(tree.leaves[found] > 0)


@backends
def test_c23_the_last_leaf_gets_its_share(backend):
    tree = SumTree(1000, backend)
    tree.rebuild(1.0)
    found = tree.find(np.random.default_rng(0).random(100_000) * tree.total)
    assert abs(np.count_nonzero(found == 999) - 100) < 5 * np.sqrt(100)


@backends
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_bad_value_is_refused_and_nothing_is_written(backend, value):
    tree = SumTree(8, backend)
    tree.rebuild(1.0)
    with pytest.raises(ValueError, match="finite and not negative"):
        tree.set([2, 3], [5.0, value])
    with pytest.raises(ValueError, match="finite and not negative"):
        tree.rebuild(np.full(8, value))
    np.testing.assert_array_equal(tree.leaves, 1.0)
    assert tree.total == 8.0


@backends
def test_an_index_outside_is_refused(backend):
    tree = SumTree(8, backend)
    for index in (-1, 8):
        with pytest.raises(IndexError, match=str(index)):
            tree.set([index], 1.0)
        with pytest.raises(IndexError, match=str(index)):
            tree.get([index])


@backends
def test_nothing_to_find_in_an_empty_tree(backend):
    with pytest.raises(ValueError, match="no leaf has any mass"):
        SumTree(8, backend).find([0.0])
    tree = SumTree(8, backend)
    tree.set(3, 1.0)
    with pytest.raises(ValueError, match="NaN"):
        tree.find([np.nan])


@backends
def test_survives_pickling(backend):
    tree = SumTree(100, backend)
    tree.rebuild(np.arange(100.0))
    again = pickle.loads(pickle.dumps(tree))
    np.testing.assert_array_equal(again.find([0.0, 2000.0, 4949.0]), tree.find([0.0, 2000.0, 4949.0]))
    again.set([3], 7.0)
    assert again.total == tree.total + 4.0


def test_memory_at_a_million():
    assert SumTree(1_000_000).nbytes < 8.3e6


def test_bad_arguments():
    with pytest.raises(ValueError, match="capacity"):
        SumTree(0)
    with pytest.raises(ValueError, match="backend"):
        SumTree(1, "cuda")


def test_numba_can_be_switched_off_and_is_not_imported_with_the_package():
    code = (
        "import sys, sb3_nser.replay as r; assert 'numba' not in sys.modules; "
        "t = r.SumTree(9); assert t._kernels.name == 'numpy' and 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"SB3_NSER_NO_NUMBA": "1", "PATH": ""})


@pytest.mark.skipif(len(BACKENDS) < 2, reason="numba is not installed")
def test_numba_works_without_a_place_for_its_cache(monkeypatch):
    import numba

    original = numba.njit

    def without_cache(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return original(**options)

    monkeypatch.setattr(numba, "njit", without_cache)
    double = importlib.import_module("sb3_nser.replay._compiled")._compile(lambda x: 2 * x)
    assert double(1.5) == 3.0


def test_a_broken_numba_is_as_good_as_none(monkeypatch):
    monkeypatch.setattr(_kernels, "_numba_kernels", lambda: None)
    assert SumTree(3)._kernels.name == "numpy"
    with pytest.raises(ValueError, match="cannot be imported"):
        SumTree(3, "numba")


@pytest.mark.skipif(len(BACKENDS) < 2, reason="numba is not installed")
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_a_gradient_steps_work_is_equal_to_the_last_bit_with_both_backends(capacity, lam):
    rng = np.random.default_rng(capacity)
    trees = {name: (MaxTree(capacity, name), SumTree(capacity, name), SumTree(capacity, name)) for name in BACKENDS}
    scores = rng.random(capacity) * (rng.random(capacity) < 0.5)
    for _ in range(20):
        indices = rng.integers(capacity, size=64)
        errors = rng.choice([0.0, 1.0, 2.0, 5.0], size=64) * rng.choice([1.0, rng.random()])
        drawn = []
        points = rng.random(64)
        for name, (td, base, rule) in trees.items():
            k = kernels(name)
            k.write(td._data, base._data, rule._data, scores, base._offsets, indices, errors, errors**0.6, True)
            td.refresh_at(indices)
            assert td.maximum == td.leaves.max()
            share = lam if rule.total > 0 else 0.0
            end = share + (1 - share) * 0.9 if base.total > 0 else share
            floor, factors = (capacity, 3 % capacity, capacity), (0.1, 0.2, 0.3 if share else 0.0)
            drawn.append(k.draw(base._data, rule._data, base._offsets, points, (share, end), floor, factors))
        for one, two in zip(*trees.values(), strict=True):
            np.testing.assert_array_equal(one._data, two._data)
        np.testing.assert_array_equal(drawn[0][0], drawn[1][0])
        np.testing.assert_array_equal(drawn[0][1], drawn[1][1])


@pytest.mark.skipif(len(BACKENDS) < 2, reason="numba is not installed")
@pytest.mark.parametrize("n_quantiles", [1, 10, 25])
@pytest.mark.parametrize("n_discounts", [1, 64])
@pytest.mark.parametrize("n_actions", [1, 5])
def test_td_errors_are_equal_to_the_last_bit_with_both_backends(n_quantiles, n_discounts, n_actions):
    rng = np.random.default_rng(0)
    online, target = rng.standard_normal((2, 64, n_quantiles, n_actions)).astype(np.float32)
    rewards, dones = rng.standard_normal(64).astype(np.float32), (rng.random(64) < 0.2).astype(np.float32)
    actions, discounts = rng.integers(n_actions, size=64), rng.random(n_discounts).astype(np.float32)
    one, two = (kernels(name).greedy_errors(online, target, actions, rewards, dones, discounts) for name in BACKENDS)
    np.testing.assert_array_equal(one, two)
    wanted = rewards + (1 - dones) * discounts * target.mean(axis=1, dtype=np.float64).max(axis=1)
    expected = abs(wanted - online.mean(axis=1, dtype=np.float64)[np.arange(64), actions])
    np.testing.assert_allclose(one, expected, atol=1e-5)
    target[3, 0, -1] = np.nan
    for name in BACKENDS:
        errors = kernels(name).greedy_errors(online, target, actions, rewards, dones, discounts)
        assert list(np.flatnonzero(np.isnan(errors))) == [3]


def test_sums_written_out_are_those_of_numpy_or_used_instead(monkeypatch):
    blocks = np.random.default_rng(1).lognormal(sigma=5, size=(50, FAN_OUT))
    expected = _kernels._sums_in_lanes(blocks)
    np.testing.assert_array_equal(_kernels.block_values(blocks, False), expected)
    monkeypatch.setattr(_kernels, "_REDUCE", False)
    np.testing.assert_array_equal(_kernels.block_values(blocks, False), expected)
