"""The truths of literals and formulas on a batch: what does not depend on a parameter once, the rest as often as needed.

Truths are kept as logarithms, so that a conjunction of many keeps a gradient where their product underflows.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass

import torch as th
from torch.nn.functional import logsigmoid

from sb3_nser.logic.operators import EPSILON, Product, log_stable, p_mean, p_mean_error
from sb3_nser.logic.plan import Crisp, Junction, Leaf, Node
from sb3_nser.logic.steps import Steps

if typing.TYPE_CHECKING:
    from sb3_nser.logic.bank import RuleBank

STEEPEST = 30.0  # logits beyond ±30 change nothing in float32
HUGE = 1e30


@dataclass(frozen=True)
class Rows:
    """
    A batch as the literals see it.

    :param numbers: the feature of each number literal on the state, shape (N, M), finite
    :param unknown: where it was NaN, shape (N, M), or None if nowhere
    :param crisp: logarithms of the truths of the crisp literals on the state, shape (N, Q), or None if there are none
    :param steps: which rows are steps of one episode, or None
    :param object_numbers: per number literal on objects the feature, shape (N, places), NaN where unknown
    :param object_crisp: per crisp literal on objects the logarithms of its truths, shape (N, places)
    :param present: per object set whether there is one, booleans of shape (N, places)
    """

    numbers: th.Tensor
    unknown: th.Tensor | None
    crisp: th.Tensor | None
    steps: Steps | None = None
    object_numbers: tuple[th.Tensor, ...] = ()
    object_crisp: tuple[th.Tensor, ...] = ()
    present: Mapping[str, th.Tensor] | None = None

    def take(self, index: th.Tensor) -> Rows:
        """:return: the rows at the given positions, which rise if they are steps of episodes"""
        return Rows(
            self.numbers[index],
            None if self.unknown is None else self.unknown[index],
            None if self.crisp is None else self.crisp[index],
            None if self.steps is None else self.steps.take(index),
            tuple(column[index] for column in self.object_numbers),
            tuple(column[index] for column in self.object_crisp),
            None if self.present is None else {name: there[index] for name, there in self.present.items()},
        )


def prepared(bank: RuleBank, features: Mapping[str, th.Tensor], steps: Steps | None, rows: int) -> Rows:
    """See ``RuleBank.prepare``."""
    plan, device = bank.plan, bank.theta.device
    features = {name: features[name].to(device, th.float32) for name in bank.names}
    objects = (
        tuple(features[item.feature].clamp(-HUGE, HUGE) for item in plan.object_numbers),
        tuple(_crisp(features[item.feature], item) for item in plan.object_crisp),
        {group: features[f"{group}:"] > 0.5 for group in plan.groups},
    )
    if not bank.feature_names:
        return Rows(th.zeros(rows, 0, device=device), None, None, steps, *objects)
    columns = th.stack([features[name] for name in bank.feature_names], dim=1)
    unknown = th.isnan(columns)
    dirty = th.compiler.is_compiling() or bool(unknown.any())  # a compiled graph cannot depend on what is in a column
    columns = columns.clamp(-HUGE, HUGE)
    crisp = None
    if len(bank._crisp_column):
        of_each = columns[:, bank._crisp_column]
        holds = of_each == bank._crisp_codes[:, 0]
        for other in range(1, bank._crisp_codes.shape[1]):
            holds = holds | (of_each == bank._crisp_codes[:, other])
        holds = holds != bank._crisp_negated
        if dirty:
            holds = holds & ~unknown[:, bank._crisp_column]
        crisp = th.where(holds, math.log1p(-EPSILON), math.log(EPSILON))
    if dirty:
        columns = th.where(unknown, 0.0, columns)
    return Rows(columns[:, bank._column], unknown[:, bank._column] if dirty else None, crisp, steps, *objects)


def _crisp(column: th.Tensor, literal: Crisp) -> th.Tensor:
    holds = th.zeros_like(column, dtype=th.bool)
    for code in literal.codes:
        holds = holds | (column == code)
    holds = (holds != literal.negated) & ~th.isnan(column)
    return th.where(holds, math.log1p(-EPSILON), math.log(EPSILON))


def log_literals(bank: RuleBank, rows: Rows) -> th.Tensor:
    """:return: logarithms of the truths of the literals on the state, numbers first, shape (N, M + Q)"""
    parts = []
    if rows.numbers.shape[1]:
        parts.append(_log_numbers(bank, rows.numbers, rows.unknown, slice(rows.numbers.shape[1])))
    if rows.crisp is not None:
        parts.append(rows.crisp)
    return parts[0] if len(parts) == 1 else th.cat(parts, dim=1) if parts else rows.numbers


def _log_numbers(bank: RuleBank, x: th.Tensor, unknown: th.Tensor | None, which: slice | int) -> th.Tensor:
    steepness = bank._sign[which] * th.exp(-bank.log_tau[which]) / bank.scale[which]
    z = ((x - bank.theta[which]) * steepness).clamp(-STEEPEST, STEEPEST)
    if not bank._has_about:
        return logsigmoid(z if unknown is None else th.where(unknown, -STEEPEST, z))
    bell = (-0.5 * z.square()).clamp(min=-STEEPEST)
    opposite = log_stable(-th.expm1(bell))
    log_truth = th.where(bank._about[which], th.where(bank._opposite[which], opposite, bell), logsigmoid(z))
    return log_truth if unknown is None else th.where(unknown, -STEEPEST, log_truth)


def log_formulas(bank: RuleBank, rows: Rows, literals: th.Tensor) -> th.Tensor:
    """
    :param literals: what ``log_literals`` returned
    :return: logarithms of the truths of the formulas, shape (N, F)
    """
    return th.stack([_log_node(bank, rows, literals, node, False) for node in bank.plan.formulas], dim=1)


def _log_node(bank: RuleBank, rows: Rows, literals: th.Tensor, node: Node, of_objects: bool) -> th.Tensor:
    """:return: shape (N,), or with ``of_objects`` (N, places) or (N, 1)"""
    if isinstance(node, Leaf):
        if not node.of_objects:
            column = literals[:, node.at if node.number else rows.numbers.shape[1] + node.at]
            return column[:, None] if of_objects else column
        if not node.number:
            return rows.object_crisp[node.at]
        x = rows.object_numbers[node.at]
        unknown = th.isnan(x)
        return _log_numbers(bank, th.where(unknown, 0.0, x), unknown, rows.numbers.shape[1] + node.at)
    if isinstance(node, Junction):
        parts = [_log_node(bank, rows, literals, part, of_objects) for part in node.parts]
        if node.conjunction and isinstance(bank.tnorm, Product):
            return sum(parts[1:], parts[0])
        truths = th.stack(th.broadcast_tensors(*parts), dim=-1).exp()  # type: ignore[no-untyped-call]
        return _log(bank.tnorm.conjunction(truths) if node.conjunction else bank.tnorm.disjunction(truths))
    if node.objects:
        assert rows.present is not None
        there = rows.present[node.objects]
        truths = _log_node(bank, rows, literals, node.body, True).exp().expand(there.shape)
        return _log((p_mean if node.exists else p_mean_error)(truths, bank.p, mask=there))
    assert rows.steps is not None
    truths = _log_node(bank, rows, literals, node.body, False).exp()
    over = rows.steps.exists if node.exists else rows.steps.forall
    return _log(over(truths, node.reach, bank.p))


def _log(truths: th.Tensor) -> th.Tensor:
    return truths.clamp(min=1e-30).log()
