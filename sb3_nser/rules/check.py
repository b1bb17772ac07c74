"""What is wrong with a rule before any data is looked at: names, kinds, contradictions and repeats in it and between rules."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from sb3_nser.rules.formula import NUMBER_OPS, Condition, Literal, Quantified, children, leaves
from sb3_nser.rules.model import Head, Rule, format_number
from sb3_nser.rules.normal import conjuncts, normal_form
from sb3_nser.rules.reason import implies, literal_contradictions, never_hold
from sb3_nser.vocabulary.features import ActionSet, Feature, ObjectSet, Vocabulary


def problems(rule: Rule, vocabulary: Vocabulary) -> list[str]:
    """
    Everything that keeps a rule from being grounded in a vocabulary.

    :param rule: the rule
    :param vocabulary: the names it may use
    :return: one sentence per problem, each naming the culprit and the cure; empty if the rule is fine
    """
    found = [text for condition in rule.literals for text in _condition_problems(condition, vocabulary)]
    head = _head_problem(rule.head, vocabulary.actions)
    if head:
        found.append(head)
    return found + contradictions(rule.literals, features_by_name(vocabulary))


def features_by_name(vocabulary: Vocabulary) -> dict[str, Feature]:
    """:return: the features by the name that reasoning uses: ``carrying``, and ``object:kind`` for those of objects"""
    known = {feature.name: feature for feature in vocabulary.features}
    for group in vocabulary.objects:
        known |= {f"{group.name}:{feature.name}": feature for feature in group.features}
    return known


def object_features(rules: Iterable[Rule], vocabulary: Vocabulary) -> tuple[str, ...]:
    """:return: what ``Vocabulary.evaluate`` has to compute of objects for these rules: ``object:``, ``object:kind``; sorted"""
    known = features_by_name(vocabulary)
    found: set[str] = set()
    for rule in rules:
        for literal, objects in (leaf for condition in rule.literals for leaf in leaves(condition)):
            if objects:
                found |= {f"{objects}:"} | {f"{objects}:{literal.feature}"} & set(known)
    return tuple(sorted(found))


def contradictions(literals: Iterable[Condition], features: Mapping[str, Feature] | None = None) -> list[str]:
    """
    Reasons why a conjunction can never hold, by intervals for numbers and by exclusion for categories.

    :param literals: the conjunction
    :param features: the features by name (see ``features_by_name``); needed only to see that every value of a category is
        excluded
    :return: one sentence per feature that contradicts itself, or one for a formula that does; empty if the conjunction can
        hold, or nothing certain can be said
    """
    flat = conjuncts(normal_form(item) for item in literals)
    found = literal_contradictions((item for item in flat if isinstance(item, Literal)), features)
    if found or not never_hold(flat, features):
        return found
    alone = [item for item in flat if never_hold([item], features)]
    if alone:
        return [f"'{item}' can never hold." for item in alone]
    return [f"'{' AND '.join(map(str, flat))}' can never hold."]


def redundancies(rule: Rule, features: Mapping[str, Feature] | None = None) -> list[str]:
    """
    Conditions of a rule that change nothing: they always hold, or follow from the others.

    :param rule: a rule that can hold (see ``contradictions``)
    :param features: the features by name (see ``features_by_name``)
    :return: one sentence per condition; without these conditions the rule says the same
    """
    found = []
    kept = list(rule.literals)
    for condition in rule.literals:
        others = list(kept)
        others.remove(condition)
        if implies([], condition, features):
            found.append(f"'{condition}' always holds.")
        elif others and implies(others, condition, features):
            found.append(f"'{condition}' follows from '{' AND '.join(map(str, others))}'.")
        else:
            continue
        kept = others
    return found


def subsumed(rules: Iterable[Rule], features: Mapping[str, Feature] | None = None) -> list[tuple[Rule, Rule, str]]:
    """
    Rules that another rule makes redundant: it has the same head and holds wherever they hold. Nothing is removed: the
    narrower rule may still be the better one.

    :param rules: the rules; repeats (equal keys) count once
    :param features: the features by name (see ``features_by_name``)
    :return: (narrower rule, wider rule, sentence), sorted by the rules' keys
    """
    ordered = _ordered(rules)
    found = []
    for narrow in ordered:
        for wide in ordered:
            if narrow is wide or (narrow.head, narrow.polarity) != (wide.head, wide.polarity):
                continue
            holds = all(implies(narrow.literals, condition, features) for condition in wide.literals)
            if holds and not contradictions(narrow.literals, features):
                found.append((narrow, wide, f"'{narrow}' adds nothing to '{wide}', which holds wherever it does."))
    return found


def conflicts(rules: Iterable[Rule]) -> list[tuple[Rule, Rule, str]]:
    """
    Pairs of rules that ask for different things in the same states.

    Two bodies are compared only if one speaks of no feature that the other does not (``angle > 0.1`` and ``angle > 0 AND
    speed > 0``, but not ``angle > 0.1`` and ``position > 2``) and both can hold at once, which nobody knows of an ``about``
    that only one of them has. The result does not depend on the
    order of the rules. Nothing is removed here: the data decide which of the two stays.

    :param rules: the rules; repeats (equal keys) count once
    :return: (rule, rule, sentence), sorted by the rules' keys
    """
    ordered = _ordered(rules)
    found = []
    for at, first in enumerate(ordered):
        for second in ordered[at + 1 :]:
            clash = _heads_clash(first, second)
            if clash and _bodies_overlap(first.literals, second.literals):
                found.append((first, second, conflict_sentence(first, second)))
    return found


def conflict_sentence(first: Rule, second: Rule) -> str:
    """:return: what two rules that ``conflicts`` found together do to each other, the first one named first"""
    return f"'{first}' and '{second}' {_heads_clash(first, second)} in states where both hold."


def _ordered(rules: Iterable[Rule]) -> list[Rule]:
    unique: dict[str, Rule] = {}
    for rule in rules:
        unique.setdefault(rule.key, rule)
    return [unique[key] for key in sorted(unique)]


def closest(name: str, names: Sequence[str]) -> str:
    """:return: a hint in words: the nearest known name, or the first few known names."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"known: {shown}."


