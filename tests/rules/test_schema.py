"""The reply's form is flat and bounded; whatever comes back is read rule by rule and never raises."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from sb3_nser.rules import problems
from sb3_nser.rules.schema import MAX_FACTS, MAX_REPLY_CHARACTERS, heads, parse_reply, reply_schema
from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary

ANGLE = Feature("angle", "number", "tilt", lambda o, _: o[:, 0])
SPEED = Feature("speed", "number", "speed", lambda o, _: o[:, 1])
FRONT = Feature("front", "category", "what is in front", lambda o, _: o[:, 2], values=("nothing", "key", "wall"))
OPEN = Feature("open", "boolean", "whether it is open", lambda o, _: o[:, 3])
DISCRETE = ActionSet(("left", "right"))
CONTINUOUS = ActionSet(("torque", "grip"), low=(-2.0, 0.0), high=(2.0, 1.0))
NUMBERS = Vocabulary("pole", "balance", (ANGLE, SPEED), DISCRETE)
SYMBOLS = Vocabulary("grid", "reach the goal", (FRONT, OPEN), DISCRETE)
ARM = Vocabulary("arm", "lift", (ANGLE, FRONT), CONTINUOUS)
VOCABULARIES = (NUMBERS, SYMBOLS, ARM)
CONDITIONS = {
    "pole": ["angle > 0.5", "angle < 0.5"],
    "grid": ["front is key", "open is yes"],
    "arm": ["angle > 0", "front is key"],
}


def good(**change: Any) -> dict[str, Any]:
    return {"thresholds": [{"feature": "angle", "op": ">", "value": 0.1}], "action": "right", "confidence": 0.5} | change


def threshold(**change: Any) -> dict[str, Any]:
    return good(thresholds=[{"feature": "angle", "op": ">", "value": 0.1} | change])


def reply(*rules: Any) -> str:
    return json.dumps({"rules": list(rules)})


def every_node(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, dict):
        return [schema] + [node for value in schema.values() for node in every_node(value)]
    return [node for item in schema for node in every_node(item)] if isinstance(schema, list) else []


@pytest.mark.parametrize("count", [1, 5, 500])
@pytest.mark.parametrize("kind", ["number", "category", "mixed"])
@pytest.mark.parametrize("actions", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("chosen", [0, 6, 2000])
def test_c26_the_schema_is_flat_and_bounded(count: int, kind: str, actions: ActionSet, chosen: int) -> None:
    features = tuple(
        Feature(f"sensor_number_{k}", "number", "value", lambda o, _: o[:, 0])
        if kind == "number" or (kind == "mixed" and k % 2)
        else Feature(f"object_number_{k}", "category", "thing", lambda o, _: o[:, 0], values=("nothing", "key", "door"))
        for k in range(count)
    )
    schema = reply_schema(
        Vocabulary("many", "task", features, actions),
        4,
        conditions=[f"{features[0].name} {'>' if features[0].kind == 'number' else 'is'} {k}" for k in range(chosen)],
    )
    text = json.dumps(schema)
    assert len(text) < 16_000
    for node in every_node(schema):
        assert not {"$ref", "$defs", "anyOf", "oneOf", "allOf", "const", "pattern", "prefixItems"} & set(node)
        assert node.get("enum", [""]) and len(node.get("enum", [])) <= MAX_FACTS + 1
        assert node.get("maxItems", 0) <= 8 and node.get("maxLength", 0) <= 100
        assert node.get("minItems", 0) <= node.get("maxItems", 0)


def test_fewer_rules_are_demanded_where_fewer_differ() -> None:
    rules = reply_schema(NUMBERS, 8, conditions=["angle > 0"])["properties"]["rules"]
    assert (rules["minItems"], rules["maxItems"]) == (2, 8)


def test_numbers_are_chosen_one_at_a_time() -> None:
    def most(vocabulary: Vocabulary, *conditions: str) -> int:
        rule = reply_schema(vocabulary, 3, conditions=conditions)["properties"]["rules"]["items"]
        return int(rule["properties"]["facts"]["maxItems"])

    assert most(NUMBERS, "angle > 0", "angle < 0", "speed > 1") == 1
    assert most(ARM, "angle > 0", "front is key") == 1


def test_symbols_are_asked_for_as_records() -> None:
    rule = reply_schema(SYMBOLS, 3, conditions=["front is key", "front is wall", "open is yes"])["properties"]["rules"][
        "items"
    ]
    choices = {name: part["enum"] for name, part in rule["properties"].items()}
    assert choices == {"action": ["left", "right"], "front": ["key", "wall", "any"], "open": ["yes", "any"]}
    parsed = parse_reply(
        reply(
            {"action": "left", "front": "key", "open": "any"},
            {"action": "right", "front": "wall", "open": "yes"},
            {"action": "right", "front": "any", "open": "any"},
            {"action": "right", "front": "keys", "open": "any"},
        ),
        SYMBOLS,
    )
    assert [str(rule) for rule in parsed.rules] == ["IF front is key THEN left", "IF front is wall AND open is yes THEN right"]
    assert "no condition" in parsed.refused[0] and "did you mean 'key'?" in parsed.refused[1]


@pytest.mark.parametrize(("name", "value"), [("action", "key"), ("why", "key"), ("front", "any")])
def test_names_that_mean_something_else_in_a_reply_are_asked_for_as_facts(name: str, value: str) -> None:
    feature = Feature(name, "category", "thing", lambda o, _: o[:, 0], values=("nothing", value))
    words = Vocabulary("odd", "task", (feature,), DISCRETE)
    schema = reply_schema(words, 3, conditions=[f"{name} is nothing", f"{name} is {value}"])
    assert list(schema["properties"]["rules"]["items"]["properties"]) == ["facts", "action"]
    parsed = parse_reply(reply({"facts": [f"{name} is {value}"], "action": "left"}), words)
    assert [str(rule) for rule in parsed.rules] == [f"IF {name} is {value} THEN left"]


def test_c32_each_field_has_its_policy_and_the_good_rule_survives() -> None:
    parsed = parse_reply(
        reply(
            good(confidence=85),
            good(confidence="0.5", action="left"),
            threshold(value="12 deg"),
            threshold(op="=>"),
            threshold(feature="speed", value=2),
        ),
        NUMBERS,
    )
    assert [(str(rule), rule.confidence) for rule in parsed.rules] == [
        ("IF angle > 0.1 THEN right", 1.0),
        ("IF angle > 0.1 THEN left", 0.5),
        ("IF speed > 2 THEN right", 0.5),
    ]
    assert parsed.notes == ("rule 1: confidence 85 is outside [0, 1]; taken as 1",)
    assert len(parsed.refused) == 2
    assert parsed.refused[0].startswith("rule 3: thresholds.0.value: ")
    assert parsed.refused[1] == "rule 4: operator '=>' is not one of >, <."
    assert parsed.error == ""


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (threshold(feature="angel"), "unknown feature 'angel'"),
        (threshold(op="greater_than"), "operator 'greater_than'"),
        (threshold(value="NaN"), "finite"),
        (good(action="up"), "unknown action 'up'"),
        (good(thresholds=[]), "it has no condition"),
        (good(facts=["angle > 1", "angle < 0"]), "cannot be above"),
        (good(facts=["angle"]), "cannot read"),
        (good(facts="angle > 0"), "facts"),
        (good(thresholds=[{"feature": "angle", "op": ">", "value": 1}] * 9), "thresholds"),
        ("IF angle > 0 THEN left", "rule 1"),
        (None, "rule 1"),
    ],
)
def test_what_is_refused_is_said(rule: Any, complaint: str) -> None:
    parsed = parse_reply(reply(rule, threshold(feature="speed")), NUMBERS)
    assert [str(rule) for rule in parsed.rules] == ["IF speed > 0.1 THEN right"]
    assert len(parsed.refused) == 1 and complaint in parsed.refused[0]


def test_lenient_where_nothing_is_guessed() -> None:
    parsed = parse_reply(
        reply(threshold(op=">=", value="0.1"), good(thresholds=[], facts=["angle > 0.1", "angle > 0.1"], why="x" * 300)),
        NUMBERS,
    )
    assert [str(rule) for rule in parsed.rules] == ["IF angle > 0.1 THEN right"] * 2
    assert len(parsed.rules[1].why) == 200


def test_continuous_heads_are_read_in_one_piece_or_in_three() -> None:
    body = {"thresholds": [{"feature": "angle", "op": ">", "value": 0.1}]}
    parsed = parse_reply(
        reply(
            body | {"action": "torque > 0"},
            body | {"action": "torque", "action_op": "<", "action_value": -1},
            body | {"action": "torque"},
            body | {"action": "torque > 3"},
            body | {"action": "torque is big"},
        ),
        ARM,
    )
    assert [str(rule) for rule in parsed.rules] == ["IF angle > 0.1 THEN torque > 0", "IF angle > 0.1 THEN torque < -1"]
    assert len(parsed.refused) == 3
    assert heads(CONTINUOUS) == ["torque > 0", "torque < 0", "grip > 0.5", "grip < 0.5"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Push right when the pole leans right.",
        "{}",
        "[]",
        "null",
        '{"rules": {}}',
        '{"rules": [{"facts"',
        "x" * (MAX_REPLY_CHARACTERS + 1),
        "[" * 60_000,
        '{"rules":' * 5_000,
        json.dumps(reply_schema(NUMBERS, 3)),
        "\ud800\x00",
    ],
)
def test_what_is_no_rule_set_is_an_error_in_words(text: str) -> None:
    parsed = parse_reply(text, NUMBERS)
    assert parsed.rules == () and parsed.error


def test_more_rules_than_asked_for_are_refused() -> None:
    parsed = parse_reply(reply(*[threshold(value=k) for k in range(9)]), NUMBERS, max_rules=4)
    assert len(parsed.rules) == 4
    assert parsed.refused == ("rules 5 to 9: more than 4 rules were asked for",)


_words = st.sampled_from(
    ["rules", "facts", "thresholds", "feature", "op", "value", "action", "action_op", "action_value", "confidence", "why",
     "angle", "front", "open", "key", "yes", "any",
     "front is key", "front is not wall", "angle > 0.5", "torque > 0", ">", "<", ">=", "left", "torque", "1e999", "0.5"]
)  # fmt: skip
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words | st.text(max_size=4), inner, max_size=6),
    max_leaves=20,
)
_near_rules = st.fixed_dictionaries(
    {},
    optional={
        "facts": st.lists(_words, max_size=3) | _json,
        "thresholds": st.lists(
            st.fixed_dictionaries({"feature": _words, "op": _words, "value": st.floats() | _words}) | _json, max_size=3
        ),
        "action": st.sampled_from(["left", "right", "torque", "torque > 0", "grip < 0.25"]) | _json,
        "action_op": st.sampled_from([">", "<"]) | _json,
        "action_value": st.floats() | _json,
        "confidence": st.floats() | _json,
        "why": _json,
        "front": _words | _json,
        "angle": _json,
    },
)


@settings(max_examples=150, deadline=None)
@given(data=_json | st.fixed_dictionaries({"rules": st.lists(_near_rules | _json, max_size=5)}))
def test_arbitrary_json_never_raises_and_what_is_returned_is_sound(data: Any) -> None:
    text = json.dumps(data)
    for vocabulary in VOCABULARIES:
        for rule in parse_reply(text, vocabulary).rules:
            assert problems(rule, vocabulary) == []


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_arbitrary_text_never_raises(text: str) -> None:
    assert parse_reply(text, NUMBERS).rules == ()


def _from(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if schema["type"] == "object":
        return st.fixed_dictionaries({name: _from(part) for name, part in schema["properties"].items()})
    if schema["type"] == "array":
        return st.lists(_from(schema["items"]), min_size=schema["minItems"], max_size=schema["maxItems"])
    if schema["type"] == "number":  # tenths, inside every range of ARM's actions
        return st.integers(1, 9).map(lambda tenths: tenths / 10)
    return st.sampled_from(schema["enum"]) if "enum" in schema else st.text(max_size=schema["maxLength"])


@pytest.mark.parametrize("choose", [True, False])
@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda vocabulary: vocabulary.name)
def test_a_reply_that_keeps_to_the_schema_is_read_whole(vocabulary: Vocabulary, choose: bool) -> None:
    schema = reply_schema(vocabulary, 4, conditions=CONDITIONS[vocabulary.name] if choose else ())

    @settings(max_examples=60, deadline=None)
    @given(_from(schema))
    def check(data: Any) -> None:
        parsed = parse_reply(json.dumps(data), vocabulary, 4)
        assert parsed.error == "" and parsed.notes == ()
        # a grammar cannot rule out a body that contradicts itself, or (mixed kinds) one without any condition
        assert all("at once" in line or "no condition" in line for line in parsed.refused)
        assert len(parsed.rules) + len(parsed.refused) == len(data["rules"])

    check()


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda item: item.name)
def test_the_rich_form_is_as_flat_and_offers_more(vocabulary: Vocabulary) -> None:
    rich = reply_schema(vocabulary, 3, rich=True)
    rule = rich["properties"]["rules"]["items"]["properties"]
    for node in every_node(rich):
        assert not {"$ref", "anyOf", "const", "pattern", "oneOf"} & set(node)
    assert ("ranges" in rule) == ("angle" in vocabulary) and ("earlier" in rule) == ("front" in vocabulary)
    plain = reply_schema(vocabulary, 3)["properties"]["rules"]["items"]["properties"]
    assert not {"ranges", "earlier"} & set(plain)  # what small models were measured with
    assert reply_schema(vocabulary, 3, conditions=CONDITIONS[vocabulary.name], rich=True) == reply_schema(
        vocabulary, 3, conditions=CONDITIONS[vocabulary.name]
    )


def test_a_rich_reply_is_read() -> None:
    rule = {
        "facts": ["front is key"],
        "thresholds": [],
        "ranges": [{"feature": "angle", "low": 0.5, "high": 0.1}],
        "earlier": ["front is wall"],
        "action": "torque",
        "action_op": ">",
        "action_value": 0,
    }
    parsed = parse_reply(reply(rule), ARM)
    assert [item.key for item in parsed.rules] == [
        "IF angle < 0.5 AND angle > 0.1 AND exists earlier (front is wall) AND front is key THEN torque > 0"
    ]
    for change in ({"earlier": ["angel > 0"]}, {"ranges": [{"feature": "angle", "low": 1, "high": 1}]}, {"earlier": "front"}):
        parsed = parse_reply(reply(rule | change), ARM)
        assert not parsed.rules and len(parsed.refused) == 1
