"""What is wrong with a rule before any data is looked at: names, kinds, contradictions inside it and between rules."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

from sb3_nser.rules.model import Head, Literal, Rule, format_number
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary


def problems(rule: Rule, vocabulary: Vocabulary) -> list[str]:
    """
    Everything that keeps a rule from being grounded in a vocabulary.

    :param rule: the rule
    :param vocabulary: the names it may use
    :return: one sentence per problem, each naming the culprit and the cure; empty if the rule is fine
    """
    found = [text for literal in rule.literals if (text := _literal_problem(literal, vocabulary))]
    head = _head_problem(rule.head, vocabulary.actions)
    if head:
        found.append(head)
    known = {feature.name: feature for feature in vocabulary.features}
    return found + contradictions(rule.literals, known)


def contradictions(literals: Iterable[Literal], features: dict[str, Feature] | None = None) -> list[str]:
    """
    Reasons why a conjunction can never hold, by intervals for numbers and by exclusion for categories.

    :param literals: the conjunction
    :param features: the features by name; needed only to see that every value of a category is excluded
    :return: one sentence per feature that contradicts itself; empty if the conjunction can hold
    """
    by_feature: dict[str, list[Literal]] = {}
    for literal in literals:
        by_feature.setdefault(literal.feature, []).append(literal.canonical())
    found = []
    for name in sorted(by_feature):
        group = by_feature[name]
        low, high = _interval(group)
        if low >= high:
            found.append(f"{name} cannot be above {format_number(low)} and below {format_number(high)} at once.")
        wanted = sorted({str(item.value) for item in group if item.op == "is" and not item.negated})
        excluded = {str(item.value) for item in group if item.op == "is" and item.negated}
        if len(wanted) > 1:
            found.append(f"{name} cannot be {' and '.join(wanted)} at once.")
        elif wanted and wanted[0] in excluded:
            found.append(f"{name} cannot be {wanted[0]} and not {wanted[0]} at once.")
        feature = (features or {}).get(name)
        if feature is not None and feature.values and excluded >= set(feature.values):
            found.append(f"every value of {name} is excluded.")
    return found


def conflicts(rules: Iterable[Rule]) -> list[tuple[Rule, Rule, str]]:
    """
    Pairs of rules that ask for different things in the same states.

    Two bodies are compared only if one speaks of no feature that the other does not (``angle > 0.1`` and ``angle > 0 AND
    speed > 0``, but not ``angle > 0.1`` and ``position > 2``) and both can hold at once. The result does not depend on the
    order of the rules. Nothing is removed here: the data decide which of the two stays.

    :param rules: the rules; repeats (equal keys) count once
    :return: (rule, rule, sentence), sorted by the rules' keys
    """
    unique: dict[str, Rule] = {}
    for rule in rules:
        unique.setdefault(rule.key, rule)
    ordered = [unique[key] for key in sorted(unique)]
    found = []
    for at, first in enumerate(ordered):
        for second in ordered[at + 1 :]:
            clash = _heads_clash(first, second)
            if clash and _bodies_overlap(first.literals, second.literals):
                found.append((first, second, f"'{first}' and '{second}' {clash} in states where both hold."))
    return found


def closest(name: str, names: Sequence[str]) -> str:
    """:return: a hint in words: the nearest known name, or the first few known names."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"known: {shown}."


def _literal_problem(literal: Literal, vocabulary: Vocabulary) -> str:
    if literal.feature not in vocabulary:
        hint = closest(literal.feature, [feature.name for feature in vocabulary.features])
        return f"unknown feature {literal.feature!r}; {hint}"
    feature = vocabulary[literal.feature]
    if feature.kind == "number":
        if literal.op == "is":
            return f"feature {feature.name!r} is a number: compare it with > or <, not with 'is {literal.value}'."
        return ""
    if literal.op != "is":
        return f"feature {feature.name!r} is a {feature.kind}: use 'is' with one of {', '.join(feature.values)}."
    if literal.value not in feature.values:
        return f"feature {feature.name!r} has no value {literal.value!r}; {closest(str(literal.value), feature.values)}"
    return ""


def _head_problem(head: Head, actions: ActionSet) -> str:
    if head.action not in actions.names:
        return f"unknown action {head.action!r}; {closest(head.action, actions.names)}"
    if not actions.continuous:
        return f"action {head.action!r} is discrete: name it alone, without '{head.op}'." if head.op is not None else ""
    if head.value is None or actions.low is None or actions.high is None:
        return f"action {head.action!r} is continuous: compare it with a number, for example '{head.action} > 0'."
    at = actions.names.index(head.action)
    low, high = actions.low[at], actions.high[at]
    if not low < head.value < high:
        limits = f"{format_number(low)} and {format_number(high)}"
        return f"'{head}' separates no two actions: {head.action} lies between {limits}; choose a value inside."
    return ""


def _interval(literals: Iterable[Literal]) -> tuple[float, float]:
    low, high = -math.inf, math.inf
    for item in literals:
        if isinstance(item.value, float):
            if item.op == ">":
                low = max(low, item.value)
            elif item.op == "<":
                high = min(high, item.value)
    return low, high


def _bodies_overlap(first: tuple[Literal, ...], second: tuple[Literal, ...]) -> bool:
    one, two = {item.feature for item in first}, {item.feature for item in second}
    return (one <= two or two <= one) and not contradictions((*first, *second))


def _heads_clash(first: Rule, second: Rule) -> str:
    """:return: what the two rules do to each other in words; empty if they get along."""
    a, b = first.head, second.head
    if first.polarity == second.polarity == "avoid":
        return ""
    if first.polarity != second.polarity:
        prefer, avoid = (a, b) if first.polarity == "prefer" else (b, a)
        return f"prefer and avoid {prefer}" if _implies(prefer, avoid) else ""
    if a.op is None and b.op is None:
        return f"prefer different actions ({a} and {b})" if a.action != b.action else ""
    if a.action != b.action or a.op == b.op or a.value is None or b.value is None:
        return ""
    low, high = (a.value, b.value) if a.op == ">" else (b.value, a.value)
    return f"prefer {a} and {b}, which exclude each other," if low >= high else ""


def _implies(head: Head, other: Head) -> bool:
    """Every action that satisfies ``head`` satisfies ``other``."""
    if head.action != other.action or head.op != other.op:
        return False
    if head.value is None or other.value is None:
        return True
    return head.value >= other.value if head.op == ">" else head.value <= other.value
