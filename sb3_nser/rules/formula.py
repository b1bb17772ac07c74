"""Conditions of a rule: literals, and formulas made of them with connectives and quantifiers.

Everything here is data: what a condition means is said in ``sb3_nser.logic``.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

MAX_HISTORY = 1000
"""Steps that ``earlier`` looks back at most. Bounded, so that a transition's score needs a bounded part of its episode."""
MAX_MEMBERS = 16
"""Most values in ``front_object in {...}``."""
MAX_LEAVES = 16
"""Most literals in one rule, those inside formulas included."""
MAX_DEPTH = 4
"""Connectives and quantifiers that may stand inside each other."""
MAX_TEMPORAL_DEPTH = 2
"""Temporal quantifiers that may stand inside each other: ``exists earlier (A AND exists earlier (B))``, first B and then A."""

EARLIER = "earlier"
Op = typing.Literal[">", "<", "is", "between", "about", "in"]
NUMBER_OPS = (">", "<", "between", "about")


def format_number(value: float) -> str:
    """:return: the number with at most six significant digits and no trailing zeros, so that 0.10 and 0.1 print alike."""
    text = f"{float(value):.6g}"
    return "0" if text in ("-0", "0") else text


class Frozen(BaseModel):
    """Immutable data without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Literal(Frozen):
    """One condition on one feature: ``pole_angle > 0.1``, ``front_object in {key, ball}``, ``NOT carrying is nothing``.

    :ivar feature: name of a feature of the vocabulary, or, inside an object quantifier, of the objects
    :ivar op: ``>``, ``<``, ``between`` or ``about`` for numbers; ``is`` or ``in`` for categories and booleans (``yes``/``no``)
    :ivar value: a finite number for ``>``, ``<`` and ``about``; two different ones for ``between``; the name of a value for
        ``is``; one to 16 of them for ``in``
    :ivar negated: True for the negation
    """

    feature: str = Field(min_length=1, max_length=64)
    op: Op
    value: float | str | tuple[float, float] | tuple[str, ...]
    negated: bool = False

    @model_validator(mode="before")
    @classmethod
    def _value_type_follows_op(cls, data: typing.Any) -> typing.Any:
        if not isinstance(data, dict):
            return data
        op, value = data.get("op"), data.get("value")
        if op in ("between", "in") and isinstance(value, list | tuple):
            convert = _as_name if op == "in" else _as_number
            return {**data, "value": tuple(convert(item) for item in value[: 4 * MAX_MEMBERS])}
        if isinstance(value, bool) or op == "is":
            return {**data, "value": _as_name(value)}
        return {**data, "value": _as_number(value)} if op in (">", "<", "about") else data

    @model_validator(mode="after")
    def _value_fits_op(self) -> Literal:
        value = self.value
        if self.op == "is":
            if not isinstance(value, str) or not value:
                raise ValueError(f"'{self.feature} is {value}' needs the name of a value; use > or < for numbers")
        elif self.op == "in":
            if not isinstance(value, tuple) or not 1 <= len(value) <= MAX_MEMBERS or not all(map(_is_name, value)):
                raise ValueError(f"'{self.feature} in' needs the names of one to {MAX_MEMBERS} values")
        elif self.op == "between":
            if not isinstance(value, tuple) or len(value) != 2 or not all(map(_is_finite, value)):
                raise ValueError(f"'{self.feature} between' needs two finite numbers")
            if format_number(float(value[0])) == format_number(float(value[1])):
                raise ValueError(f"'{self.feature} between' needs two different numbers; use 'about' for one")
        elif not _is_finite(value):
            raise ValueError(f"'{self.feature} {self.op} {value}' needs a finite number")
        return self

    @property
    def numbers(self) -> tuple[float, ...]:
        """The thresholds in it, in rising order: none, one, or the two ends of ``between``."""
        if isinstance(self.value, float):
            return (self.value,)
        if self.op == "between" and isinstance(self.value, tuple):
            low, high = sorted(float(end) for end in self.value)
            return low, high
        return ()

    @property
    def members(self) -> tuple[str, ...]:
        """The values that ``is`` or ``in`` names, sorted, without repeats."""
        if isinstance(self.value, str):
            return (self.value,)
        return tuple(sorted({str(item) for item in self.value})) if self.op == "in" and isinstance(self.value, tuple) else ()

    def canonical(self) -> Literal:
        """:return: an equal literal in the one form that is compared: negation folded where that is exact, numbers rounded."""
        folded = self.folded()
        numbers = tuple(float(format_number(number)) for number in folded.numbers)
        if not numbers:
            return folded
        return folded.model_copy(update={"value": numbers[0] if len(numbers) == 1 else numbers})

    def folded(self) -> Literal:
        """:return: an equal literal, its negation folded where that is exact, the values of ``in`` sorted"""
        op, negated, value = self.op, self.negated, self.value
        if op in ("is", "in"):
            members = self.members
            if len(members) > 1:
                return Literal(feature=self.feature, op="in", value=members, negated=negated)
            value, op = members[0], "is"
            if negated and value in ("yes", "no"):
                value, negated = "no" if value == "yes" else "yes", False
        elif negated and op in (">", "<"):  # 1 − σ(z) = σ(−z)
            op, negated = "<" if op == ">" else ">", False
        return Literal(feature=self.feature, op=op, value=value, negated=negated)

    def __str__(self) -> str:
        if self.op == "between":
            value = " and ".join(format_number(float(end)) for end in self.value)  # type: ignore[union-attr]
        elif self.op == "in":
            value = "{" + ", ".join(str(item) for item in self.value) + "}"  # type: ignore[union-attr]
        else:
            value = format_number(self.value) if isinstance(self.value, float) else str(self.value)
        return f"{'NOT ' if self.negated else ''}{self.feature} {self.op} {value}"


class Connective(Frozen):
    """Conditions joined: ``(a AND b)``, ``(a OR b)``, ``(a -> b)``.

    :ivar connective: ``and``, ``or`` or ``implies``
    :ivar parts: two or more conditions; exactly two for ``implies``
    :ivar negated: True for the negation of the whole
    """

    connective: typing.Literal["and", "or", "implies"]
    parts: tuple[Condition, ...] = Field(min_length=2, max_length=MAX_LEAVES)
    negated: bool = False

    @model_validator(mode="after")
    def _checked(self) -> Connective:
        if self.connective == "implies" and len(self.parts) != 2:
            raise ValueError(f"'->' joins two conditions, got {len(self.parts)}")
        check_formula(self)
        return self

    def __str__(self) -> str:
        return f"{'NOT ' if self.negated else ''}({self.inner})"

    @property
    def inner(self) -> str:
        """Its text without the parentheses and without NOT."""
        return {"and": " AND ", "or": " OR ", "implies": " -> "}[self.connective].join(str(part) for part in self.parts)


class Quantified(Frozen):
    """A condition on earlier steps of the episode, or on objects: ``exists earlier (...)``, ``forall object (...)``.

    :ivar quantifier: ``exists`` or ``forall``
    :ivar over: ``earlier``, or the name of an object set of the vocabulary
    :ivar within: for ``earlier``: how many steps back it looks, 1 to 1000; None looks back as far as there is
    :ivar body: the condition on such a step or object
    :ivar negated: True for the negation of the whole
    """

    quantifier: typing.Literal["exists", "forall"]
    over: str = Field(default=EARLIER, min_length=1, max_length=64)
    within: int | None = Field(default=None, ge=1, le=MAX_HISTORY)
    body: Condition
    negated: bool = False

    @model_validator(mode="after")
    def _checked(self) -> Quantified:
        if self.within is not None and not self.temporal:
            raise ValueError(f"'within {self.within} steps' speaks of earlier steps, not of {self.over}")
        check_formula(self)
        return self

    @property
    def temporal(self) -> bool:
        """Whether it speaks of earlier steps (else of objects)."""
        return self.over == EARLIER

    @property
    def steps(self) -> int:
        """How many steps back it looks; 0 for objects."""
        return (self.within or MAX_HISTORY) if self.temporal else 0

    def __str__(self) -> str:
        where = self.over if self.within is None else f"within {self.within} step{'s' if self.within > 1 else ''}"
        return f"{'NOT ' if self.negated else ''}{self.quantifier} {where} ({bare(self.body)})"


def _kind(data: typing.Any) -> str:
    for key in ("connective", "quantifier"):
        if (key in data) if isinstance(data, dict) else hasattr(data, key):
            return key
    return "feature"


Condition = typing.Annotated[
    typing.Annotated[Literal, Tag("feature")]
    | typing.Annotated[Connective, Tag("connective")]
    | typing.Annotated[Quantified, Tag("quantifier")],
    Discriminator(_kind),
]
"""A literal or a formula; in JSON told apart by its first key: ``feature``, ``connective`` or ``quantifier``."""

Connective.model_rebuild()
Quantified.model_rebuild()


def bare(condition: Condition) -> str:
    """:return: the text, without the outer parentheses of a connective"""
    return condition.inner if isinstance(condition, Connective) and not condition.negated else str(condition)


def children(condition: Condition) -> tuple[Condition, ...]:
    """:return: the conditions it is made of; none for a literal"""
    if isinstance(condition, Connective):
        return condition.parts
    return (condition.body,) if isinstance(condition, Quantified) else ()


def leaves(condition: Condition, objects: str = "") -> Iterator[tuple[Literal, str]]:
    """:return: its literals from left to right, each with the object set it is about, empty for the state"""
    if isinstance(condition, Literal):
        yield condition, objects
        return
    inside = condition.over if isinstance(condition, Quantified) and not condition.temporal else objects
    for part in children(condition):
        yield from leaves(part, inside)


def steps_back(condition: Condition) -> int:
    """:return: how many earlier steps its truth depends on; 0 if on none"""
    own = condition.steps if isinstance(condition, Quantified) else 0
    return own + max((steps_back(part) for part in children(condition)), default=0)


def check_formula(condition: Condition) -> None:
    """:raises ValueError: if it is too large, too deep, or quantifiers stand in each other where they may not"""
    count = sum(1 for _ in leaves(condition))
    if count > MAX_LEAVES:
        raise ValueError(f"a formula may have at most {MAX_LEAVES} conditions in all, got {count}")
    if _depth(condition) > MAX_DEPTH:
        raise ValueError(f"connectives and quantifiers may stand at most {MAX_DEPTH} deep in each other")
    if _temporal_depth(condition) > MAX_TEMPORAL_DEPTH:
        raise ValueError(f"quantifiers over earlier steps may stand at most {MAX_TEMPORAL_DEPTH} deep in each other")
    if isinstance(condition, Quantified) and not condition.temporal and _quantifiers(condition.body):
        raise ValueError(f"no quantifier may stand inside '{condition.quantifier} {condition.over}'")


def _depth(condition: Condition) -> int:
    return 0 if isinstance(condition, Literal) else 1 + max(_depth(part) for part in children(condition))


def _temporal_depth(condition: Condition) -> int:
    own = int(isinstance(condition, Quantified) and condition.temporal)
    return own + max((_temporal_depth(part) for part in children(condition)), default=0)


def _quantifiers(condition: Condition) -> bool:
    return isinstance(condition, Quantified) or any(_quantifiers(part) for part in children(condition))


def _as_name(value: typing.Any) -> typing.Any:
    if isinstance(value, bool):  # YAML reads an unquoted yes/no as a boolean
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, int | float) else value  # a category may have a value named "3"


def _as_number(value: typing.Any) -> typing.Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 10**300 else math.inf
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _is_name(value: typing.Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_finite(value: typing.Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)
