"""A ridge regression on simple functions of the features: what the state alone explains, of a return or of an action.

Subtracting it from the returns leaves a lift with less noise, and less of the confusion that comes from a policy which acts
differently in better states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch as th
from numpy.typing import ArrayLike

MAX_COLUMNS = 96
MAX_CODES = 16
MIXED_COLUMNS = 96
"""Random mixtures of the basis functions, for what is more than the sum of its parts (row and column of a maze)."""
RIDGE = 10.0
"""Rows' worth of belief that a (standardised) coefficient is 0."""


class Baseline:
    """
    Basis functions fixed on one set of rows, to be used on others too.

    Numbers enter, standardised and clipped to ±4, with their square; booleans and categories with few values as indicators.
    Then come hyperbolic tangents of fixed random sums of these (random features, as in an extreme learning machine).

    :param features: name -> tensor of shape (N,)
    :param leave_out: names to leave out, such as features of the next observation, which the action has already changed
    """

    def __init__(self, features: Mapping[str, th.Tensor], leave_out: Iterable[str] = ()) -> None:
        self._plan: list[tuple[str, float, float, tuple[float, ...]]] = []
        skipped, columns = set(leave_out), 0
        for name in sorted(features):
            if name in skipped or columns >= MAX_COLUMNS or features[name].dim() > 1:  # those of objects have no fixed place
                continue
            values = _finite(features[name])
            codes = th.unique(values)
            if len(codes) < 2:
                continue
            if len(codes) <= MAX_CODES:  # indicators also serve a number that takes few values; one code is left out
                self._plan.append((name, 0.0, 1.0, tuple(codes[1:].tolist())))
                columns += len(codes) - 1
            else:
                spread = float(values.std())
                self._plan.append((name, float(values.mean()), spread if spread > 1e-9 else 1.0, ()))
                columns += 2

    def design(self, features: Mapping[str, th.Tensor]) -> th.Tensor:
        """:return: the basis functions, shape (N, P) float64; the first column is 1."""
        rows = len(next(iter(features.values()))) if features else 0
        columns = [th.ones(rows, dtype=th.float64)]
        for name, mean, spread, codes in self._plan:
            values = _finite(features[name])
            if codes:
                columns.extend((values == code).double() for code in codes)
            else:
                z = ((values - mean) / spread).clamp(-4.0, 4.0)
                columns.extend((z, z.square()))
        return self._mixed(th.stack(columns, dim=1))

    def _mixed(self, plain: th.Tensor) -> th.Tensor:
        """:return: the columns themselves, and tanh of random sums of them"""
        if plain.shape[1] < 3:
            return plain
        random = th.Generator().manual_seed(0)
        weights = th.randn(plain.shape[1], MIXED_COLUMNS, generator=random, dtype=th.float64)
        weights[1:] /= (plain.shape[1] - 1) ** 0.5 * 0.5
        return th.cat([plain, th.tanh(plain @ weights)], dim=1)

    def coefficients(self, design: th.Tensor, targets: th.Tensor) -> th.Tensor:
        """
        :param design: shape (N, P)
        :param targets: shape (N, T) float64
        :return: shape (P, T)
        """
        gram = design.T @ design
        solution: th.Tensor = th.linalg.solve(gram + th.diag(_penalty(len(gram))), design.T @ targets)
        return solution

    def value(self, design: th.Tensor, returns: ArrayLike, steps: tuple[ArrayLike, float] | None = None) -> th.Tensor:
        """
        A value function V = design · coefficients. With the steps known, by least-squares temporal differences (Bradtke and
        Barto 1996, "Linear Least-Squares Algorithms for Temporal Difference Learning"): episodes that pass the same states
        lend each other their ends, so one success among many failures is felt along the whole way. Else by regression.

        :param design: shape (N, P), rows of an episode together and in order
        :param returns: return-to-go per row, shape (N,)
        :param steps: episode of each row, shape (N,), and the discount of the returns
        :return: shape (P, 1)
        """
        target = th.from_numpy(np.asarray(returns, np.float64))[:, None]
        if steps is None:
            return self.coefficients(design, target)
        ids, gamma = np.asarray(steps[0]), steps[1]
        follows = th.from_numpy(np.append(ids[1:] == ids[:-1], False)).double()[:, None]
        # of an episode's last row the whole return is its reward: it holds what is beyond a time limit
        reward = target - gamma * follows * target.roll(-1, 0)
        gram = design.T @ (design - gamma * follows * design.roll(-1, 0))
        solution: th.Tensor = th.linalg.solve(gram + th.diag(_penalty(len(gram))), design.T @ reward)
        return solution

    def residual(self, design: th.Tensor, targets: th.Tensor) -> th.Tensor:
        """:return: targets minus what the basis functions explain, shape (N, T)."""
        return targets - design @ self.coefficients(design, targets)


def _penalty(columns: int) -> th.Tensor:
    penalty = th.full((columns,), RIDGE, dtype=th.float64)
    penalty[0] = 1e-6  # the constant
    return penalty


def _finite(values: th.Tensor) -> th.Tensor:
    return th.nan_to_num(values.double(), 0.0, 1e30, -1e30)
