"""The loops of ``_kernels``, compiled. Importing this needs numba; ``kernels()`` does so at its first call.

Every sum is formed in the order that ``_kernels`` states, so that results equal those of NumPy to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from sb3_nser.replay._kernels import FAN_OUT, TOP_NODES, FloatArray, IntArray, UIntArray


def _compile(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no writable place for the cache: compile anew in each process
        return numba.njit(nogil=True)(function)


@_compile
def _lane(block: FloatArray, i: int) -> Any:
    return ((block[i] + block[i + 8]) + block[i + 16]) + block[i + 24]


@_compile
def _block_sum(data: FloatArray, start: int) -> Any:
    block = data[start : start + FAN_OUT]  # constant places in a slice need no test of their sign
    first = (_lane(block, 0) + _lane(block, 1)) + (_lane(block, 2) + _lane(block, 3))
    second = (_lane(block, 4) + _lane(block, 5)) + (_lane(block, 6) + _lane(block, 7))
    return first + second


@_compile
def _block_max(data: FloatArray, start: int) -> Any:
    block = data[start : start + FAN_OUT]
    a, b, c, d = block[0], block[1], block[2], block[3]
    for child in range(4, FAN_OUT, 4):  # max() would compile to a slower loop that minds NaN
        a = block[child] if block[child] > a else a
        b = block[child + 1] if block[child + 1] > b else b
        c = block[child + 2] if block[child + 2] > c else c
        d = block[child + 3] if block[child + 3] > d else d
    a = b if b > a else a
    c = d if d > c else c
    return c if c > a else a


@_compile
def block_values(blocks: FloatArray, largest: bool) -> FloatArray:
    """One value per block."""
    data = blocks.reshape(-1)
    values = np.empty(len(blocks))
    for node in range(len(blocks)):
        values[node] = _block_max(data, node * FAN_OUT) if largest else _block_sum(data, node * FAN_OUT)
    return values


@_compile
def block_maxima(values: UIntArray, found: UIntArray) -> None:
    """The largest of each block."""
    for node in range(len(found)):
        found[node] = _block_max(values, node * FAN_OUT)


@_compile
def _refresh(data: FloatArray, offsets: IntArray, indices: IntArray, largest: bool) -> None:
    span = 1
    for level in range(1, len(offsets)):
        span *= FAN_OUT
        below, here = offsets[level - 1], offsets[level]
        end = offsets[level + 1] if level + 1 < len(offsets) else len(data)
        if (end - here) * 2 <= len(indices):  # few nodes, most of them changed: all of them, each once
            for node in range((here - below) // FAN_OUT):
                start = below + node * FAN_OUT
                data[here + node] = _block_max(data, start) if largest else _block_sum(data, start)
            continue
        previous = -1
        for j in range(len(indices)):
            node = indices[j] // span
            if node != previous:
                previous = node
                start = below + node * FAN_OUT
                data[here + node] = _block_max(data, start) if largest else _block_sum(data, start)


@_compile
def rebuild(data: FloatArray, offsets: IntArray, largest: bool) -> None:
    """All values above the leaves, from the leaves."""
    for level in range(1, len(offsets)):
        below, here = offsets[level - 1], offsets[level]
        for node in range((here - below) // FAN_OUT):
            start = below + node * FAN_OUT
            data[here + node] = _block_max(data, start) if largest else _block_sum(data, start)


@_compile
def set_leaves(data: FloatArray, offsets: IntArray, indices: IntArray, values: FloatArray, largest: bool) -> None:
    """Writes leaves and recomputes what lies above them."""
    for j in range(len(indices)):
        data[indices[j]] = values[j]
    _refresh(data, offsets, indices, largest)


@_compile
def write(
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
    """|δ|, b and S·b of some slots, and all that lies above the latter two."""
    seen = 0.0
    for i in indices:  # ask for all of them at once instead of waiting for each
        seen += td[i] + base[i]
    if not seen >= 0.0:
        raise ValueError("a tree holds a negative mass")
    for j in range(len(indices)):
        td[indices[j]] = errors[j]
        base[indices[j]] = masses[j]
    _refresh(base, offsets, indices, False)
    if not scored:
        return
    changed = False
    for j in range(len(indices)):
        i = indices[j]
        product = scores[i] * masses[j]
        if rule[i] != product:
            rule[i] = product
            changed = True
    if changed:
        _refresh(rule, offsets, indices, False)


@_compile
def _last_with_mass(data: FloatArray, start: int, node: int) -> int:
    while node > 0 and not data[start + node] > 0.0:
        node -= 1
    return node


@_compile
def _begin(data: FloatArray, offsets: IntArray, nodes: IntArray, rest: FloatArray) -> int:
    # at the top: the first node whose sum exceeds the query
    top = len(offsets) - 2
    while top > 0 and offsets[top] - offsets[top - 1] <= TOP_NODES:
        top -= 1
    start, size = offsets[top], offsets[top + 1] - offsets[top]
    sums = np.cumsum(data[start : start + size])
    node, before = 0, -1.0
    for j in range(len(rest)):
        query = rest[j]
        if query < before:
            node = np.searchsorted(sums, query, side="right")
        else:  # queries that rise go on where the last one stood
            while node < size and sums[node] <= query:
                node += 1
        before = query
        nodes[j] = node
        if node == size:
            nodes[j] = _last_with_mass(data, start, size - 1)
            rest[j] = np.inf
        elif node > 0:
            rest[j] -= sums[node - 1]
    return top


@_compile
def _search(data: FloatArray, offsets: IntArray, nodes: IntArray, rest: FloatArray) -> None:
    for level in range(_begin(data, offsets, nodes, rest) - 1, -1, -1):
        if level == 0:  # ask for the leaves of all queries at once instead of waiting for those of each
            seen = 0.0
            for j in range(len(rest)):
                start = nodes[j] * FAN_OUT
                seen += (data[start] + data[start + 8]) + (data[start + 16] + data[start + 24])
            if not seen >= 0.0:
                raise ValueError("a tree holds a negative mass")
        for j in range(len(rest)):
            start = offsets[level] + nodes[j] * FAN_OUT
            block, limit = data[start : start + FAN_OUT], rest[j]
            total, before, chosen = 0.0, 0.0, 0
            for child in range(FAN_OUT):  # all of them: a loop that may end anywhere keeps the processor guessing
                total += block[child]
                passed = total <= limit
                chosen += passed
                before = total if passed else before
            if chosen == FAN_OUT:  # rounding left the query at or past the block's end: take its last child with mass
                chosen = _last_with_mass(data, start, FAN_OUT - 1)
                rest[j] = np.inf
            else:
                rest[j] -= before
            nodes[j] = nodes[j] * FAN_OUT + chosen


@_compile
def find(data: FloatArray, offsets: IntArray, prefix_sums: FloatArray) -> IntArray:
    """The leaf under each prefix sum."""
    found = np.empty(len(prefix_sums), dtype=np.int64)
    _search(data, offsets, found, prefix_sums.copy())
    return found


@_compile
def draw(
    base: FloatArray,
    rule: FloatArray,
    offsets: IntArray,
    points: FloatArray,
    shares: tuple[float, float],
    floor: tuple[int, int, int],
    factors: tuple[float, float, float],
) -> tuple[IntArray, FloatArray, float]:
    """Slots under points of [0, 1) that is split into shares, and their probabilities; see ``_kernels.Kernels``."""
    lam, rest = shares
    count, first, capacity = floor
    everywhere, by_base, by_rule = factors
    size = len(points)
    base_total, rule_total = base[-1], rule[-1]
    slots = np.empty(size, dtype=np.int64)
    queries = np.empty(size)
    to_rule, to_base = 0, 0  # points rise: first those of the rules, then those of the base
    for j in range(size):
        point = min((j + points[j]) / size, 1.0 - 2.0**-53)
        if point < lam:
            query = point / lam * rule_total
            queries[j] = query if query < rule_total else np.inf
            to_rule = to_base = j + 1
        elif point < rest:
            query = (point - lam) / (rest - lam) * base_total
            queries[j] = query if query < base_total else np.inf
            to_base = j + 1
        else:
            rank = min(int((point - rest) / (1.0 - rest) * count), count - 1)
            slots[j] = (rank + first) % capacity
    if to_rule > 0:
        _search(rule, offsets, slots[:to_rule], queries[:to_rule])
    if to_base > to_rule:
        _search(base, offsets, slots[to_rule:to_base], queries[to_rule:to_base])
    chances = queries
    for j in range(size):
        chances[j] = everywhere + base[slots[j]] * by_base
    if by_rule > 0.0:
        for j in range(size):
            chances[j] += rule[slots[j]] * by_rule
    smallest = chances[0]
    for j in range(size):
        smallest = min(smallest, chances[j])
    return slots, chances, smallest


@_compile
def _mean(quantiles: Any, row: int, action: int) -> Any:
    total = quantiles[row, 0, action]
    for quantile in range(1, quantiles.shape[1]):
        total += quantiles[row, quantile, action]
    return total / quantiles.dtype.type(quantiles.shape[1])


@_compile
def greedy_errors(online: Any, target: Any, actions: Any, rewards: Any, dones: Any, discounts: Any) -> Any:
    """``|r + (1 − d) γ max_a Q'(s', a) − Q(s, a)|`` of each row."""
    errors = np.empty(len(online), online.dtype)
    one = online.dtype.type(1)
    for j in range(len(online)):
        best = _mean(target, j, 0)
        for action in range(1, target.shape[2]):
            value = _mean(target, j, action)
            if value > best or value != value:
                best = value
        discount = discounts[j] if len(discounts) > 1 else discounts[0]
        errors[j] = abs(rewards[j] + (one - dones[j]) * discount * best - _mean(online, j, actions[j]))
    return errors
