"""All rules of a run as one differentiable module, vectorised over transitions, rules and literals.

A number literal is σ(±(x − θ)/(τ·scale)), ``about`` exp(−½((x − θ)/(τ·scale))²); booleans and categories are crisp up to ε.
Thresholds θ, widths τ and confidences c are parameters. The forms are this package's own choice.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import torch as th
from torch import nn

from sb3_nser.arguments import as_number
from sb3_nser.errors import ConfigurationError
from sb3_nser.logic.grounded import HUGE, STEEPEST, Rows, log_formulas, log_literals, prepared
from sb3_nser.logic.operators import Product, tnorm_by_name
from sb3_nser.logic.plan import ABOUT_TAU, TAU, Plan
from sb3_nser.logic.steps import Steps
from sb3_nser.rules.check import problems
from sb3_nser.rules.formula import leaves
from sb3_nser.rules.model import Rule
from sb3_nser.rules.normal import packed
from sb3_nser.vocabulary.features import Vocabulary

HEAD_TAU = 0.02
"""The same for a continuous head, in units of the action's range: actions carry no noise, so it is sharp."""
TAU_BOUNDS = (0.02, 1.0)
HEAD_TAU_BOUNDS = (0.005, 0.2)
SCORE_FLOOR = 0.01
"""Firing strengths below this score 0. Otherwise the ε of a false category, summed over a million rows that do not fire, would
outweigh the ten that do."""

QUANTIFIER_P = 20.0
"""Exponent of the quantifiers' means in rules: among 1000 steps a single true one still makes ``exists`` 0.71 true."""


