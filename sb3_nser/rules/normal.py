"""Conditions turned into others that say the same: negation normal form, the one form that is compared, other thresholds.

A negation can always be pushed down to the literals, because ∨, → and the quantifiers are defined as duals (see
``sb3_nser.logic``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sb3_nser.rules.formula import MAX_HISTORY, Condition, Connective, Literal, Quantified, children, leaves


def thresholds(condition: Condition) -> list[float]:
    """:return: the numbers in it that can be fitted, from left to right, those of ``between`` in rising order"""
    return [number for literal, _ in leaves(condition) for number in literal.numbers]


def packed(condition: Condition, values: Sequence[float]) -> float | list[float] | None:
    """
    Fitted values of one condition as they are kept: None if it has no number, one number for a literal such as ``x > 1``, else
    a list in the order of ``thresholds``.
    """
    if not values:
        return None
    return values[0] if isinstance(condition, Literal) and len(values) == 1 else list(values)


def with_thresholds(condition: Condition, values: Iterator[float]) -> Condition:
    """:return: the condition with its numbers replaced by the next ones of ``values``, in the order of ``thresholds``"""
    if isinstance(condition, Literal):
        moved = [next(values) for _ in condition.numbers]
        if not moved:
            return condition
        return condition.model_copy(update={"value": moved[0] if len(moved) == 1 else tuple(moved)})
    if isinstance(condition, Connective):
        return condition.model_copy(update={"parts": tuple(with_thresholds(part, values) for part in condition.parts)})
    return condition.model_copy(update={"body": with_thresholds(condition.body, values)})


def normal_form(condition: Condition, negate: bool = False) -> Condition:
    """
    Negation normal form: ``between`` becomes two thresholds, ``->`` an OR, and NOT stands before ``is``, ``in`` and ``about``
    only. The order of the literals stays.

    :param negate: whether to negate the condition
    """
    negate ^= condition.negated
    if isinstance(condition, Literal):
        if condition.op == "between":
            low, high = condition.numbers
            ends = ((">", low), ("<", high)) if not negate else (("<", low), (">", high))
            parts = tuple(Literal(feature=condition.feature, op=op, value=end) for op, end in ends)  # type: ignore[arg-type]
            return Connective(connective="or" if negate else "and", parts=parts)
        return condition.model_copy(update={"negated": negate}).folded()
    if isinstance(condition, Quantified):
        quantifier = condition.quantifier if not negate else "forall" if condition.quantifier == "exists" else "exists"
        body = normal_form(condition.body, negate)
        within = None if condition.steps >= MAX_HISTORY else condition.within
        return Quantified.model_construct(quantifier=quantifier, over=condition.over, within=within, body=body, negated=False)
    first = condition.connective == "implies"  # a -> b is NOT a OR b
    joined = tuple(normal_form(part, negate ^ (first and at == 0)) for at, part in enumerate(condition.parts))
    conjunction = (condition.connective == "and") != negate
    return Connective.model_construct(connective="and" if conjunction else "or", parts=joined, negated=False)


def canonical(condition: Condition) -> Condition:
    """:return: an equal condition in the one form that is compared: normal form, sorted, flat, without repeats"""
    return _sorted(normal_form(condition))


def conjuncts(conditions: Iterable[Condition]) -> list[Condition]:
    """:return: the conditions with the parts of every AND in place of it"""
    out: list[Condition] = []
    for condition in conditions:
        is_and = isinstance(condition, Connective) and condition.connective == "and" and not condition.negated
        out += conjuncts(children(condition)) if is_and else [condition]
    return out


def _sorted(condition: Condition) -> Condition:
    if isinstance(condition, Literal):
        return condition.canonical()
    if isinstance(condition, Quantified):
        return condition.model_copy(update={"body": _sorted(condition.body)})
    unique: dict[str, Condition] = {}
    for part in map(_sorted, condition.parts):
        same = isinstance(part, Connective) and part.connective == condition.connective
        for item in children(part) if same else (part,):
            unique[str(item)] = item
    parts = tuple(unique[text] for text in sorted(unique))
    return parts[0] if len(parts) == 1 else condition.model_copy(update={"parts": parts})
