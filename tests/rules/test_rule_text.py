"""Rules as text: what is printed can be read back, and two ways of saying the same thing have one key."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import Head, Literal, Rule, parse_rule

RESERVED = {"if", "and", "or", "not", "is", "then"}
names = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z0-9_]{1,4})?", fullmatch=True).filter(lambda name: name not in RESERVED)
numbers = st.floats(-1e9, 1e9, allow_nan=False)
values = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=6).filter(lambda name: name not in RESERVED)
literals = st.one_of(
    st.builds(Literal, feature=names, op=st.sampled_from([">", "<"]), value=numbers, negated=st.booleans()),
    st.builds(Literal, feature=names, op=st.just("is"), value=values, negated=st.booleans()),
)
heads = st.one_of(
    st.builds(Head, action=names),
    st.builds(Head, action=names, op=st.sampled_from([">", "<"]), value=numbers),
)
rules = st.builds(
    Rule,
    literals=st.lists(literals, min_size=1, max_size=8).map(tuple),
    head=heads,
    polarity=st.sampled_from(["prefer", "avoid"]),
)


@given(rules)
def test_what_is_printed_reads_back_as_the_same_rule(rule: Rule) -> None:
    again = parse_rule(str(rule))
    assert again.key == rule.key
    assert str(again) == str(rule)


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
        ("IF x > twelve THEN go", 8, "a finite number"),
        ("IF x > 12 deg THEN go", 11, "THEN"),
        ("IF x => 1 THEN go", 6, "'>', '<' or 'is'"),
        ("IF x >= 1 THEN go", 6, "expected '>' (a soft threshold"),
        ("IF x = 1 THEN go", 6, "'>', '<' or 'is'"),
        ("IF x > 1 OR y > 2 THEN go", 10, "for OR, write two rules"),
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
