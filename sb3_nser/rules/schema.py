"""The form a language model's reply is held to, and what becomes of a reply.

The schema is flat (no ``$ref``, ``anyOf``, ``const`` or ``pattern``), because servers drop or refuse those, and it
enumerates whatever can be enumerated, so that a small model cannot misspell a name. Decoding does not enforce number ranges:
everything is checked again here, rule by rule, so that one bad rule does not cost the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.rules.check import problems
from sb3_nser.rules.formula import Condition, Quantified
from sb3_nser.rules.model import Head, Literal, Rule, format_number
from sb3_nser.rules.text import parse_literal
from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary

MAX_REPLY_CHARACTERS = 65_536
MAX_FACTS = 240
"""Enumerated symbolic literals; a grammar with many more alternatives is refused by some servers."""
MAX_NUMBERS = 40
"""Enumerated number features."""
WHY_CHARACTERS = 60
"""Most characters of a reason; whatever is longer costs time and says no more."""
ANY = "any"
"""In a record: whatever the value, the rule does not ask."""
_LENIENT_OPS = {">": ">", "<": "<", ">=": ">", "<=": "<"}  # a soft threshold does not tell > from >=


def facts(vocabulary: Vocabulary) -> list[str]:
    """
    :return: every symbolic literal the schema offers, in the vocabulary's order: ``carrying is key``;
        at most ``MAX_FACTS``, whole features only
    """
    out: list[str] = []
    for feature in vocabulary.features:
        mine = _facts_of(feature)
        if len(out) + len(mine) <= MAX_FACTS:
            out += mine
    return out


def numbers(vocabulary: Vocabulary) -> list[str]:
    """:return: names of the number features the schema offers, at most ``MAX_NUMBERS``."""
    return [feature.name for feature in vocabulary.features if feature.kind == "number"][:MAX_NUMBERS]


def offered(vocabulary: Vocabulary) -> list[Feature]:
    """:return: the features that fit into a schema; a prompt shows these and no others."""
    named = set(numbers(vocabulary)) | {fact.split(" is ")[0] for fact in facts(vocabulary)}
    return [feature for feature in vocabulary.features if feature.name in named]


def _facts_of(feature: Feature) -> list[str]:
    """Positive ones only: offered negations, small models negate at random. They still may be written."""
    return [f"{feature.name} is {value}" for value in feature.values]


def reply_schema(
    vocabulary: Vocabulary, max_rules: int, max_literals: int = 2, conditions: Sequence[str] = (), rich: bool = False
) -> dict[str, Any]:
    """
    :param vocabulary: what rules may speak of
    :param max_rules: how many rules one reply has (at most, where fewer differ), at least 1
    :param max_literals: most literals of each kind in one rule
    :param conditions: ready-made conditions to choose from (``pole_angle > 0.05``), those that the prompt shows. Choosing
        is easier for a small model than composing, and shorter; empty lets it compose thresholds and facts itself
    :param rich: without ready-made conditions, offer ranges (``between``) and facts that held ``earlier`` in the episode too:
        more than a small model can handle
    :return: a flat JSON schema, for Ollama's ``format``
    """
    if conditions:
        return _choice_schema(vocabulary, max_rules, max_literals, list(dict.fromkeys(conditions))[:MAX_FACTS])
    symbolic, numeric = facts(vocabulary), numbers(vocabulary)
    rule: dict[str, Any] = {}
    if symbolic:
        rule["facts"] = _strings(symbolic, max_literals, minimum=0 if numeric else 1)
    if numeric:
        threshold = {
            "feature": {"type": "string", "enum": numeric},
            "op": {"type": "string", "enum": [">", "<"]},
            "value": {"type": "number"},
        }
        rule["thresholds"] = {
            "type": "array",
            "minItems": 0 if symbolic else 1,
            "maxItems": max_literals,
            "items": _object(threshold),
        }
        if rich:
            ends = {"feature": threshold["feature"], "low": {"type": "number"}, "high": {"type": "number"}}
            rule["thresholds"]["minItems"] = 0  # a range may be all there is
            rule["ranges"] = {"type": "array", "minItems": 0, "maxItems": 1, "items": _object(ends)}
    if symbolic and rich:
        rule["facts"]["minItems"] = 0
        rule["earlier"] = _strings(symbolic, 1, minimum=0)
    rule["action"] = {"type": "string", "enum": list(vocabulary.actions.names)}
    if vocabulary.actions.continuous:
        rule |= {"action_op": {"type": "string", "enum": [">", "<"]}, "action_value": {"type": "number"}}
    rule["why"] = {"type": "string", "maxLength": WHY_CHARACTERS}
    return _rules_of(rule, max_rules, max_rules)


def is_record(vocabulary: Vocabulary, conditions: Sequence[str]) -> bool:
    """
    Whether a rule is asked for as a record, ``{"light":"red","lane":"any","action":"brake"}``: shorter than a list of facts,
    free of contradictions, and small models fill it better. Possible for symbols whose names mean nothing else in a reply.

    :param conditions: the ready-made conditions
    """
    names = {condition.split()[0] for condition in conditions}
    return bool(conditions) and all(
        vocabulary[name].kind != "number" and name not in _WireRule.model_fields and ANY not in vocabulary[name].values
        for name in names
    )


def conforms(value: Any, schema: Mapping[str, Any]) -> bool:
    """
    Whether a server that was given a schema has kept to it. Knows what ``reply_schema`` writes and no more.

    :param value: parsed JSON
    :param schema: a flat schema
    """
    kind = schema.get("type")
    if kind == "object":
        parts: Mapping[str, Any] = schema.get("properties", {})
        if not isinstance(value, dict) or not set(schema.get("required", ())) <= set(value):
            return False
        if schema.get("additionalProperties") is False and not set(value) <= set(parts):
            return False
        return all(conforms(item, parts[name]) for name, item in value.items() if name in parts)
    if kind == "array":
        if not isinstance(value, list) or not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return False
        return all(conforms(item, schema["items"]) for item in value)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str) and ("enum" not in schema or value in schema["enum"])


def _choice_schema(vocabulary: Vocabulary, max_rules: int, max_literals: int, conditions: list[str]) -> dict[str, Any]:
    action = {"type": "string", "enum": heads(vocabulary.actions)}
    fewest = min(max_rules, len(conditions) * len(action["enum"]))
    values: dict[str, list[str]] = {}
    for condition in conditions:
        values.setdefault(condition.split()[0], []).append(condition.split()[-1])
    if is_record(vocabulary, conditions):
        parts = {name: {"type": "string", "enum": [*mine, ANY]} for name, mine in values.items()}
        return _rules_of(dict(list(parts.items())[:max_literals]) | {"action": action}, fewest, max_rules)
    # counted contrasts are about one condition each; two numbers at once are a guess, and small models guess badly
    symbolic = sum(vocabulary[name].kind != "number" for name in values)
    most = max(1, min(max_literals, symbolic))
    return _rules_of({"facts": _strings(conditions, most), "action": action}, fewest, max_rules)


def heads(actions: ActionSet) -> list[str]:
    """:return: what a rule may ask for: discrete actions by name, the upper and the lower half of each continuous one"""
    if actions.low is None or actions.high is None:
        return list(actions.names)
    middles = [format_number(0.5 * (low + high)) for low, high in zip(actions.low, actions.high, strict=True)]
    return [f"{name} {op} {middle}" for name, middle in zip(actions.names, middles, strict=True) for op in (">", "<")]


def _strings(choice: list[str], most: int, minimum: int = 1) -> dict[str, Any]:
    return {"type": "array", "minItems": minimum, "maxItems": most, "items": {"type": "string", "enum": choice}}


def _rules_of(rule: dict[str, Any], fewest: int, most: int) -> dict[str, Any]:
    return _object({"rules": {"type": "array", "minItems": fewest, "maxItems": most, "items": _object(rule)}})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class _Threshold(BaseModel):
    model_config = ConfigDict(extra="ignore")
    feature: str = Field(max_length=64)
    op: str = Field(max_length=16)
    value: float


class _Range(BaseModel):
    model_config = ConfigDict(extra="ignore")
    feature: str = Field(max_length=64)
    low: float
    high: float


class _WireRule(BaseModel):
    """One rule as it comes over the wire: lenient about what can be read without guessing."""

    model_config = ConfigDict(extra="ignore")
    facts: list[str] = Field(default_factory=list, max_length=8)
    thresholds: list[_Threshold] = Field(default_factory=list, max_length=8)
    ranges: list[_Range] = Field(default_factory=list, max_length=8)
    earlier: list[str] = Field(default_factory=list, max_length=8)
    action: str = Field(max_length=128)
    action_op: str | None = None
    action_value: float | None = None
    confidence: float = 0.5
    why: str = ""


@dataclass(frozen=True)
class ParsedReply:
    """What became of one reply.

    :param rules: the rules that passed every check
    :param refused: one sentence for each rule that did not
    :param notes: one sentence for each value that was clamped or converted
    :param error: why the reply as a whole is no rule set; empty if it is one
    """

    rules: tuple[Rule, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""


@dataclass
class _Notes:
    lines: list[str] = field(default_factory=list)


def parse_reply(text: str, vocabulary: Vocabulary, max_rules: int = 16, source: str = "llm") -> ParsedReply:
    """
    Read a reply. Policy per field: an unknown name, an operator other than ``>``, ``<``, ``>=``, ``<=``, or a threshold that
    is not a bare number refuses that rule; a confidence outside [0, 1] is clamped with a note; numbers written as text are
    converted; reasons are cut to 200 characters.

    :param text: the reply as the model wrote it; never executed
    :param vocabulary: what rules may speak of
    :param max_rules: rules beyond this count are refused
    :param source: recorded in each rule
    :return: rules, refusals and notes; never raises because of what the text holds
    """
    if len(text) > MAX_REPLY_CHARACTERS:
        return ParsedReply(error=f"the reply has {len(text)} characters, more than {MAX_REPLY_CHARACTERS}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return ParsedReply(error="the reply is not JSON")
    items = data.get("rules") if isinstance(data, dict) else None
    if not isinstance(items, list):
        return ParsedReply(error="the reply has no list named 'rules'")
    rules: list[Rule] = []
    refused: list[str] = []
    notes = _Notes()
    for number, item in enumerate(items, start=1):
        if number > max_rules:
            refused.append(f"rules {number} to {len(items)}: more than {max_rules} rules were asked for")
            break
        try:
            rules.append(_read_rule(item, vocabulary, source, notes, number))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            refused.append(printable(f"rule {number}: {where + ': ' if where else ''}{first['msg']}", 200))
        except ConfigurationError as error:
            refused.append(printable(f"rule {number}: {error}", 300))
    return ParsedReply(tuple(rules), tuple(refused), tuple(notes.lines))


def _read_rule(item: Any, vocabulary: Vocabulary, source: str, notes: _Notes, number: int) -> Rule:
    wire = _WireRule.model_validate(item)
    literals: list[Condition] = [parse_literal(fact) for fact in wire.facts]
    for name, value in (item if isinstance(item, dict) else {}).items():
        if name in vocabulary and name not in _WireRule.model_fields and isinstance(value, str) and value != ANY:
            literals.append(Literal(feature=name, op="is", value=value))
    for threshold in wire.thresholds:
        op = _LENIENT_OPS.get(threshold.op.strip())
        if op is None:
            raise ConfigurationError(f"operator {threshold.op!r} is not one of >, <.")
        literals.append(Literal(feature=threshold.feature, op=op, value=threshold.value))  # type: ignore[arg-type]
    for span in wire.ranges:
        literals.append(Literal(feature=span.feature, op="between", value=(span.low, span.high)))
    literals += [Quantified(quantifier="exists", body=parse_literal(fact)) for fact in wire.earlier]
    if not literals:
        raise ConfigurationError("it has no condition.")
    confidence = wire.confidence
    if not 0.0 <= confidence <= 1.0:
        clamped = 1.0 if confidence > 1.0 else 0.0  # NaN becomes 0
        notes.lines.append(f"rule {number}: confidence {confidence:g} is outside [0, 1]; taken as {clamped:g}")
        confidence = clamped
    rule = Rule(
        literals=tuple(dict.fromkeys(literals)),
        head=_read_head(wire, vocabulary),
        confidence=confidence,
        why=wire.why[:200],
        source=source,
    )
    wrong = problems(rule, vocabulary)
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    return rule


def _read_head(wire: _WireRule, vocabulary: Vocabulary) -> Head:
    if not vocabulary.actions.continuous:
        return Head(action=wire.action)
    if wire.action not in vocabulary.actions.names:
        literal = parse_literal(wire.action)  # a head in one piece: torque > 0
        if literal.op in (">", "<") and not literal.negated:
            return Head(action=literal.feature, op=literal.op, value=literal.numbers[0])
    op = _LENIENT_OPS.get((wire.action_op or "").strip())
    return Head(action=wire.action, op=op, value=wire.action_value if op else None)  # type: ignore[arg-type]
