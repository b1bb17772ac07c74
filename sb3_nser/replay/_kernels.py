"""The inner loops of the trees, in NumPy and, where numba is installed, compiled.

A tree is one flat float64 array: the leaves first, then each level of block values, then the root. Every level but the
root is padded with zeros to a multiple of ``FAN_OUT``, so that node ``j`` of a level always has the ``FAN_OUT`` children
``j * FAN_OUT ...`` of the level below. Both implementations form every sum in the same order, which makes their results
equal to the last bit: a block is added in eight lanes and these pair by pair (as NumPy itself does), a search adds from
left to right. A search begins at the first level of at most ``TOP_NODES`` nodes, all of whose sums are formed at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

FAN_OUT = 32
TOP_NODES = 1024
NO_NUMBA_VARIABLE = "SB3_NSER_NO_NUMBA"

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
UIntArray = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Kernels:
    """
    The inner loops of one implementation. Indices and values are valid, contiguous int64 and float64.

    :param name: ``"numpy"`` or ``"numba"``
    :param set_leaves: ``(tree, offsets, indices, values, largest)`` writes leaves and recomputes what lies above them:
        maxima if ``largest``, else sums
    :param rebuild: ``(tree, offsets, largest)`` recomputes all that lies above the leaves
    :param find: ``(tree, offsets, prefix_sums)`` is the leaf under each prefix sum, the last with mass for infinity
    :param write: ``(td, base, rule, scores, offsets, indices, errors, masses, scored)`` writes |δ|, b and, if
        ``scored``, S·b of some slots. What lies above |δ| is left to the caller: to find the largest costs as much as all
        the rest, and it is asked for only when a row enters
    :param draw: ``(base, rule, offsets, points, (λ, end of the base's share), (N, first slot of the floor, capacity),
        (constant, factor of b, factor of S·b))``: the slots of a stratified draw from uniform points, their q, and the
        smallest of these
    :param greedy_errors: ``(Q(s, ·), Q'(s', ·), actions, rewards, dones, discounts)`` is ``|r + (1 − d) γ max_a Q'(s', a) −
        Q(s, a)|``: two arrays of shape ``(n, n_quantiles, n_actions)``, whose means over the quantiles are taken, four of
        shape ``(n,)``, the discounts perhaps ``(1,)``
    :param block_values: ``(blocks of shape (n, FAN_OUT), largest)``: the sum, or the largest, of each block
    :param block_maxima: ``(whole numbers, array to fill)``: the largest of each ``FAN_OUT`` of them
    """

    name: str
    set_leaves: Callable[[FloatArray, IntArray, IntArray, FloatArray, bool], None]
    rebuild: Callable[[FloatArray, IntArray, bool], None]
    find: Callable[[FloatArray, IntArray, FloatArray], IntArray]
    write: Callable[[FloatArray, FloatArray, FloatArray, FloatArray, IntArray, IntArray, FloatArray, FloatArray, bool], None]
    draw: Callable[
        [
            FloatArray,
            FloatArray,
            IntArray,
            FloatArray,
            tuple[float, float],
            tuple[int, int, int],
            tuple[float, float, float],
        ],
        tuple[IntArray, FloatArray, float],
    ]
    greedy_errors: Callable[[Any, Any, Any, Any, Any, Any], Any]
    block_values: Callable[[FloatArray, bool], FloatArray]
    block_maxima: Callable[[UIntArray, UIntArray], None]


def _sums_in_lanes(blocks: FloatArray) -> FloatArray:
    lanes = ((blocks[:, :8] + blocks[:, 8:16]) + blocks[:, 16:24]) + blocks[:, 24:]
    pairs = lanes[:, ::2] + lanes[:, 1::2]
    fours = pairs[:, ::2] + pairs[:, 1::2]
    sums: FloatArray = fours[:, 0] + fours[:, 1]
    return sums


def _reduce_adds_in_lanes() -> bool:
    # NumPy documents no order; where it is another one, sums are written out
    blocks = np.random.default_rng(0).lognormal(sigma=4.0, size=(64, FAN_OUT))
    return bool(np.array_equal(np.add.reduce(blocks, axis=1), _sums_in_lanes(blocks)))


_REDUCE = _reduce_adds_in_lanes()


def block_values(blocks: FloatArray, largest: bool) -> FloatArray:
    """
    :param blocks: shape ``(n, FAN_OUT)``, contiguous
    :param largest: maxima instead of sums
    :return: one value per block
    """
    if not largest:
        sums: FloatArray = np.add.reduce(blocks, axis=1) if _REDUCE else _sums_in_lanes(blocks)
        return sums
    columns = np.ascontiguousarray(blocks.T)  # whole columns at once are faster than rows of 32
    maxima: FloatArray = np.maximum.reduce(columns, axis=0)
    return maxima


def _block_maxima(values: UIntArray, found: UIntArray) -> None:
    chunk = 65_536
    for start in range(0, len(found) * FAN_OUT, chunk):
        part = values[start : min(start + chunk, len(found) * FAN_OUT)]
        place = found[start // FAN_OUT :][: len(part) // FAN_OUT]
        while len(part) > 2 * len(place):  # neighbours: few long loops, where a block by itself is a short one
            part = np.maximum(part[::2], part[1::2])
        np.maximum(part[::2], part[1::2], out=place)


def _refresh(data: FloatArray, offsets: IntArray, indices: IntArray, largest: bool) -> None:
    nodes = indices
    below, *starts = offsets.tolist()
    for here in starts:
        blocks = data[below:here].reshape(-1, FAN_OUT)
        below = here
        nodes = nodes // FAN_OUT
        if len(blocks) <= len(nodes):
            data[here : here + len(blocks)] = block_values(blocks, largest)
            continue
        # some blocks may come twice, which costs less than to find out
        values, places = block_values(blocks.take(nodes, axis=0), largest), nodes + here
        if largest:  # few maxima move, and above those that stay nothing does
            moved = np.flatnonzero(values != data[places])
            if not len(moved):
                return
            values, places, nodes = values[moved], places[moved], nodes[moved]
        data[places] = values


def _rebuild(data: FloatArray, offsets: IntArray, largest: bool) -> None:
    chunk = 512  # blocks: what is read stays in the cache until it has been turned and added
    for level in range(1, len(offsets)):
        blocks = data[offsets[level - 1] : offsets[level]].reshape(-1, FAN_OUT)
        for start in range(0, len(blocks), chunk):
            part = blocks[start : start + chunk]
            data[offsets[level] + start : offsets[level] + start + len(part)] = block_values(part, largest)


def _set_leaves(data: FloatArray, offsets: IntArray, indices: IntArray, values: FloatArray, largest: bool) -> None:
    data[indices] = values
    _refresh(data, offsets, indices, largest)


def _write(
    td: FloatArray,
    base: FloatArray,
    rule: FloatArray,
    scores: FloatArray,
    offsets: IntArray,
    indices: IntArray,
    errors: FloatArray,
    masses: FloatArray,
    scored: bool,
) -> None:
    td[indices] = errors
    _set_leaves(base, offsets, indices, masses, False)
    if not scored:
        return
    products = scores[indices] * masses
    if (products != rule[indices]).any():
        _set_leaves(rule, offsets, indices, products, False)


def _find(data: FloatArray, offsets: IntArray, prefix_sums: FloatArray) -> IntArray:
    top = len(offsets) - 2
    while top > 0 and offsets[top] - offsets[top - 1] <= TOP_NODES:
        top -= 1
    level = data[offsets[top] : offsets[top + 1]]
    sums = np.cumsum(level)
    nodes = sums.searchsorted(prefix_sums, side="right")
    rest = prefix_sums - np.where(nodes > 0, sums[nodes - 1], 0.0)
    past = nodes == len(sums)
    if past.any():
        nodes[past] = np.flatnonzero(level > 0.0)[-1]
        rest[past] = np.inf
    rows = np.arange(len(rest))
    for below in range(top - 1, -1, -1):
        children = data[offsets[below] : offsets[below + 1]].reshape(-1, FAN_OUT).take(nodes, axis=0)
        sums = np.cumsum(children, axis=1)
        chosen = (sums > rest[:, None]).argmax(axis=1)
        past = sums[:, -1] <= rest  # rounding left the query at or past the block's end: take its last child with mass
        before = np.where(chosen > 0, sums[rows, chosen - 1], 0.0)
        if past.any():
            chosen[past] = FAN_OUT - 1 - np.argmax(children[past, ::-1] > 0, axis=1)
            rest[past] = np.inf
        rest = rest - before
        nodes = nodes * FAN_OUT + chosen
    return nodes


def _draw(
    base: FloatArray,
    rule: FloatArray,
    offsets: IntArray,
    points: FloatArray,
    shares: tuple[float, float],
    floor: tuple[int, int, int],
    factors: tuple[float, float, float],
) -> tuple[IntArray, FloatArray, float]:
    size = len(points)
    points = np.minimum((np.arange(size) + points) / size, 1.0 - 2.0**-53)
    lam, rest = shares
    count, first, capacity = floor
    by_rule, by_tree = points.searchsorted(shares)
    parts = []
    if by_rule:
        parts.append(_find(rule, offsets, _below(points[:by_rule] / lam * rule[-1], rule[-1])))
    if by_tree > by_rule:
        queries = (points[by_rule:by_tree] - lam) / (rest - lam) * base[-1]
        parts.append(_find(base, offsets, _below(queries, base[-1])))
    if by_tree < size:
        ranks = ((points[by_tree:] - rest) / (1.0 - rest) * count).astype(np.int64)
        parts.append((np.minimum(ranks, count - 1) + first) % capacity)
    slots: IntArray = parts[0] if len(parts) == 1 else np.concatenate(parts)
    everywhere, by_base_factor, by_rule_factor = factors
    chances = everywhere + base[slots] * by_base_factor
    if by_rule_factor > 0.0:
        chances += rule[slots] * by_rule_factor
    return slots, chances, float(np.minimum.reduce(chances))


def _below(queries: FloatArray, total: float) -> FloatArray:
    if queries[-1] >= total:  # they rise; rounding can take the last to the end
        queries[queries >= total] = np.inf
    return queries


def _greedy_errors(online: Any, target: Any, actions: Any, rewards: Any, dones: Any, discounts: Any) -> Any:
    wanted = rewards + (1 - dones) * discounts * _mean(target).max(axis=1)
    return np.abs(wanted - _mean(online)[np.arange(len(online)), actions])


def _mean(quantiles: Any) -> Any:
    count = quantiles.shape[1]
    if count == 1:
        return quantiles[:, 0]
    # numbers that lie side by side, as those of a single action do, NumPy would add pair by pair
    sums = np.add.reduce(quantiles, axis=1) if quantiles.shape[2] > 1 else np.cumsum(quantiles, axis=1)[:, -1]
    return sums / quantiles.dtype.type(count)


@lru_cache(maxsize=1)
def _numba_kernels() -> Kernels | None:
    try:
        from sb3_nser.replay import _compiled as c
    except Exception:  # absent, or installed for another NumPy: either way NumPy alone does the work
        return None
    return Kernels("numba", c.set_leaves, c.rebuild, c.find, c.write, c.draw, c.greedy_errors, c.block_values, c.block_maxima)


_NUMPY = Kernels("numpy", _set_leaves, _rebuild, _find, _write, _draw, _greedy_errors, block_values, _block_maxima)


def kernels(backend: str = "auto") -> Kernels:
    """
    The implementation to use. numba is imported at the first call, not at import of the package.

    :param backend: ``"auto"`` (numba if it can be used and ``SB3_NSER_NO_NUMBA`` is not set), ``"numba"`` or ``"numpy"``
    :raises ValueError: for another name, or for ``"numba"`` where it cannot be used
    """
    if backend not in ("auto", "numba", "numpy"):
        raise ValueError(f"backend must be 'auto', 'numba' or 'numpy', not {backend!r}")
    if backend == "numpy" or (backend == "auto" and os.environ.get(NO_NUMBA_VARIABLE, "0") not in ("", "0")):
        return _NUMPY
    compiled = _numba_kernels()
    if compiled is None and backend == "numba":
        raise ValueError("backend 'numba' was asked for, but numba cannot be imported; install sb3-nser[fast]")
    return compiled or _NUMPY
