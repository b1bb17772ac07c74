"""The inner loops of the trees, in NumPy and, where numba is installed, compiled.

A tree is one flat float64 array: the leaves first, then each level of block values, then the root. Every level but the
root is padded with zeros to a multiple of ``FAN_OUT``, so that node ``j`` of a level always has the ``FAN_OUT`` children
``j * FAN_OUT ...`` of the level below. Sums run strictly from left to right in both implementations; this is what makes
their results equal to the last bit.
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
NO_NUMBA_VARIABLE = "SB3_NSER_NO_NUMBA"

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kernels:
    """
    The three inner loops of one implementation.

    :param name: ``"numpy"`` or ``"numba"``
    :param set_sum: writes leaves and recomputes the sums above them
    :param set_max: writes leaves and recomputes the maxima above them
    :param find: leaf under each prefix sum
    """

    name: str
    set_sum: Callable[[FloatArray, IntArray, IntArray, FloatArray], None]
    set_max: Callable[[FloatArray, IntArray, IntArray, FloatArray], None]
    find: Callable[[FloatArray, IntArray, FloatArray], IntArray]


def _set_numpy(data: FloatArray, offsets: IntArray, indices: IntArray, values: FloatArray, largest: bool) -> None:
    data[indices] = values
    nodes = indices
    for level in range(1, len(offsets)):
        nodes = nodes // FAN_OUT
        blocks = data[offsets[level - 1] : offsets[level]].reshape(-1, FAN_OUT)
        if len(blocks) <= len(nodes):
            nodes = np.arange(len(blocks))
        else:  # some blocks may come twice, which costs less than to find out
            blocks = blocks[nodes]
        data[offsets[level] + nodes] = blocks.max(axis=1) if largest else np.cumsum(blocks, axis=1)[:, -1]


def _set_sum_numpy(data: FloatArray, offsets: IntArray, indices: IntArray, values: FloatArray) -> None:
    _set_numpy(data, offsets, indices, values, largest=False)


def _set_max_numpy(data: FloatArray, offsets: IntArray, indices: IntArray, values: FloatArray) -> None:
    _set_numpy(data, offsets, indices, values, largest=True)


def _find_numpy(data: FloatArray, offsets: IntArray, prefix_sums: FloatArray) -> IntArray:
    rest = prefix_sums.copy()
    nodes = np.zeros(len(rest), dtype=np.int64)
    rows = np.arange(len(rest))
    for level in range(len(offsets) - 2, -1, -1):
        children = data[offsets[level] : offsets[level + 1]].reshape(-1, FAN_OUT)[nodes]
        sums = np.cumsum(children, axis=1)
        chosen = np.count_nonzero(sums <= rest[:, None], axis=1)
        beyond = chosen == FAN_OUT  # rounding left the query at or past the block's end: take its last child with mass
        if beyond.any():
            chosen[beyond] = FAN_OUT - 1 - np.argmax(children[beyond, ::-1] > 0, axis=1)
            rest[beyond] = np.inf
        before = np.where(chosen > 0, sums[rows, chosen - 1], 0.0)
        rest = rest - before
        nodes = nodes * FAN_OUT + chosen
    return nodes


def _set_sum_loop(data: FloatArray, offsets: IntArray, indices: IntArray, values: FloatArray) -> None:
    for j in range(len(indices)):
        data[indices[j]] = values[j]
    span = 1
    for level in range(1, len(offsets)):
        span *= FAN_OUT
        previous = -1
        for j in range(len(indices)):
            node = indices[j] // span
            if node == previous:
                continue
            previous = node
            start = offsets[level - 1] + node * FAN_OUT
            total = 0.0
            for child in range(FAN_OUT):
                total += data[start + child]
            data[offsets[level] + node] = total


def _set_max_loop(data: FloatArray, offsets: IntArray, indices: IntArray, values: FloatArray) -> None:
    for j in range(len(indices)):
        data[indices[j]] = values[j]
    span = 1
    for level in range(1, len(offsets)):
        span *= FAN_OUT
        previous = -1
        for j in range(len(indices)):
            node = indices[j] // span
            if node == previous:
                continue
            previous = node
            start = offsets[level - 1] + node * FAN_OUT
            largest = data[start]
            for child in range(1, FAN_OUT):
                value = data[start + child]
                if value > largest:  # max() would compile to a slower loop that minds NaN
                    largest = value
            data[offsets[level] + node] = largest


def _find_loop(data: FloatArray, offsets: IntArray, prefix_sums: FloatArray) -> IntArray:
    found = np.empty(len(prefix_sums), dtype=np.int64)
    for j in range(len(prefix_sums)):
        rest = prefix_sums[j]
        node = 0
        for level in range(len(offsets) - 2, -1, -1):
            start = offsets[level] + node * FAN_OUT
            before = 0.0
            chosen = -1
            last = 0
            for child in range(FAN_OUT):
                value = data[start + child]
                if value > 0.0:
                    last = child
                if before + value > rest:
                    chosen = child
                    break
                before += value
            if chosen < 0:
                chosen = last
                rest = np.inf
            else:
                rest -= before
            node = node * FAN_OUT + chosen
        found[j] = node
    return found


def _compile(function: Callable[..., Any]) -> Any:
    import numba

    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no writable place for the cache: compile anew in each process
        return numba.njit(nogil=True)(function)


@lru_cache(maxsize=1)
def _numba_kernels() -> Kernels | None:
    try:
        return Kernels("numba", _compile(_set_sum_loop), _compile(_set_max_loop), _compile(_find_loop))
    except Exception:  # absent, or installed for another NumPy: either way NumPy alone does the work
        return None


_NUMPY = Kernels("numpy", _set_sum_numpy, _set_max_numpy, _find_numpy)


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
