"""What a rule is: IF a conjunction of conditions on named features THEN an action is preferred or avoided."""

from __future__ import annotations

import hashlib
import math
import typing
from collections.abc import Iterable

from pydantic import Field, field_validator, model_validator

from sb3_nser.rules.formula import (
    MAX_LEAVES,
    Condition,
    Frozen,
    Literal,
    Op,
    bare,
    check_formula,
    format_number,
    leaves,
    steps_back,
)
from sb3_nser.rules.normal import canonical, conjuncts

__all__ = ["MAX_LITERALS", "MAX_TEXT", "Condition", "Head", "Literal", "Op", "Polarity", "Rule", "RuleSet", "format_number"]

MAX_LITERALS = 8
"""Longer conjunctions hardly ever fire and cannot be read; parsing and the schema refuse them."""
MAX_TEXT = 2000
"""Longest rule text that is read; eight literals of the longest names stay below it."""

Polarity = typing.Literal["prefer", "avoid"]


class Head(Frozen):
    """The action a rule speaks of.

    :ivar action: name of a discrete action, or of a dimension of a continuous one
    :ivar op: continuous only: ``>`` or ``<``
    :ivar value: continuous only: a number in environment units
    """

    action: str = Field(min_length=1, max_length=64)
    op: typing.Literal[">", "<"] | None = None
    value: float | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Head:
        if (self.op is None) != (self.value is None):
            raise ValueError(f"head on {self.action!r} needs both an operator and a value, or neither")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"head '{self.action} {self.op} {self.value}' needs a finite number")
        return self

    def __str__(self) -> str:
        return self.action if self.op is None or self.value is None else f"{self.action} {self.op} {format_number(self.value)}"


class Rule(Frozen):
    """IF all conditions hold THEN the head is preferred (or avoided).

    :ivar literals: the body, a conjunction of one to eight conditions: literals, or formulas (``Connective``, ``Quantified``)
    :ivar head: the action
    :ivar polarity: ``prefer`` or ``avoid``
    :ivar confidence: the proposer's belief in [0, 1]; a prior, replaced by what the data say
    :ivar why: the proposer's reason, at most 200 characters
    :ivar source: who proposed it: ``llm``, ``user``, ``tree`` ...
    :ivar pinned: True if it is never pruned
    :ivar enabled: False switches the rule off without deleting it
    """

    literals: tuple[Condition, ...] = Field(min_length=1, max_length=MAX_LITERALS)
    head: Head
    polarity: Polarity = "prefer"
    confidence: float = Field(default=0.5, ge=0.0, le=1.0)
    why: str = Field(default="", max_length=200)
    source: str = Field(default="llm", max_length=32)
    pinned: bool = False
    enabled: bool = True

    @field_validator("literals")
    @classmethod
    def _flat_and_bounded(cls, literals: tuple[Condition, ...]) -> tuple[Condition, ...]:
        if all(isinstance(item, Literal) and isinstance(item.value, float | str) for item in literals):
            return literals
        flat = tuple(conjuncts(literals))
        if len(flat) > MAX_LITERALS:
            raise ValueError(f"a rule may have at most {MAX_LITERALS} conditions, got {len(flat)}")
        for item in flat:
            check_formula(item)
        if sum(1 for item in flat for _ in leaves(item)) > MAX_LEAVES:
            raise ValueError(f"a rule may have at most {MAX_LEAVES} conditions, those inside formulas included")
        if sum(len(str(item)) + 5 for item in flat) > MAX_TEXT - 200:
            raise ValueError(f"its text is too long: a rule may have at most {MAX_TEXT} characters")
        return flat

    @field_validator("why")
    @classmethod
    def _one_line(cls, why: str) -> str:
        return " ".join("".join(c if c.isprintable() else " " for c in why).split())

    def canonical(self) -> Rule:
        """:return: the same rule with its conditions in the one form and order that is compared, repeats removed."""
        unique = {str(item): item for item in conjuncts(map(canonical, self.literals))}
        return self.model_copy(update={"literals": tuple(unique[text] for text in sorted(unique))})

    @property
    def history(self) -> int:
        """How many earlier steps of the episode its body depends on; 0 for a rule without temporal quantifiers."""
        return max(steps_back(item) for item in self.literals)

    @property
    def key(self) -> str:
        """Canonical text without confidence and reason: two rules with one key say the same thing."""
        return str(self.canonical())

    @property
    def id(self) -> str:
        """Eight hexadecimal digits of the key's sha256, short enough for a log line."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        alone = len(self.literals) == 1
        body = bare(self.literals[0]) if alone else " AND ".join(str(item) for item in self.literals)
        return f"IF {body} THEN {'avoid ' if self.polarity == 'avoid' else ''}{self.head}"


class RuleSet(Frozen):
    """Several rules (a disjunction), for one vocabulary.

    :ivar rules: the rules, in no meaningful order
    :ivar vocabulary: name of the vocabulary they speak; empty if unknown
    """

    rules: tuple[Rule, ...] = ()
    vocabulary: str = Field(default="", max_length=64)

    @classmethod
    def of(cls, rules: Iterable[Rule], vocabulary: str = "") -> RuleSet:
        """:return: a set without repeats: of rules with one key the first stays."""
        unique: dict[str, Rule] = {}
        for rule in rules:
            unique.setdefault(rule.key, rule)
        return cls(rules=tuple(unique.values()), vocabulary=vocabulary)
