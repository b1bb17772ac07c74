"""The loops of ``_kernels``, compiled. Importing this needs numba; ``kernels()`` does so at its first call.

Every sum is formed in the order that ``_kernels`` states, so that results equal those of NumPy to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from sb3_nser.replay._kernels import FAN_OUT, TOP_NODES, FloatArray, IntArray


def _compile(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no writable place for the cache: compile anew in each process
        return numba.njit(nogil=True)(function)


@_compile
def _quarter(data: FloatArray, i: int) -> float:
    return (data[i] + data[i + 16]) + (data[i + 8] + data[i + 24])


@_compile
def _block_sum(data: FloatArray, i: int) -> float:
    # halves added to each other, four times over: short chains that the processor works on at once
    even = (_quarter(data, i) + _quarter(data, i + 4)) + (_quarter(data, i + 2) + _quarter(data, i + 6))
    odd = (_quarter(data, i + 1) + _quarter(data, i + 5)) + (_quarter(data, i + 3) + _quarter(data, i + 7))
    return even + odd


@_compile
def _block_max(data: FloatArray, i: int) -> float:
    a, b, c, d = data[i], data[i + 1], data[i + 2], data[i + 3]
    for child in range(4, FAN_OUT, 4):  # max() would compile to a slower loop that minds NaN
        a = data[i + child] if data[i + child] > a else a
        b = data[i + child + 1] if data[i + child + 1] > b else b
        c = data[i + child + 2] if data[i + child + 2] > c else c
        d = data[i + child + 3] if data[i + child + 3] > d else d
    a = b if b > a else a
    c = d if d > c else c
    return c if c > a else a


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
) -> None:
    """|δ|, b and S·b of some slots, and all that lies above them."""
    scored = False
    for j in range(len(indices)):
        i = indices[j]
        td[i] = errors[j]
        base[i] = masses[j]
        product = scores[i] * masses[j]
        if rule[i] != product:
            rule[i] = product
            scored = True
    _refresh(td, offsets, indices, True)
    _refresh(base, offsets, indices, False)
    if scored:
        _refresh(rule, offsets, indices, False)


@_compile
def _top_level(offsets: IntArray) -> int:
    level = len(offsets) - 2
    while level > 0 and offsets[level] - offsets[level - 1] <= TOP_NODES:
        level -= 1
    return level


@_compile
def _top_sums(data: FloatArray, offsets: IntArray, level: int) -> FloatArray:
    start, end = offsets[level], offsets[level + 1]
    sums = np.empty(end - start)
    total = 0.0
    for node in range(end - start):
        total += data[start + node]
        sums[node] = total
    return sums


@_compile
def _descend(data: FloatArray, offsets: IntArray, top: int, sums: FloatArray, query: float) -> int:
    rest = query
    low, high = 0, len(sums)
    while low < high:  # the first node whose sum exceeds the query
        middle = (low + high) // 2
        if sums[middle] > rest:
            high = middle
        else:
            low = middle + 1
    node = low
    if node == len(sums):
        node -= 1
        while node > 0 and not data[offsets[top] + node] > 0.0:
            node -= 1
        rest = np.inf
    elif node > 0:
        rest -= sums[node - 1]
    for level in range(top - 1, -1, -1):
        start = offsets[level] + node * FAN_OUT
        before = 0.0
        chosen = -1
        for child in range(FAN_OUT):
            after = before + data[start + child]
            if after > rest:
                chosen = child
                break
            before = after
        if chosen < 0:  # rounding left the query at or past the block's end: take its last child with mass
            chosen = FAN_OUT - 1
            while chosen > 0 and not data[start + chosen] > 0.0:
                chosen -= 1
            rest = np.inf
        else:
            rest -= before
        node = node * FAN_OUT + chosen
    return node


@_compile
def find(data: FloatArray, offsets: IntArray, prefix_sums: FloatArray) -> IntArray:
    """The leaf under each prefix sum."""
    top = _top_level(offsets)
    sums = _top_sums(data, offsets, top)
    found = np.empty(len(prefix_sums), dtype=np.int64)
    for j in range(len(prefix_sums)):
        found[j] = _descend(data, offsets, top, sums, prefix_sums[j])
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
) -> tuple[IntArray, FloatArray]:
    """Slots under points of [0, 1) that is split into shares, and their probabilities; see ``_kernels.Kernels``."""
    lam, rest = shares
    count, first, capacity = floor
    everywhere, by_base, by_rule = factors
    size = len(points)
    top = _top_level(offsets)
    sums = _top_sums(base, offsets, top)
    rule_sums = _top_sums(rule, offsets, top) if lam > 0.0 else sums
    base_total, rule_total = base[-1], rule[-1]
    slots = np.empty(size, dtype=np.int64)
    chances = np.empty(size)
    for j in range(size):
        point = min((j + points[j]) / size, 1.0 - 2.0**-53)
        if point < lam:
            query = point / lam * rule_total
            slot = _descend(rule, offsets, top, rule_sums, query if query < rule_total else np.inf)
        elif point < rest:
            query = (point - lam) / (rest - lam) * base_total
            slot = _descend(base, offsets, top, sums, query if query < base_total else np.inf)
        else:
            rank = min(int((point - rest) / (1.0 - rest) * count), count - 1)
            slot = (rank + first) % capacity
        slots[j] = slot
        chances[j] = everywhere + base[slot] * by_base + rule[slot] * by_rule
    return slots, chances
