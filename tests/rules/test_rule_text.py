"""Rules as text: what is printed can be read back, and two ways of saying the same thing have one key."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import Connective, Entry, Head, Literal, Quantified, Rule, format_number, parse_rule
from sb3_nser.rules.files import dump_yaml, entry_from_dict, entry_to_dict, load_yaml
from sb3_nser.rules.text import parse_condition

RESERVED = {"if", "and", "or", "not", "is", "then"}
names = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z0-9_]{1,4})?", fullmatch=True).filter(lambda name: name not in RESERVED)
numbers = st.floats(-1e9, 1e9, allow_nan=False)
values = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=6).filter(lambda name: name not in RESERVED)
two_numbers = st.tuples(numbers, numbers).filter(lambda ends: format_number(ends[0]) != format_number(ends[1]))
literals = st.one_of(
    st.builds(Literal, feature=names, op=st.sampled_from([">", "<", "about"]), value=numbers, negated=st.booleans()),
    st.builds(Literal, feature=names, op=st.just("is"), value=values, negated=st.booleans()),
    st.builds(Literal, feature=names, op=st.just("between"), value=two_numbers, negated=st.booleans()),
    st.builds(
        Literal,
        feature=names,
        op=st.just("in"),
        value=st.lists(values, min_size=1, max_size=4).map(tuple),
        negated=st.booleans(),
    ),
)
joined = st.builds(
    Connective,
    connective=st.sampled_from(["and", "or", "implies"]),
    parts=st.tuples(literals, literals),
    negated=st.booleans(),
)
objects = names.filter(lambda name: name not in ("earlier", "within"))
quantified = st.one_of(
    st.builds(
        Quantified,
        quantifier=st.sampled_from(["exists", "forall"]),
        within=st.none() | st.integers(1, 1000),
        body=literals | joined,
        negated=st.booleans(),
    ),
    st.builds(Quantified, quantifier=st.sampled_from(["exists", "forall"]), over=objects, body=literals | joined),
)
then = st.builds(Quantified, quantifier=st.just("exists"), body=quantified.filter(lambda item: item.temporal))
conditions = st.one_of(literals, joined, quantified, then)
heads = st.one_of(
    st.builds(Head, action=names),
    st.builds(Head, action=names, op=st.sampled_from([">", "<"]), value=numbers),
)
rules = st.builds(
    Rule,
    literals=st.one_of(
        st.lists(literals, min_size=1, max_size=8).map(tuple), st.lists(conditions, min_size=1, max_size=3).map(tuple)
    ),
    head=heads,
    polarity=st.sampled_from(["prefer", "avoid"]),
)


@given(rules)
def test_what_is_printed_reads_back_as_the_same_rule(rule: Rule) -> None:
    again = parse_rule(str(rule))
    assert again.key == rule.key
    assert str(again) == str(rule)
    if all(isinstance(item, Literal) and item.op != "between" for item in rule.literals):  # a key may be longer than a rule
        assert parse_rule(rule.key).key == rule.key


@given(rules)
def test_json_gives_the_same_rule(rule: Rule) -> None:
    assert Rule.model_validate_json(rule.model_dump_json()) == rule
    entry = entry_from_dict(json.loads(json.dumps(entry_to_dict(Entry(rule)))))
    assert entry.rule == rule


@given(rules)
def test_yaml_gives_the_same_rule(rule: Rule) -> None:
    again = load_yaml(dump_yaml([Entry(rule)]))[0]
    assert again.key == rule.key and again.rule.source == rule.source  # its id is the same, so its evidence still counts


@given(rules, st.randoms())
def test_the_order_of_conditions_and_repeats_do_not_matter(rule: Rule, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(rule.literals)
    random.shuffle(shuffled)
    assert rule.model_copy(update={"literals": tuple(shuffled)}).key == rule.key
    assert rule.canonical().key == rule.key == rule.canonical().canonical().key


@given(st.text(max_size=80))
def test_any_text_is_either_a_rule_or_a_sentence(text: str) -> None:
    try:
        parse_rule(text)
    except ConfigurationError as error:
        assert "position" in str(error)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("IF x > 0.10 THEN go", "if x>0.1 then prefer go"),
        ("IF NOT x > 1 THEN go", "IF x < 1 THEN go"),
        ("IF x is not key THEN go", "IF NOT x is key THEN go"),
        ("IF NOT x is yes THEN go", "IF x is no THEN go"),
        ("IF a > 1 AND b < 2 THEN avoid go", "IF b < 2 AND a > 1.0 AND a > 1 THEN AVOID go"),
        ("IF x > 1e-3 THEN torque > -1.50", "IF x > 0.001 THEN torque > -1.5"),
        ("IF NOT NOT x > 1 THEN avoid", "IF x > 1 THEN avoid"),  # an action may be called "avoid"
        ("IF x between 2 and 1.0 THEN go", "IF x > 1 AND x < 2 THEN go"),
        ("IF NOT x between 1 and 2 THEN go", "IF x < 1 OR x > 2 THEN go"),
        ("IF x ≈ 0.50 THEN go", "if x ABOUT 0.5 then go"),
        ("IF x not between 1 and 2 THEN go", "IF NOT x between 2 and 1 THEN go"),
        ("IF x not about 1 THEN go", "IF NOT x about 1.0 THEN go"),
        ("IF x is in {a, b} THEN go", "IF x in {b,a} THEN go"),
        ("IF x is not in {a, b} THEN go", "IF x not in {b,a} THEN go"),
        ("IF x is in AND y is not in THEN go", "IF NOT y is in AND x is in THEN go"),  # a value may be called "in"
        ("IF x in {key, ball, key} THEN go", "IF x in {ball, key} THEN go"),
        ("IF x not in {key} THEN go", "IF x is not key THEN go"),
        ("IF a > 1 -> b > 2 THEN go", "IF b > 2 OR a < 1 THEN go"),
        ("IF NOT (a > 1 OR b is x) THEN go", "IF b is not x AND a < 1 THEN go"),
        ("IF (a > 1 AND (b > 2 AND c > 3)) THEN go", "IF c > 3 AND b > 2 AND a > 1 THEN go"),
        ("IF NOT exists earlier (a > 1) THEN go", "IF forall EARLIER (a < 1) THEN go"),
        ("IF NOT forall object (a is x -> b > 1) THEN go", "IF exists object (a is x AND b < 1) THEN go"),
        ("IF exists within 1000 steps (a > 1) THEN go", "IF exists earlier (a > 1) THEN go"),
        ("IF exists > 1 AND in is yes AND within about 2 THEN go", "IF within about 2 AND exists > 1 AND in is yes THEN go"),
    ],
)
def test_equal_meaning_equal_key(one: str, other: str) -> None:
    assert parse_rule(one).key == parse_rule(other).key
    assert parse_rule(one).id == parse_rule(other).id


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 1, "IF"),
        ("x > 1 THEN go", 1, "IF"),
        ("WHEN x > 1 THEN go", 1, "found 'WHEN'. A rule looks like"),  # not "did you mean 'then'?"
        ("IF exist earlier (x > 1) THEN go", 10, "found 'earlier'. Did you mean 'exists'?"),
        ("IF NOT (foral within 3 steps (x > 1)) THEN go", 15, "Did you mean 'forall'?"),
        ("IF x > twelve THEN go", 8, "a finite number"),
        ("IF x > 12 deg THEN go", 11, "THEN"),
        ("IF x => 1 THEN go", 6, "'>', '<' or 'is'"),
        ("IF x >= 1 THEN go", 6, "expected '>' (a soft threshold"),
        ("IF x = 1 THEN go", 6, "'>', '<' or 'is'"),
        ("IF x betwen 1 and 2 THEN go", 6, "found 'betwen'. Did you mean 'between'?"),
        ("IF x between 1 or 2 THEN go", 16, "AND and the second number"),
        ("IF x between 1 and 1 THEN go", 4, "two different numbers; use 'about'"),
        ("IF x in key THEN go", 9, "'{'"),
        ("IF x not key THEN go", 10, "'in', 'between' or 'about'"),
        ("IF x in {} THEN go", 10, "the name of a value"),
        ("IF x in {key ball} THEN go", 14, "',' or '}'"),
        ("IF exists earlier x > 1 THEN go", 19, "'('"),
        ("IF exists within five steps (x > 1) THEN go", 18, "a finite number"),
        ("IF exists within 0 steps (x > 1) THEN go", 18, "from 1 to 1000"),
        ("IF exists within 1.5 steps (x > 1) THEN go", 18, "a whole number of steps"),
        ("IF exists within 5 stps (x > 1) THEN go", 20, "Did you mean 'steps'?"),
        ("IF (x > 1 THEN go", 11, "')'"),
        ("IF x > 1) THEN go", 9, "THEN"),
        ("IF x > 1e999 THEN go", 8, "a finite number"),
        ("IF exists object (exists earlier (x > 1)) THEN go", 4, "no quantifier may stand inside 'exists object'"),
        ("IF exists earlier (exists earlier (exists earlier (x > 1))) THEN go", 4, "at most 2 deep"),
        ("IF ((((((x > 1 OR y > 1) AND z > 1) OR x > 2) AND z > 2) OR y > 3)) THEN go", 10, "at most 4 deep"),
        ("IF x > 1 THEN", 14, "the name of an action"),
        ("IF x > 1 THEN go now", 18, "the end of the rule"),
        ("IF x > inf THEN go", 8, "a finite number"),
        ("IF x is THEN go", 9, "the name of a value"),
        ("IF " + " AND ".join(["x > 1"] * 9) + " THEN go", 80, "THEN after 8 conditions"),
    ],
)
def test_errors_say_where(text: str, position: int, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_rule(text)
    assert f"position {position}" in str(error.value)
    assert expected in str(error.value)


def test_length_is_bounded() -> None:
    with pytest.raises(ConfigurationError, match="2000 characters"):
        parse_rule("IF x > 1 THEN go" + " " * 2000)


def test_keys_of_plain_rules_are_those_of_earlier_releases() -> None:
    """Saved books and records name rules by these."""
    rule = parse_rule("IF NOT x > 0.10 AND y is not key AND NOT open is yes THEN avoid go")
    assert rule.key == "IF NOT y is key AND open is no AND x < 0.1 THEN avoid go"
    old = {"feature": "x", "op": ">", "value": 0.5, "negated": True}
    assert Rule.model_validate({"literals": [old], "head": {"action": "go"}}).key == "IF x < 0.5 THEN go"


def test_a_deep_json_is_refused_with_a_sentence() -> None:
    condition: dict[str, object] = {"feature": "x", "op": ">", "value": 1.0}
    for _ in range(200):
        condition = {"quantifier": "exists", "over": "earlier", "body": condition}
    with pytest.raises(ConfigurationError, match="at most 2 deep"):
        entry_from_dict({"rule": {"literals": [condition], "head": {"action": "go"}}})


def test_a_rule_that_could_not_be_read_back_cannot_be_made() -> None:
    many = {"feature": "f" * 60, "op": "in", "value": [f"{'v' * 60}{k}" for k in range(16)]}
    with pytest.raises(ValueError, match="2000 characters"):
        Rule.model_validate({"literals": [many, {**many, "negated": True}], "head": {"action": "go"}})


@pytest.mark.parametrize("kind", ["or", "and"])
@pytest.mark.parametrize("count", [9, 16])
def test_whatever_a_formula_may_hold_can_be_read_back(kind: str, count: int) -> None:
    parts = [{"feature": "x", "op": ">", "value": float(k)} for k in range(count)]
    long = {"connective": kind, "parts": parts, "negated": kind == "and"}
    rule = Rule.model_validate({"literals": [long], "head": {"action": "go"}})
    assert parse_rule(str(rule)).key == rule.key
    assert load_yaml(dump_yaml([Entry(rule)]))[0].key == rule.key
    with pytest.raises(ConfigurationError, match="no more than 16 conditions"):
        parse_rule("IF " + " OR ".join(["x > 1"] * 17) + " THEN go")


@pytest.mark.parametrize(
    "text", ["IF \u212a > 1 THEN go", "\u0131F x > 1 THEN go", "IF x i\u017f key THEN go", "IF x > \uff11 THEN go"]
)
def test_letters_that_only_look_like_others_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        parse_rule(text)


def test_any_white_space_parts_words() -> None:
    assert parse_rule("IF\u00a0x >\n1\tTHEN\u2003go").key == "IF x > 1 THEN go"


def test_many_parentheses_cost_nothing() -> None:
    text = "IF " + "(" * 900 + "x > 1" + ")" * 900 + " THEN go"
    assert str(parse_rule(text)) == "IF x > 1 THEN go"


def test_a_condition_alone() -> None:
    assert str(parse_condition("exists earlier (carrying is key)")) == "exists earlier (carrying is key)"
    with pytest.raises(ConfigurationError, match="position 6, found the end"):
        parse_condition("x is ")
    with pytest.raises(ConfigurationError, match=r"a condition must be text .* got None"):
        parse_condition(None)  # type: ignore[arg-type]