class RuleBank(nn.Module):
    """
    K rules, stacked.

    :param rules: the rules; none is allowed and scores 0 everywhere
    :param vocabulary: the names they use
    :param scales: spread of each number feature (see ``scales_from``); a feature that is missing takes the width of its
        range, or 1
    :param tnorm: ``product`` (in log space), ``goedel`` or ``lukasiewicz``
    :param p: exponent of the quantifiers' means, 1 to 64. A larger one lets a single step or object decide: one true among n
        makes ``exists`` n^(−1/p) true (0.71 for 1000 and 20) and one false makes ``forall`` 1 − n^(−1/p) true; a smaller one
        gives more of them a gradient
    :raises ConfigurationError: if a rule cannot be grounded in the vocabulary, the t-norm is unknown, or p is out of range
    """

    theta: nn.Parameter
    """Thresholds of all number literals in feature units, shape (M,): those on the state, then those on objects."""
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
    _about: th.Tensor
    _opposite: th.Tensor
    _owner: th.Tensor
    _column: th.Tensor
    _crisp_column: th.Tensor
    _crisp_codes: th.Tensor
    _crisp_negated: th.Tensor
    _assign: th.Tensor
    _padded: th.Tensor
    _head_index: th.Tensor
    _head_sign: th.Tensor
    _avoid: th.Tensor

    def __init__(
        self,
        rules: Sequence[Rule],
        vocabulary: Vocabulary,
        scales: Mapping[str, float],
        tnorm: str = "product",
        *,
        p: float = QUANTIFIER_P,
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
        self.p = as_number("p", p, 1.0, 64.0)
        self.history = max((rule.history for rule in rules), default=0)
        """How many earlier steps of the episode the truths depend on; 0 for rules without temporal quantifiers."""
        self.plan = Plan.of(rules, vocabulary, scales)
        used = {item.feature for item in self.plan.numbers} | {item.feature for item in self.plan.crisp}
        self.feature_names = tuple(feature.name for feature in vocabulary.features if feature.name in used)
        """Features of the state that the rules use."""
        of_objects = {item.feature for item in self.plan.object_numbers} | {item.feature for item in self.plan.object_crisp}
        self.names = (*self.feature_names, *(f"{group}:" for group in self.plan.groups), *sorted(of_objects))
        """The same and those of objects (``object:kind``), as ``Vocabulary.evaluate`` takes them."""
        self.continuous = vocabulary.actions.continuous
        self._stack_literals()
        self._stack_heads(vocabulary)
        confidences = th.tensor([min(max(rule.confidence, 1e-3), 1 - 1e-3) for rule in rules], dtype=th.float32)
        self.confidence_logit = nn.Parameter(th.logit(confidences))

    def _stack_literals(self) -> None:
        plan = self.plan
        column = {name: at for at, name in enumerate(self.feature_names)}
        numbers, crisp = [*plan.numbers, *plan.object_numbers], plan.crisp
        theta = th.tensor([item.value for item in numbers], dtype=th.float64)
        self.theta = nn.Parameter(theta.clamp(-HUGE, HUGE).float())
        self.log_tau = nn.Parameter(th.tensor([math.log(ABOUT_TAU if item.about else TAU) for item in numbers]))
        self._keep("_column", th.tensor([column[item.feature] for item in plan.numbers], dtype=th.long))
        self._keep("_sign", th.tensor([item.sign for item in numbers], dtype=th.float32))
        self._keep("_about", th.tensor([item.about for item in numbers], dtype=th.bool))
        self._keep("_opposite", th.tensor([item.negated for item in numbers], dtype=th.bool))
        self._keep("scale", th.tensor([item.scale for item in numbers], dtype=th.float32))
        self._has_about = any(item.about for item in numbers)
        self._keep("_crisp_column", th.tensor([column[item.feature] for item in crisp], dtype=th.long))
        width = max((len(item.codes) for item in crisp), default=1)
        codes = [[*item.codes, *[-1] * (width - len(item.codes))] for item in crisp]
        self._keep("_crisp_codes", th.tensor(codes, dtype=th.float32).reshape(len(crisp), width))
        self._keep("_crisp_negated", th.tensor([item.negated for item in crisp], dtype=th.bool))
        first = {"number": 0, "crisp": len(plan.numbers), "formula": len(plan.numbers) + len(crisp)}
        total, longest = first["formula"] + len(plan.formulas), max((len(body) for body in plan.bodies), default=0)
        assign = th.zeros(total, len(self.rules))
        padded = th.full((len(self.rules), longest), total, dtype=th.long)  # position ``total`` holds the truth 1
        for k, body in enumerate(plan.bodies):
            for place, (kind, at) in enumerate(body):
                assign[first[kind] + at, k] = 1.0
                padded[k, place] = first[kind] + at
        self._keep("_assign", assign)
        self._keep("_padded", padded)
        # per rule and condition the positions of its thresholds in theta
        self._owned = [
            [[at + of_objects * len(plan.numbers) for of_objects, at in mine] for mine in conditions]
            for conditions in plan.owned
        ]
        owner = th.zeros(len(numbers), dtype=th.long)
        for k, conditions in enumerate(self._owned):
            owner[[at for mine in conditions for at in mine]] = k
        self._keep("_owner", owner)

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

    def prepare(self, features: Mapping[str, th.Tensor], steps: Steps | None = None) -> Rows:
        """
        Everything about a batch that does not depend on a parameter.

        :param features: name -> tensor of shape (N,), of objects (N, places); at least those in ``names``; infinities count as
            very large
        :param steps: which rows are steps of one episode; needed where ``history`` is not 0
        :return: the rows, to be given to ``body_of`` as often as needed
        :raises ConfigurationError: if a feature or the steps are missing
        """
        missing = [name for name in self.names if name not in features]
        if missing:
            raise ConfigurationError(f"the rules need the features {', '.join(missing)}, which were not given.")
        if self.history and steps is None:
            raise ConfigurationError("the rules speak of earlier steps: say which rows are steps of one episode (steps=...).")
        rows = next((len(column) for column in features.values()), 0)
        if steps is not None and len(steps.episodes) != rows:
            raise ConfigurationError(f"{rows} rows need steps of as many, got {len(steps.episodes)}.")
        return prepared(self, features, steps, rows)

    def body(self, features: Mapping[str, th.Tensor], steps: Steps | None = None) -> th.Tensor:
        """:return: truth of each body, shape (N, K), in [0, 1], never NaN; a NaN feature satisfies no condition."""
        return self.body_of(self.prepare(features, steps))

    def body_of(self, rows: Rows) -> th.Tensor:
        """The same from ``prepare(features)``."""
        if isinstance(self.tnorm, Product):
            return th.exp(self.log_body_of(rows))
        log_truths = self._log_conjuncts(rows)
        truths = th.cat([log_truths.exp(), log_truths.new_ones(len(log_truths), 1)], dim=1)
        return self.tnorm.conjunction(truths[:, self._padded], dim=-1)

    def log_body_of(self, rows: Rows) -> th.Tensor:
        """
        :return: with the product t-norm, logarithm of the truth of each body, shape (N, K): finite and with a gradient to
            every condition where the truth itself is too small for a float
        :raises ConfigurationError: with another t-norm
        """
        if not isinstance(self.tnorm, Product):
            raise ConfigurationError(f"tnorm={self.tnorm.name!r} has no form in logarithms; 'product' has.")
        return self._log_conjuncts(rows) @ self._assign

    def _log_conjuncts(self, rows: Rows) -> th.Tensor:
        log_truths = log_literals(self, rows)
        if not self.plan.formulas:
            return log_truths
        return th.cat([log_truths, log_formulas(self, rows, log_truths)], dim=1)

    def match(self, actions: th.Tensor | np.ndarray) -> th.Tensor:
        """
        Truth of "the action is the head's".

        :param actions: in environment units, as ``ActionSet.from_buffer`` returns them: (N,) indices, or (N, action_dim)
        :return: shape (N, K): 0 or 1 for discrete actions, soft in [0, 1] for continuous ones
        """
        taken = th.as_tensor(actions, device=self._head_index.device)
        if not self.continuous:
            return (taken.reshape(-1, 1) == self._head_index).to(th.float32)
        x = th.nan_to_num(taken.to(th.float32)[:, self._head_index], 0.0, HUGE, -HUGE).clamp(-HUGE, HUGE)
        z = (x - self.head_theta) * (self._head_sign * th.exp(-self.head_log_tau) / self.head_scale)
        return th.sigmoid(z.clamp(-STEEPEST, STEEPEST))

    def firing_strength(
        self, features: Mapping[str, th.Tensor], actions: th.Tensor | np.ndarray, steps: Steps | None = None
    ) -> th.Tensor:
        """:return: m = body · match, shape (N, K), in [0, 1]."""
        return self.body(features, steps) * self.match(actions)

    def score(
        self,
        features: Mapping[str, th.Tensor],
        actions: th.Tensor | np.ndarray,
        *,
        use_avoid: bool = False,
        steps: Steps | None = None,
    ) -> th.Tensor:
        """
        S = clip(Σ_k c_k m_k, 0, 1), strengths below 0.01 counting as 0. Differentiable in thresholds, widths, confidences.

        :param features: name -> tensor of shape (N,), of objects (N, places)
        :param actions: in environment units
        :param use_avoid: count ``avoid`` rules as well, with m = body · (1 − match): doing anything else where the rule speaks
        :param steps: which rows are steps of one episode; needed where ``history`` is not 0
        :return: shape (N,), in [0, 1]
        """
        if not self.rules:
            return th.zeros(len(th.as_tensor(actions)), device=self.confidence_logit.device)
        rows = self.prepare(features, steps)
        match = self.match(actions)
        if use_avoid:
            match = th.where(self._avoid, 1.0 - match, match)
        strength = self.body_of(rows) * match
        weight = self.confidence if use_avoid else self.confidence * ~self._avoid
        return (th.where(strength > SCORE_FLOOR, strength, 0.0) @ weight).clamp(0.0, 1.0)

    forward = score

    def crossed(self) -> th.Tensor:
        """:return: rules in which a fit has moved the two ends of a ``between`` past each other, booleans of shape (K,)"""
        found = th.zeros(len(self.rules), dtype=th.bool, device=self.theta.device)
        for k, rule in enumerate(self.rules):
            for condition, mine in zip(rule.literals, self._owned[k], strict=True):
                place = 0
                for literal, _ in leaves(condition):
                    if literal.op == "between":
                        found[k] |= self.theta[mine[place]] >= self.theta[mine[place + 1]]
                    place += len(literal.numbers)
        return found

    def state(self) -> list[dict[str, typing.Any]]:
        """:return: fitted values per rule as plain JSON (see ``sb3_nser.rules.entry.Fitted``)."""
        lists = (self.theta.tolist(), self.log_tau.exp().tolist(), self.scale.tolist())
        confidence = self.confidence.tolist()
        heads = (self.head_theta.tolist(), self.head_log_tau.exp().tolist(), self.head_scale.tolist())
        out = []
        for k, (rule, owned) in enumerate(zip(self.rules, self._owned, strict=True)):
            per_condition = {
                name: [packed(item, [values[at] for at in mine]) for item, mine in zip(rule.literals, owned, strict=True)]
                for name, values in zip(_KEYS, lists, strict=True)
            }
            head = {name: values[k] if values else None for name, values in zip(_HEAD_KEYS, heads, strict=True)}
            out.append({**per_condition, **head, "confidence": confidence[k]})
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
        for name, target in zip(_KEYS, (self.theta, self.log_tau, self.scale), strict=True):
            values = item.get(name)
            if values is None:
                continue
            if len(values) != len(self._owned[k]):
                raise ConfigurationError(
                    f"fitted {name} of rule '{self.rules[k]}' has {len(values)} items for {len(self._owned[k])} conditions."
                )
            for mine, given in zip(self._owned[k], values, strict=True):
                if given is None or not mine:
                    continue
                each = given if isinstance(given, list) else [given]
                if len(each) != len(mine):
                    raise ConfigurationError(
                        f"fitted {name} of rule '{self.rules[k]}' has {len(each)} numbers for a condition with {len(mine)}."
                    )
                for at, value in zip(mine, each, strict=True):
                    if value is not None:
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


_KEYS = ("theta", "tau", "scale")
_HEAD_KEYS = ("head_theta", "head_tau", "head_scale")
