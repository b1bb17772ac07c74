"""A rule bank whose parameters no longer change, in NumPy: what scoring a replay buffer needs, without gradients.

``RuleBank.score`` builds matrices for autograd; here literals are rows, σ(z) is kept as its reciprocal 1 + e^(−z), and a
body's truth is one over the product of these. Results agree with ``RuleBank.score`` to float32 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch as th

from sb3_nser.logic.bank import SCORE_FLOOR, RuleBank
from sb3_nser.logic.operators import EPSILON, Product

_ROWS = 4096  # rows at a time: the literals of so many stay in the processor's cache
_STEEPEST = np.float32(30.0)
_HUGE = np.float32(1e30)

FloatArray = npt.NDArray[np.float32]


class FrozenBank:
    """
    The product t-norm's score with the parameters that a bank has now.

    :param bank: the rules
    :param use_avoid: count ``avoid`` rules through their complement
    """

    def __init__(self, bank: RuleBank, use_avoid: bool = False) -> None:
        self._names = bank.feature_names
        self._continuous = bank.continuous
        self._column, self._sign = _array(bank._column), _array(bank._sign)
        self._theta = _array(bank.theta)[:, None]
        # the sign is turned here, since the reciprocal needs −z
        self._steepness = -(self._sign * np.exp(-_array(bank.log_tau)) / _array(bank.scale))[:, None]
        self._about = np.flatnonzero(_array(bank._about))
        self._crisp_column, self._crisp_codes = _array(bank._crisp_column), _array(bank._crisp_codes)
        self._crisp_negated = _array(bank._crisp_negated)[:, None]
        numbers = len(self._column)
        # literals in layers: the first condition of every rule, then the second ones; what is missing stays 1
        self._layers = max(len(body) for body in bank.plan.bodies)
        self._place = np.empty(numbers + len(self._crisp_column), dtype=np.int64)
        for k, body in enumerate(bank.plan.bodies):
            for layer, (kind, at) in enumerate(body):
                self._place[at if kind == "number" else numbers + at] = layer * len(bank.rules) + k
        self._head_index = _array(bank._head_index)[:, None]
        self._head_theta = _array(bank.head_theta)[:, None]
        self._head_steepness = -(_array(bank._head_sign) * np.exp(-_array(bank.head_log_tau)) / _array(bank.head_scale))[
            :, None
        ]
        avoid = _array(bank._avoid)
        self._flipped = np.flatnonzero(avoid) if use_avoid else np.empty(0, dtype=np.int64)
        self._weight = _array(bank.confidence) * (np.float32(1.0) if use_avoid else ~avoid)

    @staticmethod
    def fits(bank: RuleBank) -> bool:
        """:return: whether the t-norm is the product and every rule a conjunction of literals (``NOT x about 1`` is none)"""
        plain = not bank.plan.formulas and not bool(bank._opposite.any())
        return isinstance(bank.tnorm, Product) and bool(bank.rules) and plain

    def score(self, features: Mapping[str, th.Tensor], actions: npt.NDArray[np.generic]) -> FloatArray:
        """
        :param features: name -> tensor of shape (N,)
        :param actions: in environment units
        :return: scores in [0, 1], shape (N,)
        """
        out = np.empty(len(actions), np.float32)
        columns = [features[name].numpy() for name in self._names]
        for start in range(0, len(out), _ROWS):
            part = slice(start, start + _ROWS)
            out[part] = self._part(np.stack([column[part] for column in columns]), actions[part])
        return out

    def _part(self, columns: FloatArray, actions: npt.NDArray[np.generic]) -> FloatArray:
        unknown = np.isnan(columns)
        dirty = bool(unknown.any())
        np.clip(columns, -_HUGE, _HUGE, out=columns)
        numbers = len(self._column)
        rules, rows = len(self._head_index), columns.shape[1]
        shape = (self._layers * rules, rows)
        reciprocals = np.ones(shape, np.float32)
        with np.errstate(over="ignore"):  # an infinite reciprocal is a truth of 0
            if numbers:
                z = columns[self._column]
                z -= self._theta
                z *= self._steepness
                np.clip(z, -_STEEPEST, _STEEPEST, out=z)
                if len(self._about):  # a bell, whose reciprocal is e^(z²/2); less 1, which is added below
                    bell = np.minimum(np.float32(0.5) * np.square(z[self._about]), _STEEPEST)
                if dirty:
                    z[unknown[self._column]] = _STEEPEST
                np.exp(z, out=z)
                if len(self._about):
                    known = ~unknown[self._column[self._about]]
                    z[self._about] = np.where(known, np.expm1(bell), z[self._about])
                z += np.float32(1.0)
                reciprocals[self._place[:numbers]] = z
            if len(self._crisp_column):
                of_each = columns[self._crisp_column]
                holds = of_each == self._crisp_codes[:, :1]
                for other in range(1, self._crisp_codes.shape[1]):
                    holds |= of_each == self._crisp_codes[:, other : other + 1]
                holds = holds != self._crisp_negated
                if dirty:
                    holds &= ~unknown[self._crisp_column]
                reciprocals[self._place[numbers:]] = np.where(holds, 1.0 / (1.0 - EPSILON), 1.0 / EPSILON)
            bodies = reciprocals[:rules]
            for layer in range(1, self._layers):
                bodies *= reciprocals[layer * rules : (layer + 1) * rules]
        strength = self._match(actions) / bodies
        strength[strength <= SCORE_FLOOR] = 0.0
        scores: FloatArray = np.clip(self._weight @ strength, 0.0, 1.0)
        return scores

    def _match(self, actions: npt.NDArray[np.generic]) -> FloatArray:
        if self._continuous:
            x = np.nan_to_num(actions.T[self._head_index[:, 0]].astype(np.float32), nan=0.0, posinf=_HUGE, neginf=-_HUGE)
            z = np.clip((np.clip(x, -_HUGE, _HUGE) - self._head_theta) * self._head_steepness, -_STEEPEST, _STEEPEST)
            match: FloatArray = np.float32(1.0) / (np.float32(1.0) + np.exp(z))
        else:
            match = (actions == self._head_index).astype(np.float32)
        match[self._flipped] = np.float32(1.0) - match[self._flipped]
        return match


def _array(tensor: th.Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()
