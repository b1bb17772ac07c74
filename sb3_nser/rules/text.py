"""Rules as text: ``parse_rule`` reads back what ``str(rule)`` prints. The grammar is in ``grammar.lark``.

    IF front_object is key AND NOT carrying is nothing THEN pickup
    IF pole_angle between 0.05 and 0.2 AND speed about 0 THEN avoid push_left
    IF exists earlier (carrying is key) AND front_object in {closed_door, locked_door} THEN toggle
    IF forall object (kind is lava -> distance > 2) THEN forward
    IF speed < 0 THEN torque > 1.5

Keywords may be written in any case; names keep theirs.
"""

from __future__ import annotations

import functools
import math
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from pydantic import ValidationError

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError
from sb3_nser.rules.formula import MAX_HISTORY, MAX_LEAVES, Condition, Connective, Literal, Quantified
from sb3_nser.rules.model import MAX_LITERALS, MAX_TEXT, Head, Rule

_WORD = re.compile(r"[A-Za-z0-9_.+\-]+|[<>=!]+|\S")

# what was expected, in words, by the first of these terminals that the parser would take
_EXPECTED = (
    ("NUMBER", "a finite number"),
    ("IF", "IF"),
    ("VALUE", "the name of a value"),
    ("IS", "'>', '<' or 'is' (or 'between', 'about', 'in')"),
    ("ABOUT", "'in', 'between' or 'about'"),
    ("NAME", "the name of a feature"),
    ("ACTION", "the name of an action"),
    ("DOMAIN", "'earlier', 'within N steps' or the name of the vocabulary's objects"),
    ("STEPS", "'steps'"),
    ("LBRACE", "'{'"),
    ("RBRACE", "',' or '}'"),
    ("LPAR", "'('"),
    ("OR", "AND, OR or {close}"),
    ("AND", "AND and the second number"),
    ("COMPARE", "the end of the rule"),
    ("THEN", "{close}"),
    ("RPAR", "')'"),
)
_KEYWORDS = "if and or not is in about between then exists forall earlier within steps".split()


class _MisfitError(Exception):
    """Something that the grammar allows and the model does not, with its place (counted from 0)."""

    def __init__(self, expected: str, place: int) -> None:
        super().__init__(expected)
        self.expected, self.place = expected, place


@dataclass(frozen=True)
class _Part:
    condition: Condition
    place: int
    ninth: int = -1  # where an AND becomes too long for the body of a rule


class _Builder(Transformer):  # type: ignore[type-arg]
    """Builds the model bottom up while the parser runs, so that no recursion depends on what the text holds."""

    def rule(self, items: list[typing.Any]) -> Rule:
        _, part, _, verb, head = items
        if part.ninth >= 0:
            raise _MisfitError(f"THEN after {MAX_LITERALS} conditions, the most a rule may have,", part.ninth)
        polarity = "avoid" if verb is not None and verb.lower() == "avoid" else "prefer"
        return _made(Rule, part.place, literals=(part.condition,), head=head, polarity=polarity, source="user")

    def condition(self, items: list[typing.Any]) -> Condition:
        found: Condition = items[0].condition
        return found

    def head(self, items: list[typing.Any]) -> Head:
        name, op, number = items
        value = None if number is None else _number(number)
        return _made(Head, name.start_pos, action=str(name), op=None if op is None else str(op), value=value)

    def implication(self, items: list[typing.Any]) -> _Part:
        return _connective("implies", items[::2])

    def joined(self, items: list[typing.Any]) -> _Part:
        words, parts = items[1::2], items[::2]
        kind = words[0].type.lower()
        if len(parts) > MAX_LEAVES:
            expected = f"no more than {MAX_LEAVES} conditions, the most a formula may have,"
            raise _MisfitError(expected, words[MAX_LEAVES - 1].start_pos)
        part = _connective(kind, parts)
        too_long = kind == "and" and len(parts) > MAX_LITERALS
        return _Part(part.condition, part.place, words[MAX_LITERALS - 1].start_pos) if too_long else part

    def negation(self, items: list[typing.Any]) -> _Part:
        word, part = items
        negated = part.condition.model_copy(update={"negated": not part.condition.negated})
        return _Part(negated, word.start_pos)

    def inner(self, items: list[typing.Any]) -> _Part:
        part: _Part = items[0]
        return part

    def quantified(self, items: list[typing.Any]) -> _Part:
        word, domain, part = items
        over = "earlier" if domain.lower() == "earlier" else str(domain)
        made = _made(Quantified, word.start_pos, quantifier=word.lower(), over=over, body=part.condition)
        return _Part(made, word.start_pos)

    def quantified_within(self, items: list[typing.Any]) -> _Part:
        word, _, number, _, part = items
        steps = _number(number)
        if steps != int(steps) or not 1 <= steps <= MAX_HISTORY:
            raise _MisfitError(f"a whole number of steps from 1 to {MAX_HISTORY}", number.start_pos)
        made = _made(Quantified, word.start_pos, quantifier=word.lower(), within=int(steps), body=part.condition)
        return _Part(made, word.start_pos)

    def compared(self, items: list[typing.Any]) -> _Part:
        name, op, number = items
        return _literal(name, str(op), _number(number))

    def about(self, items: list[typing.Any]) -> _Part:
        return _literal(items[0], "about", _number(items[-1]), negated=items[1].type == "NOT")

    def between(self, items: list[typing.Any]) -> _Part:
        ends = _number(items[-3]), _number(items[-1])
        return _literal(items[0], "between", ends, negated=items[1].type == "NOT")

    def is_value(self, items: list[typing.Any]) -> _Part:
        return _literal(items[0], "is", str(items[-1]), negated=items[2].type == "NOT")

    def in_values(self, items: list[typing.Any]) -> _Part:
        values = tuple(str(item) for item in items[1:] if item.type == "VALUE")
        return _literal(items[0], "in", values, negated=any(item.type == "NOT" for item in items[1:3]))


