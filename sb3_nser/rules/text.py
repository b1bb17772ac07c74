"""Rules as text: ``parse_rule`` reads back what ``str(rule)`` prints.

    IF front_object is key AND NOT carrying is nothing THEN pickup
    IF pole_angle > 0.1 THEN avoid push_left
    IF speed < 0 THEN torque > 1.5

The words IF, AND, NOT, IS, THEN, PREFER and AVOID may be written in any case; names keep theirs.
"""

from __future__ import annotations

import math
import re
import typing
from dataclasses import dataclass

from pydantic import ValidationError

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules.model import MAX_LITERALS, Head, Literal, Op, Polarity, Rule

MAX_TEXT = 2000
"""Longest rule text that is read; eight literals of the longest names stay below it."""

_TOKEN = re.compile(r"[A-Za-z0-9_.+\-]+|[<>=!]+|\S")
_RESERVED = frozenset({"if", "and", "or", "not", "is", "then"})


@dataclass(frozen=True)
class _Token:
    text: str
    position: int

    @property
    def word(self) -> str:
        return self.text.lower()


class _Reader:
    """Walks over the tokens of one text; every complaint carries the position, counted from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [_Token(match.group(), match.start() + 1) for match in _TOKEN.finditer(text)]
        self.tokens.append(_Token("", len(text) + 1))
        self.at = 0

    def peek(self, ahead: int = 0) -> _Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> _Token:
        token = self.peek()
        self.at += 1
        return token

    def fail(self, expected: str, token: _Token) -> typing.NoReturn:
        found = f"{token.text!r}" if token.text else "the end"
        shown = self.text if len(self.text) <= 160 else self.text[:157] + "..."
        raise ConfigurationError(
            f"cannot read rule {shown!r}: expected {expected} at position {token.position}, found {found}. "
            "A rule looks like 'IF pole_angle > 0.1 AND NOT carrying is nothing THEN push_right'."
        )

    def keyword(self, word: str) -> None:
        token = self.take()
        if token.word != word:
            self.fail(word.upper(), token)

    def name(self, what: str) -> str:
        token = self.take()
        if not token.text or token.word in _RESERVED or not token.text[0].isalpha():
            self.fail(what, token)
        return token.text

    def number(self) -> float:
        token = self.take()
        try:
            value = float(token.text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.fail("a finite number", token)
        return value

    def comparison(self) -> typing.Literal[">", "<"]:
        token = self.take()
        if token.text == ">":
            return ">"
        if token.text == "<":
            return "<"
        self.fail("'>' or '<'", token)


def parse_rule(text: str) -> Rule:
    """
    Read one rule. ``parse_rule(str(rule))`` says the same as ``rule`` (equal ``key``) for names without reserved words.

    :param text: one rule, at most 2000 characters; ``x is not y`` means ``NOT x is y``
    :return: the rule, with default confidence and source ``user``
    :raises ConfigurationError: a sentence with the position of the first thing that does not fit
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"a rule must be text such as 'IF pole_angle > 0.1 THEN push_right', got {text!r}.")
    if len(text) > MAX_TEXT:
        raise ConfigurationError(
            f"a rule may have at most {MAX_TEXT} characters, got {len(text)}; split it into several rules."
        )
    reader = _Reader(text)
    reader.keyword("if")
    literals = [_literal(reader)]
    while reader.peek().word == "and":
        if len(literals) == MAX_LITERALS:
            reader.fail(f"THEN after {MAX_LITERALS} conditions, the most a rule may have,", reader.peek())
        reader.take()
        literals.append(_literal(reader))
    if reader.peek().word == "or":
        reader.fail("AND or THEN (for OR, write two rules)", reader.peek())
    reader.keyword("then")
    polarity = _polarity(reader)
    head = _head(reader)
    if reader.peek().text:
        reader.fail("the end of the rule", reader.peek())
    return Rule(literals=tuple(literals), head=head, polarity=polarity, source="user")


def parse_literal(text: str) -> Literal:
    """
    Read one condition: ``front_object is not wall``, ``pole_angle > 0.1``.

    :param text: one condition, at most 2000 characters
    :return: the literal
    :raises ConfigurationError: a sentence with the position of the first thing that does not fit
    """
    if len(text) > MAX_TEXT:
        raise ConfigurationError(f"a condition may have at most {MAX_TEXT} characters, got {len(text)}.")
    reader = _Reader(text)
    literal = _literal(reader)
    if reader.peek().text:
        reader.fail("the end of the condition", reader.peek())
    return literal


def _literal(reader: _Reader) -> Literal:
    start = reader.peek()
    negated = False
    while reader.peek().word == "not":
        reader.take()
        negated = not negated
    feature = reader.name("the name of a feature")
    op: Op
    value: float | str
    if reader.peek().word == "is":
        reader.take()
        op = "is"
        if reader.peek().word == "not":
            reader.take()
            negated = not negated
        token = reader.take()
        if not token.text or not token.text[0].isalnum() or token.word in _RESERVED:
            reader.fail("the name of a value", token)
        value = token.text
    else:
        if reader.peek().text in (">=", "<="):
            reader.fail(
                f"{reader.peek().text[0]!r} (a soft threshold does not tell it from {reader.peek().text!r})", reader.peek()
            )
        if reader.peek().text not in (">", "<"):
            reader.fail("'>', '<' or 'is'", reader.peek())
        op = reader.comparison()
        value = reader.number()
    try:
        return Literal(feature=feature, op=op, value=value, negated=negated)
    except ValidationError as error:
        reader.fail(f"a condition ({error.errors()[0]['msg']})", start)


def _polarity(reader: _Reader) -> Polarity:
    """``avoid`` and ``prefer`` are verbs only if an action follows; an action may bear such a name."""
    word, following = reader.peek().word, reader.peek(1).text
    if word in ("avoid", "prefer") and following and following[0].isalpha():
        reader.take()
        return "avoid" if word == "avoid" else "prefer"
    return "prefer"


def _head(reader: _Reader) -> Head:
    start = reader.peek()
    action = reader.name("the name of an action")
    op: typing.Literal[">", "<"] | None = None
    value: float | None = None
    if reader.peek().text and not reader.peek().text[0].isalnum():
        op = reader.comparison()
        value = reader.number()
    try:
        return Head(action=action, op=op, value=value)
    except ValidationError as error:
        reader.fail(f"an action ({error.errors()[0]['msg']})", start)
