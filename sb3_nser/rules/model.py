"""What a rule is: IF a conjunction of literals over named features THEN an action is preferred or avoided."""

from __future__ import annotations

import hashlib
import math
import typing
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_LITERALS = 8
"""Longer conjunctions hardly ever fire and cannot be read; parsing and the schema refuse them."""

Op = typing.Literal[">", "<", "is"]
Polarity = typing.Literal["prefer", "avoid"]


def format_number(value: float) -> str:
    """:return: the number with at most six significant digits and no trailing zeros, so that 0.10 and 0.1 print alike."""
    text = f"{float(value):.6g}"
    return "0" if text in ("-0", "0") else text


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Literal(_Frozen):
    """One condition on one feature: ``pole_angle > 0.1``, ``front_object is key``, ``NOT carrying is nothing``.

    :ivar feature: name of a feature of the vocabulary
    :ivar op: ``>`` or ``<`` for numbers, ``is`` for categories and booleans (``yes`` / ``no``)
    :ivar value: a finite number for ``>`` and ``<``, a value name for ``is``
    :ivar negated: True for the negation
    """

    feature: str = Field(min_length=1, max_length=64)
    op: Op
    value: float | str
    negated: bool = False

    @model_validator(mode="before")
    @classmethod
    def _value_type_follows_op(cls, data: typing.Any) -> typing.Any:
        if not isinstance(data, dict):
            return data
        value = data.get("value")
        if isinstance(value, bool):  # YAML reads an unquoted yes/no as a boolean
            return {**data, "value": "yes" if value else "no"}
        if data.get("op") == "is" and isinstance(value, int | float):  # a category may have a value named "3"
            return {**data, "value": format_number(value)}
        if data.get("op") in (">", "<") and isinstance(value, str):
            try:
                return {**data, "value": float(value)}
            except ValueError:
                return data
        return data

    @model_validator(mode="after")
    def _value_fits_op(self) -> Literal:
        if self.op == "is":
            if not isinstance(self.value, str) or not self.value:
                raise ValueError(f"'{self.feature} is {self.value}' needs the name of a value; use > or < for numbers")
        elif isinstance(self.value, str) or not math.isfinite(self.value):
            raise ValueError(f"'{self.feature} {self.op} {self.value}' needs a finite number")
        return self

    def canonical(self) -> Literal:
        """:return: an equal literal in the one form that is compared: negation folded where that is exact."""
        value = float(format_number(self.value)) if isinstance(self.value, float) else self.value
        if not self.negated:
            return Literal(feature=self.feature, op=self.op, value=value)
        if self.op in (">", "<"):  # 1 − σ(z) = σ(−z)
            return Literal(feature=self.feature, op="<" if self.op == ">" else ">", value=value)
        if value in ("yes", "no"):
            return Literal(feature=self.feature, op="is", value="no" if value == "yes" else "yes")
        return Literal(feature=self.feature, op="is", value=value, negated=True)

    def __str__(self) -> str:
        value = format_number(self.value) if isinstance(self.value, float) else self.value
        return f"{'NOT ' if self.negated else ''}{self.feature} {self.op} {value}"


class Head(_Frozen):
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


class Rule(_Frozen):
    """IF all literals hold THEN the head is preferred (or avoided).

    :ivar literals: the body, a conjunction of one to eight literals
    :ivar head: the action
    :ivar polarity: ``prefer`` or ``avoid``
    :ivar confidence: the proposer's belief in [0, 1]; a prior, replaced by what the data say
    :ivar why: the proposer's reason, at most 200 characters
    :ivar source: who proposed it: ``llm``, ``user``, ``tree`` ...
    :ivar pinned: True if it is never pruned
    :ivar enabled: False switches the rule off without deleting it
    """

    literals: tuple[Literal, ...] = Field(min_length=1, max_length=MAX_LITERALS)
    head: Head
    polarity: Polarity = "prefer"
    confidence: float = Field(default=0.5, ge=0.0, le=1.0)
    why: str = Field(default="", max_length=200)
    source: str = Field(default="llm", max_length=32)
    pinned: bool = False
    enabled: bool = True

    @field_validator("why")
    @classmethod
    def _one_line(cls, why: str) -> str:
        return " ".join("".join(c if c.isprintable() else " " for c in why).split())

    def canonical(self) -> Rule:
        """:return: the same rule with its literals in the one form and order that is compared, repeats removed."""
        unique = {str(literal): literal for literal in (item.canonical() for item in self.literals)}
        return self.model_copy(update={"literals": tuple(unique[text] for text in sorted(unique))})

    @property
    def key(self) -> str:
        """Canonical text without confidence and reason: two rules with one key say the same thing."""
        rule = self.canonical()
        body = " AND ".join(str(literal) for literal in rule.literals)
        return f"IF {body} THEN {'avoid ' if rule.polarity == 'avoid' else ''}{rule.head}"

    @property
    def id(self) -> str:
        """Eight hexadecimal digits of the key's sha256, short enough for a log line."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        body = " AND ".join(str(literal) for literal in self.literals)
        return f"IF {body} THEN {'avoid ' if self.polarity == 'avoid' else ''}{self.head}"


class RuleSet(_Frozen):
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