@functools.cache
def _parser() -> Lark:
    return Lark.open(
        "grammar.lark", rel_to=__file__, parser="lalr", start=["rule", "condition"], transformer=_Builder(),
        maybe_placeholders=True, g_regex_flags=re.ASCII,  # else "k" in any case is the sign of the kelvin too
    )  # fmt: skip


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
    return typing.cast(Rule, _parse(text, "rule"))


def parse_condition(text: str) -> Condition:
    """
    Read one condition: a literal or a formula, such as ``exists earlier (carrying is key)``.

    :param text: one condition, at most 2000 characters
    :return: the condition
    :raises ConfigurationError: a sentence with the position of the first thing that does not fit
    """
    if not isinstance(text, str):
        raise ConfigurationError(f"a condition must be text such as 'pole_angle > 0.1', got {text!r}.")
    if len(text) > MAX_TEXT:
        raise ConfigurationError(f"a condition may have at most {MAX_TEXT} characters, got {len(text)}.")
    return typing.cast(Condition, _parse(text, "condition"))


def parse_literal(text: str) -> Literal:
    """
    Read one condition on one feature: ``front_object is not wall``, ``pole_angle > 0.1``.

    :param text: one condition, at most 2000 characters
    :return: the literal
    :raises ConfigurationError: a sentence with the position of the first thing that does not fit
    """
    condition = parse_condition(text)
    if not isinstance(condition, Literal):
        raise ConfigurationError(f"{text!r} is more than a condition on one feature; give one such as 'pole_angle > 0.1'.")
    return condition


def _parse(text: str, start: str) -> object:
    try:
        return _parser().parse(text, start=start)
    except _MisfitError as error:
        raise _failure(text, start, error.expected, error.place) from None
    except UnexpectedInput as error:
        place = error.pos_in_stream or 0
        expected: Iterable[str] = ()
        if isinstance(error, UnexpectedToken):
            place = len(text) if error.token.type == "$END" else place
            expected = error.expected
        elif isinstance(error, UnexpectedCharacters):
            expected = error.allowed or ()
        raise _failure(text, start, _in_words(set(expected), text, place, start), place) from None


def _failure(text: str, start: str, expected: str, place: int) -> ConfigurationError:
    found = _WORD.match(text, place)
    shown = text if len(text) <= 160 else text[:157] + "..."
    seen = repr(found.group()) if found else "the end"
    hint = closest(found.group().lower(), _KEYWORDS) if found and found.group().lower() not in _KEYWORDS else ""
    if expected.startswith(("the name", "a finite", "the end")):
        hint = ""  # whatever stands there is a name, not a misspelt keyword
    elif expected == "IF":
        hint = ""  # nothing else can stand there
    elif found and found.group().lower() in ("earlier", "within"):  # the word before was taken for a feature
        before = text[:place].split()[-1].lstrip("(")
        hint = closest(before.lower(), ("exists", "forall"))
    what = "rule" if start == "rule" else "condition"
    return ConfigurationError(
        f"cannot read {what} {shown!r}: expected {expected} at position {place + 1}, found {seen}.{hint} "
        "A rule looks like 'IF pole_angle > 0.1 AND NOT carrying is nothing THEN push_right'."
    )


def _in_words(expected: set[str], text: str, place: int, start: str) -> str:
    found = _WORD.match(text, place)
    if found and found.group() in (">=", "<=") and "COMPARE" in expected:
        return f"{found.group()[0]!r} (a soft threshold does not tell it from {found.group()!r})"
    inside = text.count("(", 0, place) > text.count(")", 0, place)
    close = "')'" if inside else "THEN" if start == "rule" else "the end of the condition"
    for terminal, words in _EXPECTED:
        if terminal in expected:
            return words.replace("{close}", close)
    return "the end of the rule" if start == "rule" else "the end of the condition"


def _number(token: Token) -> float:
    try:
        value = float(token)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _MisfitError("a finite number", token.start_pos or 0)
    return value


def _literal(name: Token, op: str, value: object, negated: bool = False) -> _Part:
    place = name.start_pos or 0
    return _Part(_made(Literal, place, feature=str(name), op=op, value=value, negated=negated), place)


def _connective(kind: str, parts: list[_Part]) -> _Part:
    place = parts[0].place
    return _Part(_made(Connective, place, connective=kind, parts=tuple(part.condition for part in parts)), place)


_Model = typing.TypeVar("_Model", Literal, Connective, Quantified, Head, Rule)


def _made(model: type[_Model], place: int, **values: object) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        what = "an action" if model is Head else "a rule" if model is Rule else "a condition"
        raise _MisfitError(f"{what} ({message})", place) from None
