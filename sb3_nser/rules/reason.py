"""What follows from conditions alone, by intervals for numbers and by sets for categories: can they hold, do they always?

The reasoning is sound and incomplete: whatever is claimed is so, but not everything that is so is found. Thresholds are read
as crisp ones; ``about`` has a width that the data decide, so nothing is claimed about two different ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from sb3_nser.rules.formula import MAX_HISTORY, Condition, Connective, Literal, Quantified, children, format_number
from sb3_nser.rules.normal import conjuncts, normal_form
from sb3_nser.vocabulary.features import Feature

MAX_CLAUSES = 256
"""Alternatives looked at; beyond them nothing is claimed."""

Features = Mapping[str, Feature]


def never_hold(conditions: Iterable[Condition], features: Features | None = None, objects: str = "") -> bool:
    """
    :param conditions: a conjunction
    :param features: the features by name, those of objects as ``object:kind``; lets all values of a category be counted
    :param objects: the object set the conditions are about, empty for the state
    :return: whether they certainly exclude each other
    """
    clauses = _clauses([normal_form(item) for item in conditions])
    return clauses is not None and all(_conflict(clause, features, objects) for clause in clauses)


def implies(conditions: Iterable[Condition], conclusion: Condition, features: Features | None = None) -> bool:
    """:return: whether the conclusion certainly holds wherever all the conditions do"""
    return never_hold([*conditions, normal_form(conclusion, negate=True)], features)


def literal_contradictions(literals: Iterable[Literal], features: Features | None = None, objects: str = "") -> list[str]:
    """:return: one sentence per feature whose literals exclude each other, sorted by feature"""
    by_feature: dict[str, list[Literal]] = {}
    for literal in literals:
        by_feature.setdefault(literal.feature, []).append(literal.canonical())
    found = []
    for name in sorted(by_feature):
        known = None if features is None else features.get(f"{objects}:{name}", features.get(name))
        found += _of_numbers(name, by_feature[name]) + _of_values(name, by_feature[name], known)
    return found


def _of_numbers(name: str, group: Sequence[Literal]) -> list[str]:
    low = max((item.numbers[0] for item in group if item.op == ">"), default=-math.inf)
    high = min((item.numbers[0] for item in group if item.op == "<"), default=math.inf)
    found = []
    if low >= high:
        found.append(f"{name} cannot be above {format_number(low)} and below {format_number(high)} at once.")
    about = {item.negated: {i.numbers[0] for i in group if i.op == "about" and i.negated == item.negated} for item in group}
    for number in sorted(about.get(True, set()) & about.get(False, set())):
        found.append(f"{name} cannot be about {format_number(number)} and not about {format_number(number)} at once.")
    return found


def _of_values(name: str, group: Sequence[Literal], feature: Feature | None) -> list[str]:
    symbols = [item for item in group if item.op in ("is", "in")]
    wanted = sorted({item.members for item in symbols if not item.negated})
    excluded = {value for item in symbols if item.negated for value in item.members}
    if not wanted:
        everything = feature is not None and bool(feature.values) and excluded >= set(feature.values)
        return [f"every value of {name} is excluded."] if everything else []
    left = set(wanted[0]).intersection(*wanted)
    if not left:
        if all(len(members) == 1 for members in wanted):
            return [f"{name} cannot be {' and '.join(members[0] for members in wanted)} at once."]
        return [f"{name} cannot be in {' and in '.join('{' + ', '.join(members) + '}' for members in wanted)} at once."]
    if left <= excluded:
        shown = ", ".join(sorted(left))
        return [f"{name} cannot be {shown} and not {shown} at once."]
    return []


def _clauses(conditions: Sequence[Condition]) -> list[list[Condition]] | None:
    """:return: the disjunctive normal form; None if it is too large"""
    found: list[list[Condition]] = [[]]
    for condition in conjuncts(conditions):
        if not isinstance(condition, Connective):
            found = [[*clause, condition] for clause in found]
            continue
        options: list[list[Condition]] = []  # an OR: conjuncts has taken the ANDs apart
        for part in children(condition):
            inner = _clauses([part])
            if inner is None:
                return None
            options += inner
        if len(found) * len(options) > MAX_CLAUSES:
            return None
        found = [[*clause, *option] for clause in found for option in options]
    return found


def _conflict(clause: Sequence[Condition], features: Features | None, objects: str) -> bool:
    if literal_contradictions((item for item in clause if isinstance(item, Literal)), features, objects):
        return True
    quantified = [item for item in clause if isinstance(item, Quantified)]
    for some in quantified:
        if some.quantifier != "exists":
            continue  # "all of none" holds where there is nothing to look at
        bodies = [other.body for other in quantified if other.quantifier == "forall" and _covers(other, some)]
        if never_hold([some.body, *bodies], features, objects if some.temporal else some.over):
            return True
    return False


def _covers(every: Quantified, some: Quantified) -> bool:
    """Whether whatever ``some`` looks at is looked at by ``every`` too."""
    if every.over != some.over:
        return False
    return not some.temporal or (every.within or MAX_HISTORY) >= (some.within or MAX_HISTORY)