def _condition_problems(condition: Condition, vocabulary: Vocabulary, objects: ObjectSet | None = None) -> list[str]:
    if isinstance(condition, Literal):
        text = _literal_problem(condition, vocabulary, objects)
        return [text] if text else []
    if isinstance(condition, Quantified) and not condition.temporal:
        names = [group.name for group in vocabulary.objects]
        if condition.over not in names:
            offers = closest(condition.over, [*names, "earlier"])
            return [f"'{condition.quantifier} {condition.over}': vocabulary {vocabulary.name!r} has no such objects; {offers}"]
        objects = vocabulary.objects[names.index(condition.over)]
    return [text for part in children(condition) for text in _condition_problems(part, vocabulary, objects)]


def _literal_problem(literal: Literal, vocabulary: Vocabulary, objects: ObjectSet | None) -> str:
    known = {feature.name: feature for feature in (*vocabulary.features, *(objects.features if objects else ()))}
    feature = known.get(literal.feature)
    if feature is None:
        return f"unknown feature {literal.feature!r}; {closest(literal.feature, list(known))}"
    if feature.kind == "number":
        if literal.op in ("is", "in"):
            wrong = f"is {literal.value}" if literal.op == "is" else "in"
            return f"feature {feature.name!r} is a number: compare it with > or <, not with '{wrong}'."
        return ""
    if literal.op in NUMBER_OPS:
        return f"feature {feature.name!r} is a {feature.kind}: use 'is' with one of {', '.join(feature.values)}."
    for value in literal.members:
        if value not in feature.values:
            return f"feature {feature.name!r} has no value {value!r}; {closest(value, feature.values)}"
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


def _bodies_overlap(first: tuple[Condition, ...], second: tuple[Condition, ...]) -> bool:
    both = [{(objects, item) for part in body for item, objects in leaves(part)} for body in (first, second)]
    if any(item.op == "about" for _, item in both[0] ^ both[1]):  # the data decide how wide it is, so nothing is certain
        return False
    one, two = ({(objects, item.feature) for objects, item in body} for body in both)
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
