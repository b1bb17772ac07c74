"""Trees that keep the sum, or the maximum, of an array under many small writes.

Our own layout: blocks of 32 children instead of the usual two, which needs four levels and 3 % of extra memory at a
million leaves, and no padding to a power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_nser.replay._kernels import FAN_OUT, FloatArray, IntArray, Kernels, kernels


class _BlockTree:
    """
    What both trees share: storage, writes, whole-array rewrites.

    :param capacity: number of leaves, at least 1
    :param backend: ``"auto"`` (numba where it can be used), ``"numba"`` or ``"numpy"``; results are the same
    :raises ValueError: if ``capacity`` is below 1 or the backend cannot be used
    """

    _largest = False

    def __init__(self, capacity: int, backend: str = "auto") -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = int(capacity)
        sizes = [self.capacity]
        while sizes[-1] > 1 or len(sizes) == 1:
            sizes.append(-(-sizes[-1] // FAN_OUT))
        padded = [-(-size // FAN_OUT) * FAN_OUT for size in sizes[:-1]] + [1]
        self._offsets: IntArray = np.concatenate([[0], np.cumsum(padded)[:-1]]).astype(np.int64)
        self._data: FloatArray = np.zeros(sum(padded), dtype=np.float64)
        self._backend = backend
        self._kernels: Kernels = kernels(backend)

    @property
    def leaves(self) -> FloatArray:
        """All leaf values, shape ``(capacity,)``: a view, to be read only unless ``refresh`` follows."""
        return self._data[: self.capacity]

    @property
    def nbytes(self) -> int:
        """Bytes the tree takes."""
        return self._data.nbytes

    def get(self, indices: npt.ArrayLike) -> FloatArray:
        """
        :param indices: leaf indices, integers in ``[0, capacity)``
        :return: their values, float64, same shape
        """
        return self._data[self._checked(np.asarray(indices, dtype=np.int64))]

    def set(self, indices: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """
        Write leaves and recompute everything above them from its children. Of repeated indices the last value wins.

        :param indices: shape ``(m,)``, integers in ``[0, capacity)``
        :param values: shape ``(m,)`` or one number; finite and not negative
        :raises IndexError: for an index outside the tree
        :raises ValueError: for a value that is negative, NaN or infinite; nothing is written then
        """
        where = self._checked(np.atleast_1d(np.asarray(indices, dtype=np.int64)))
        if where.size == 0:
            return
        what = np.ascontiguousarray(np.broadcast_to(self._valid(values), where.shape))
        self._kernels.set_leaves(self._data, self._offsets, np.ascontiguousarray(where), what, self._largest)

    def rebuild(self, values: npt.ArrayLike) -> None:
        """
        Rewrite all leaves at once, in one pass over the array.

        :param values: shape ``(capacity,)`` or one number; finite and not negative
        :raises ValueError: for a value that is negative, NaN or infinite; nothing is written then
        """
        self._data[: self.capacity] = np.broadcast_to(self._valid(values), (self.capacity,))
        self.refresh()

    def refresh(self) -> None:
        """Recompute everything above the leaves, after they were written through ``leaves``."""
        self._kernels.rebuild(self._data, self._offsets, self._largest)

    def refresh_at(self, indices: IntArray) -> None:
        """
        Recompute what lies above some leaves, after they were written through ``leaves``.

        :param indices: these leaves, repeats allowed
        """
        self._kernels.set_leaves(self._data, self._offsets, indices, self._data[indices], self._largest)

    def refresh_blocks(self, start: int, stop: int) -> None:
        """
        Recompute the values of the blocks of some leaves; ``refresh_above`` must follow.

        :param start: the first leaf, a multiple of ``FAN_OUT``
        :param stop: the leaf after the last one
        """
        blocks = self._data[start : -(-stop // FAN_OUT) * FAN_OUT].reshape(-1, FAN_OUT)
        self.set_blocks(self._kernels.block_values(blocks, self._largest), start // FAN_OUT)

    def set_blocks(self, values: FloatArray, first: int = 0) -> None:
        """
        Set the values of blocks, for whoever knows them already; ``refresh_above`` must follow.

        :param values: one per block
        :param first: the first of these blocks
        """
        start = self._offsets[1] + first
        self._data[start : start + len(values)] = values

    def refresh_above(self) -> None:
        """Recompute everything above the values of the blocks."""
        base = self._offsets[1]
        self._kernels.rebuild(self._data[base:], self._offsets[1:] - base, self._largest)

    def _checked(self, indices: IntArray) -> IntArray:
        if indices.size and (indices.min() < 0 or indices.max() >= self.capacity):
            outside = indices[(indices < 0) | (indices >= self.capacity)]
            raise IndexError(f"index {outside.flat[0]} is outside a tree of {self.capacity} leaves")
        return indices

    @staticmethod
    def _valid(values: npt.ArrayLike) -> FloatArray:
        what = np.asarray(values, dtype=np.float64)
        if what.size and not (what.min() >= 0.0 and what.max() < np.inf):
            bad = what[~((what >= 0.0) & (what < np.inf))]
            raise ValueError(f"a tree value must be finite and not negative, got {bad.flat[0]}")
        return what

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_kernels"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # a file written where numba is installed also loads where it is not
        self._kernels = kernels("numpy" if self._backend == "numpy" else "auto")


class SumTree(_BlockTree):
    """
    An array of masses that can be drawn from: write many leaves, then find the leaf under a prefix sum.

    Sums are float64 and always recomputed from the children, so they do not drift however many writes there are.
    """

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._data[-1])

    def find(self, prefix_sums: npt.ArrayLike) -> IntArray:
        """
        The leaf in which each prefix sum falls: the first one whose cumulative sum exceeds it.

        :param prefix_sums: shape ``(m,)``, numbers in ``[0, total)``; what lies outside, by rounding or otherwise, is
            taken to the nearest leaf with mass
        :return: int64 indices, shape ``(m,)``, always below ``capacity``, never of a leaf without mass
        :raises ValueError: if no leaf has mass, or a prefix sum is NaN
        """
        query = np.maximum(np.atleast_1d(np.asarray(prefix_sums, dtype=np.float64)), 0.0)
        if not self.total > 0.0:
            raise ValueError("no leaf has any mass, so there is nothing to find")
        if np.isnan(query).any():
            raise ValueError("a prefix sum is NaN")
        query[query >= self.total] = np.inf
        return self._kernels.find(self._data, self._offsets, query)


class MaxTree(_BlockTree):
    """An array whose largest value is always known."""

    _largest = True

    @property
    def maximum(self) -> float:
        """Largest leaf, 0 for a tree never written."""
        return float(self._data[-1])
