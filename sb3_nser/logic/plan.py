"""From rules to arrays: which thresholds and crisp literals there are, and how bodies and formulas are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sb3_nser.rules.check import features_by_name
from sb3_nser.rules.formula import Condition, Literal, Quantified, children
from sb3_nser.rules.model import Rule
from sb3_nser.rules.normal import conjuncts, normal_form
from sb3_nser.vocabulary.features import Feature, Vocabulary

TAU = 0.1
"""Width of a threshold to begin with, in units of the feature's scale: the way from 5 % to 95 % true takes 0.6 scales."""
ABOUT_TAU = 0.25
"""The same for ``about``, a bell curve: it holds (truth above 0.5) up to 0.29 scales away."""


@dataclass(frozen=True)
class Threshold:
    """One number of a literal, with what it takes to compare with it."""

    feature: str
    value: float
    sign: float
    scale: float
    about: bool = False
    negated: bool = False


@dataclass(frozen=True)
class Crisp:
    """One ``is`` or ``in``."""

    feature: str
    codes: tuple[int, ...]
    negated: bool


@dataclass(frozen=True)
class Leaf:
    """A literal inside a formula: position among the literals of its kind, those of the state or those of objects."""

    number: bool
    at: int
    of_objects: bool


@dataclass(frozen=True)
class Junction:
    """A conjunction or disjunction inside a formula."""

    conjunction: bool
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Quantifier:
    """A quantifier: over ``reach`` earlier steps, or over ``objects``."""

    exists: bool
    reach: int
    objects: str
    body: Node


Node = Leaf | Junction | Quantifier


@dataclass
class Plan:
    """
    The literals of all rules, state and objects apart, and the rules made of them.

    :ivar numbers: thresholds on features of the state; the parameters of those on objects come after them
    :ivar crisp: ``is`` and ``in`` on features of the state
    :ivar formulas: what is no plain literal
    :ivar bodies: per rule its conjuncts, as (``number`` / ``crisp`` / ``formula``, position)
    :ivar owned: per rule and condition its thresholds, as (of objects, position), in the order of ``thresholds``
    """

    vocabulary: Vocabulary
    scales: Mapping[str, float]
    numbers: list[Threshold] = field(default_factory=list)
    crisp: list[Crisp] = field(default_factory=list)
    object_numbers: list[Threshold] = field(default_factory=list)
    object_crisp: list[Crisp] = field(default_factory=list)
    formulas: list[Node] = field(default_factory=list)
    bodies: list[list[tuple[str, int]]] = field(default_factory=list)
    owned: list[list[list[tuple[bool, int]]]] = field(default_factory=list)

    @classmethod
    def of(cls, rules: Sequence[Rule], vocabulary: Vocabulary, scales: Mapping[str, float]) -> Plan:
        """
        :param rules: rules without problems in this vocabulary
        :param vocabulary: the names they use
        :param scales: spread of each number feature (of objects as ``object:distance``)
        """
        plan = cls(vocabulary, scales)
        plan._features = features_by_name(vocabulary)
        for rule in rules:
            body: list[tuple[str, int]] = []
            owned: list[list[tuple[bool, int]]] = []
            for condition in rule.literals:
                mine: list[tuple[bool, int]] = []
                body += [plan._conjunct(part, mine) for part in conjuncts([normal_form(condition)])]
                owned.append(mine)
            plan.bodies.append(body)
            plan.owned.append(owned)
        return plan

    _features: dict[str, Feature] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the object sets that are quantified over, sorted."""
        found: set[str] = set()
        todo: list[Node] = list(self.formulas)
        while todo:
            node = todo.pop()
            if isinstance(node, Quantifier):
                found |= {node.objects} - {""}
                todo.append(node.body)
            elif isinstance(node, Junction):
                todo += node.parts
        return tuple(sorted(found))

    def _conjunct(self, condition: Condition, mine: list[tuple[bool, int]]) -> tuple[str, int]:
        node = self._node(condition, "", mine)
        if isinstance(node, Leaf):
            return "number" if node.number else "crisp", node.at
        self.formulas.append(node)
        return "formula", len(self.formulas) - 1

    def _node(self, condition: Condition, objects: str, mine: list[tuple[bool, int]]) -> Node:
        if isinstance(condition, Literal):
            return self._leaf(condition, objects, mine)
        if isinstance(condition, Quantified):
            over = "" if condition.temporal else condition.over
            body = self._node(condition.body, over or objects, mine)
            return Quantifier(condition.quantifier == "exists", condition.steps, over, body)
        parts = tuple(self._node(part, objects, mine) for part in children(condition))
        return Junction(condition.connective == "and", parts)

    def _leaf(self, literal: Literal, objects: str, mine: list[tuple[bool, int]]) -> Leaf:
        name = f"{objects}:{literal.feature}"
        of_objects = bool(objects) and name in self._features
        if not of_objects:
            name = literal.feature
        feature = self._features[name]
        if literal.numbers:
            about = literal.op == "about"
            sign = -1.0 if literal.op == "<" else 1.0
            scale = _scale(feature, float(self.scales.get(name, 0.0)))
            numbers = self.object_numbers if of_objects else self.numbers
            numbers.append(Threshold(name, literal.numbers[0], sign, scale, about, literal.negated))
            mine.append((of_objects, len(numbers) - 1))
            return Leaf(True, len(numbers) - 1, of_objects)
        crisp = self.object_crisp if of_objects else self.crisp
        crisp.append(Crisp(name, tuple(feature.code(value) for value in literal.members), literal.negated))
        return Leaf(False, len(crisp) - 1, of_objects)


def _scale(feature: Feature, given: float) -> float:
    """The data's spread; for a constant or unknown feature the width of its stated range, at least 1."""
    if math.isfinite(given) and given > 0.0:
        return min(max(given, 1e-6), 1e12)
    width = feature.high - feature.low if feature.low is not None and feature.high is not None else 0.0
    return max(width, 1.0) if math.isfinite(width) and width < 1e12 else 1.0
