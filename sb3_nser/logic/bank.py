"""All rules of a run as one differentiable module, vectorised over transitions, rules and literals.

A number literal is σ(±(x − θ)/(τ·scale)); booleans and categories are crisp up to ε. Thresholds θ, widths τ and confidences c
are parameters. The forms are this package's own choice.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch as th
from torch import nn
from torch.nn.functional import logsigmoid

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic.operators import EPSILON, Product, tnorm_by_name
from sb3_nser.rules.check import problems
from sb3_nser.rules.model import Rule
from sb3_nser.vocabulary.features import Vocabulary

TAU = 0.1
"""Width of a threshold to begin with, in units of the feature's scale: the way from 5 % to 95 % true takes 0.6 scales."""
HEAD_TAU = 0.02
"""The same for a continuous head, in units of the action's range: actions carry no noise, so it is sharp."""
TAU_BOUNDS = (0.02, 1.0)
HEAD_TAU_BOUNDS = (0.005, 0.2)
SCORE_FLOOR = 0.01
"""Firing strengths below this score 0. Otherwise the ε of a false category, summed over a million rows that do not fire, would
outweigh the ten that do."""

_STEEPEST = 30.0  # logits beyond ±30 change nothing in float32
_HUGE = 1e30


@dataclass(frozen=True)
class Rows:
    """
    A batch as the literals see it.

    :param numbers: the feature of each number literal, shape (N, M), finite
    :param unknown: where it was NaN, shape (N, M), or None if nowhere
    :param crisp: logarithms of the truths of the crisp literals, shape (N, Q), or None if there are none
    """

    numbers: th.Tensor
    unknown: th.Tensor | None
    crisp: th.Tensor | None

    def take(self, index: th.Tensor) -> Rows:
        """:return: the rows at the given positions."""
        unknown = None if self.unknown is None else self.unknown[index]
        return Rows(self.numbers[index], unknown, None if self.crisp is None else self.crisp[index])


class RuleBank(nn.Module):
    """
    K rules, stacked.

    :param rules: the rules; none is allowed and scores 0 everywhere
    :param vocabulary: the names they use
    :param scales: spread of each number feature (see ``scales_from``); a feature that is missing takes the width of its
        range, or 1
    :param tnorm: ``product`` (in log space), ``goedel`` or ``lukasiewicz``
    :raises ConfigurationError: if a rule cannot be grounded in the vocabulary, or the t-norm is unknown
    """

    theta: nn.Parameter
    """Thresholds of all number literals in feature units, shape (M,)."""
    log_tau: nn.Parameter
    """Logarithms of their widths in units of ``scale``, shape (M,)."""
    head_theta: nn.Parameter
    """Thresholds of continuous heads in environment units, shape (K,), or (0,) if actions are discrete."""
    head_log_tau: nn.Parameter
    """Logarithms of their widths in units of ``head_scale``."""
    confidence_logit: nn.Parameter
    """Logits of the rules' confidences, shape (K,)."""
    scale: th.Tensor
    head_scale: th.Tensor
    _sign: th.Tensor
    _column: th.Tensor
    _crisp_column: th.Tensor
    _crisp_code: th.Tensor
    _crisp_negated: th.Tensor
    _assign: th.Tensor
    _padded: th.Tensor
    _head_index: th.Tensor
    _head_sign: th.Tensor
    _avoid: th.Tensor

    def __init__(
        self, rules: Sequence[Rule], vocabulary: Vocabulary, scales: Mapping[str, float], tnorm: str = "product"
    ) -> None:
        super().__init__()
        for rule in rules:
            wrong = problems(rule, vocabulary)
            if wrong:
                raise ConfigurationError(
                    f"rule '{rule}' cannot be grounded in vocabulary {vocabulary.name!r}: {' '.join(wrong)}"
                )
        self.rules = tuple(rules)
        self.tnorm = tnorm_by_name(tnorm)
        used = {literal.feature for rule in rules for literal in rule.literals}
        self.feature_names = tuple(feature.name for feature in vocabulary.features if feature.name in used)
        self.continuous = vocabulary.actions.continuous
        self._stack_literals(vocabulary, scales)
        self._stack_heads(vocabulary)
        confidences = th.tensor([min(max(rule.confidence, 1e-3), 1 - 1e-3) for rule in rules], dtype=th.float32)
        self.confidence_logit = nn.Parameter(th.logit(confidences))

    def _stack_literals(self, vocabulary: Vocabulary, scales: Mapping[str, float]) -> None:
        column = {name: at for at, name in enumerate(self.feature_names)}
        numbers: list[tuple[int, float, float, float]] = []
        crisp: list[tuple[int, float, bool]] = []
        self._slots: list[list[tuple[bool, int]]] = []  # per rule and literal: (is a number, position among its kind)
        for rule in self.rules:
            slots = []
            for literal in rule.literals:
                at = column[literal.feature]
                if isinstance(literal.value, float):
                    sign = 1.0 if (literal.op == ">") != literal.negated else -1.0
                    slots.append((True, len(numbers)))
                    numbers.append((at, literal.value, sign, _scale(vocabulary, literal.feature, scales)))
                else:
                    slots.append((False, len(crisp)))
                    crisp.append((at, float(vocabulary[literal.feature].code(literal.value)), literal.negated))
            self._slots.append(slots)
        count = len(numbers)
        table = th.tensor(numbers, dtype=th.float64).reshape(count, 4)
        self.theta = nn.Parameter(table[:, 1].clamp(-_HUGE, _HUGE).float())
        self.log_tau = nn.Parameter(th.full((count,), math.log(TAU)))
        self._keep("_column", table[:, 0].long())
        self._keep("_sign", table[:, 2].float())
        self._keep("scale", table[:, 3].float())
        self._keep("_crisp_column", th.tensor([at for at, _, _ in crisp], dtype=th.long))
        self._keep("_crisp_code", th.tensor([code for _, code, _ in crisp], dtype=th.float32))
        self._keep("_crisp_negated", th.tensor([negated for _, _, negated in crisp], dtype=th.bool))
        total, longest = count + len(crisp), max((len(slots) for slots in self._slots), default=0)
        assign = th.zeros(total, len(self.rules))
        padded = th.full((len(self.rules), longest), total, dtype=th.long)  # position ``total`` holds the truth 1
        for k, slots in enumerate(self._slots):
            for place, (is_number, at) in enumerate(slots):
                row = at if is_number else count + at
                assign[row, k] = 1.0
                padded[k, place] = row
        self._keep("_assign", assign)
        self._keep("_padded", padded)

    def _stack_heads(self, vocabulary: Vocabulary) -> None:
        actions = vocabulary.actions
        self._keep("_head_index", th.tensor([actions.names.index(rule.head.action) for rule in self.rules], dtype=th.long))
        self._keep("_avoid", th.tensor([rule.polarity == "avoid" for rule in self.rules], dtype=th.bool))
        continuous = self.rules if actions.low is not None and actions.high is not None else ()
        ranges = [1.0 if actions.low is None or actions.high is None else actions.high[at] - actions.low[at]
                  for at in self._head_index.tolist()]  # fmt: skip
        ranges = [width if math.isfinite(width) and width > 0 else 1.0 for width in ranges]
        self.head_theta = nn.Parameter(th.tensor([float(rule.head.value or 0.0) for rule in continuous], dtype=th.float32))
        self.head_log_tau = nn.Parameter(th.full((len(continuous),), math.log(HEAD_TAU)))
        self._keep("head_scale", th.tensor(ranges[: len(continuous)], dtype=th.float32))
        signs = [1.0 if rule.head.op == ">" else -1.0 for rule in continuous]
        self._keep("_head_sign", th.tensor(signs, dtype=th.float32))

    def _keep(self, name: str, tensor: th.Tensor) -> None:
        self.register_buffer(name, tensor, persistent=False)

    @property
    def confidence(self) -> th.Tensor:
        """Confidences c in (0, 1), shape (K,)."""
        return th.sigmoid(self.confidence_logit)

    def prepare(self, features: Mapping[str, th.Tensor]) -> Rows:
        """
        Everything about a batch that does not depend on a parameter.

        :param features: name -> tensor of shape (N,), at least the names in ``feature_names``; infinities count as very large
        :return: the rows, to be given to ``body_of`` as often as needed
        :raises ConfigurationError: if a feature is missing
        """
        missing = [name for name in self.feature_names if name not in features]
        if missing:
            raise ConfigurationError(f"the rules need the features {', '.join(missing)}, which were not given.")
        if not self.feature_names:
            rows = len(next(iter(features.values()))) if features else 0
            return Rows(th.zeros(rows, 0), None, None)
        columns = th.stack([features[name] for name in self.feature_names], dim=1).to(th.float32)
        unknown = th.isnan(columns)
        dirty = bool(unknown.any())
        columns = columns.clamp(-_HUGE, _HUGE)
        crisp = None
        if len(self._crisp_code):
            holds = (columns[:, self._crisp_column] == self._crisp_code) != self._crisp_negated
            if dirty:
                holds = holds & ~unknown[:, self._crisp_column]
            crisp = th.where(holds, math.log1p(-EPSILON), math.log(EPSILON))
        if dirty:
            columns = th.where(unknown, 0.0, columns)
        return Rows(columns[:, self._column], unknown[:, self._column] if dirty else None, crisp)

    def body(self, features: Mapping[str, th.Tensor]) -> th.Tensor:
        """:return: truth of each body, shape (N, K), in [0, 1], never NaN; a NaN feature satisfies no condition."""
        return self.body_of(self.prepare(features))

    def body_of(self, rows: Rows) -> th.Tensor:
        """The same from ``prepare(features)``."""
        parts = []
        if len(self.theta):
            steepness = self._sign * th.exp(-self.log_tau) / self.scale
            z = ((rows.numbers - self.theta) * steepness).clamp(-_STEEPEST, _STEEPEST)
            parts.append(logsigmoid(z if rows.unknown is None else th.where(rows.unknown, -_STEEPEST, z)))
        if rows.crisp is not None:
            parts.append(rows.crisp)
        log_truths = parts[0] if len(parts) == 1 else th.cat(parts, dim=1) if parts else rows.numbers
        if isinstance(self.tnorm, Product):
            return th.exp(log_truths @ self._assign)
        truths = th.cat([log_truths.exp(), log_truths.new_ones(len(log_truths), 1)], dim=1)
        return self.tnorm.conjunction(truths[:, self._padded], dim=-1)

    def match(self, actions: th.Tensor | np.ndarray) -> th.Tensor:
        """
        Truth of "the action is the head's".

        :param actions: in environment units, as ``ActionSet.from_buffer`` returns them: (N,) indices, or (N, action_dim)
        :return: shape (N, K): 0 or 1 for discrete actions, soft in [0, 1] for continuous ones
        """
        taken = th.as_tensor(actions)
        if not self.continuous:
            return (taken.reshape(-1, 1) == self._head_index).to(th.float32)
        x = th.nan_to_num(taken.to(th.float32)[:, self._head_index], 0.0, _HUGE, -_HUGE).clamp(-_HUGE, _HUGE)
        z = (x - self.head_theta) * (self._head_sign * th.exp(-self.head_log_tau) / self.head_scale)
        return th.sigmoid(z.clamp(-_STEEPEST, _STEEPEST))

    def firing_strength(self, features: Mapping[str, th.Tensor], actions: th.Tensor | np.ndarray) -> th.Tensor:
        """:return: m = body · match, shape (N, K), in [0, 1]."""
        return self.body(features) * self.match(actions)

    def score(
        self, features: Mapping[str, th.Tensor], actions: th.Tensor | np.ndarray, *, use_avoid: bool = False
    ) -> th.Tensor:
        """
        S = clip(Σ_k c_k m_k, 0, 1), strengths below 0.01 counting as 0. Differentiable in thresholds, widths, confidences.

        :param features: name -> tensor of shape (N,)
        :param actions: in environment units
        :param use_avoid: count ``avoid`` rules as well, with m = body · (1 − match): doing anything else where the rule speaks
        :return: shape (N,), in [0, 1]
        """
        rows = self.prepare(features)
        if not self.rules:
            return th.zeros(len(th.as_tensor(actions)))
        match = self.match(actions)
        if use_avoid:
            match = th.where(self._avoid, 1.0 - match, match)
        strength = self.body_of(rows) * match
        weight = self.confidence if use_avoid else self.confidence * ~self._avoid
        return (th.where(strength > SCORE_FLOOR, strength, 0.0) @ weight).clamp(0.0, 1.0)

    forward = score

    def state(self) -> list[dict[str, typing.Any]]:
        """:return: fitted values per rule as plain JSON (see ``sb3_nser.rules.entry.Fitted``)."""
        theta, tau, scale = self.theta.tolist(), self.log_tau.exp().tolist(), self.scale.tolist()
        confidence = self.confidence.tolist()
        heads = (self.head_theta.tolist(), self.head_log_tau.exp().tolist(), self.head_scale.tolist())
        out = []
        for k, slots in enumerate(self._slots):
            per_literal = {
                name: [values[at] if is_number else None for is_number, at in slots]
                for name, values in (("theta", theta), ("tau", tau), ("scale", scale))
            }
            head = {name: values[k] if values else None for name, values in zip(_HEAD_KEYS, heads, strict=True)}
            out.append({**per_literal, **head, "confidence": confidence[k]})
        return out

    def load_state(self, state: Sequence[Mapping[str, typing.Any] | None]) -> None:
        """
        :param state: one item per rule, from ``state()``; None leaves a rule as it is, so does a missing key
        :raises ConfigurationError: if the number of rules or conditions differs
        """
        if len(state) != len(self.rules):
            raise ConfigurationError(f"{len(self.rules)} rules need as many fitted states, got {len(state)}.")
        with th.no_grad():
            for k, item in enumerate(state):
                if item is not None:
                    self._load_one(k, item)

    def _load_one(self, k: int, item: Mapping[str, typing.Any]) -> None:
        for name, target in (("theta", self.theta), ("tau", self.log_tau), ("scale", self.scale)):
            values = item.get(name)
            if values is None:
                continue
            if len(values) != len(self._slots[k]):
                raise ConfigurationError(
                    f"fitted {name} of rule '{self.rules[k]}' has {len(values)} items for {len(self._slots[k])} conditions."
                )
            for (is_number, at), value in zip(self._slots[k], values, strict=True):
                if is_number and value is not None:
                    target[at] = math.log(value) if name == "tau" else value
        for name, target in zip(_HEAD_KEYS, (self.head_theta, self.head_log_tau, self.head_scale), strict=True):
            value = item.get(name)
            if value is not None and len(target):
                target[k] = math.log(value) if name == "head_tau" else value
        if item.get("confidence") is not None:
            self.set_confidence(k, float(item["confidence"]))

    def set_confidence(self, k: int, confidence: float) -> None:
        """:param confidence: in [0, 1]; kept 1e-6 away from both ends, so that its logit stays finite."""
        with th.no_grad():
            self.confidence_logit[k] = math.log(bounded := min(max(confidence, 1e-6), 1 - 1e-6)) - math.log1p(-bounded)


_HEAD_KEYS = ("head_theta", "head_tau", "head_scale")


def _scale(vocabulary: Vocabulary, name: str, scales: Mapping[str, float]) -> float:
    """The data's spread; for a constant or unknown feature the width of its stated range, at least 1."""
    given = float(scales.get(name, 0.0))
    if math.isfinite(given) and given > 0.0:
        return min(max(given, 1e-6), 1e12)
    feature = vocabulary[name]
    width = feature.high - feature.low if feature.low is not None and feature.high is not None else 0.0
    return max(width, 1.0) if math.isfinite(width) and width < 1e12 else 1.0
