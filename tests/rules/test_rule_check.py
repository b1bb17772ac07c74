"""Wrong names, wrong kinds, and contradictions are found before any data is looked at."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_nser.rules import Rule, conflicts, contradictions, parse_rule, problems, redundancies, subsumed
from sb3_nser.rules.check import features_by_name
from sb3_nser.rules.formula import Condition, Connective, Literal, Quantified
from sb3_nser.rules.text import parse_condition
from sb3_nser.vocabulary.features import ActionSet, Feature, ObjectSet, Vocabulary

FEATURES = (
    Feature("angle", "number", "tilt", lambda o, _: o[:, 0]),
    Feature("door_open", "boolean", "whether the door is open", lambda o, _: o[:, 1]),
    Feature("front", "category", "what is in front", lambda o, _: o[:, 2], values=("nothing", "key", "wall")),
)
GRID = Vocabulary("grid", "reach the goal", FEATURES, ActionSet(("left", "right")))
SEEN = ObjectSet(
    "thing",
    "what is in view",
    (
        Feature("kind", "category", "what it is", lambda o, _: o[:, 3:5], values=("key", "lava")),
        Feature("distance", "number", "how far", lambda o, _: o[:, 5:7]),
    ),
)
ROOM = Vocabulary("room", "reach the goal", FEATURES, ActionSet(("left", "right")), objects=(SEEN,))
ARM = Vocabulary("arm", "lift", FEATURES, ActionSet(("torque", "grip"), low=(-2.0, 0.0), high=(2.0, 1.0)))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("IF angel > 0 THEN left", "unknown feature 'angel'; did you mean 'angle'?"),
        ("IF angle is big THEN left", "'angle' is a number"),
        ("IF front > 1 THEN left", "'front' is a category: use 'is' with one of nothing, key, wall"),
        ("IF door_open > 0.5 THEN left", "'door_open' is a boolean"),
        ("IF front is keys THEN left", "has no value 'keys'; did you mean 'key'?"),
        ("IF angle > 0 THEN lift", "unknown action 'lift'"),
        ("IF angle > 0 THEN left > 1", "is discrete"),
        ("IF angle > 1 AND angle < 0 THEN left", "cannot be above 1 and below 0"),
        ("IF angle > 1 AND NOT angle > 1 THEN left", "cannot be above 1 and below 1"),
        ("IF front is key AND front is wall THEN left", "cannot be key and wall at once"),
        ("IF front is key AND front is not key THEN left", "cannot be key and not key"),
        ("IF front is not key AND front is not wall AND front is not nothing THEN left", "every value of front is excluded"),
        ("IF door_open is yes AND door_open is not yes THEN left", "cannot be no and yes at once"),
    ],
)
def test_problems_are_named(text: str, complaint: str) -> None:
    assert any(complaint in problem for problem in problems(parse_rule(text), GRID))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("IF angle > 0 THEN torque", "is continuous"),
        ("IF angle > 0 THEN torque > 2.5", "separates no two actions"),
        ("IF angle > 0 THEN grip > 0", "separates no two actions"),
    ],
)
def test_continuous_heads(text: str, complaint: str) -> None:
    assert complaint in problems(parse_rule(text), ARM)[0]


@pytest.mark.parametrize(
    "text", ["IF angle > 0 AND angle < 1 AND front is not wall THEN avoid left", "IF door_open is no THEN right"]
)
def test_good_rules_pass(text: str) -> None:
    assert problems(parse_rule(text), GRID) == []


def test_without_a_vocabulary_contradictions_are_still_seen() -> None:
    assert contradictions(parse_rule("IF x > 1 AND x < 0 THEN go").literals) == ["x cannot be above 1 and below 0 at once."]


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("IF angle > 0.1 THEN left", "IF angle > 0.1 THEN right", True),
        ("IF angle > 0.1 THEN left", "IF angle > 0 AND front is key THEN right", True),
        ("IF angle > 0.1 THEN left", "IF angle > 0 THEN avoid left", True),
        ("IF angle > 0 THEN torque > 1", "IF angle > 0 THEN torque < 0.5", True),
        ("IF angle > 0 THEN torque > 1", "IF angle > 0 THEN avoid torque > 0", True),
        ("IF angle > 0.1 THEN left", "IF angle < 0 THEN right", False),  # never both
        ("IF front is key THEN left", "IF front is wall THEN right", False),
        ("IF angle > 0.1 THEN left", "IF front is key THEN right", False),  # speak of different things
        ("IF angle > 0.1 THEN left", "IF angle > 0.1 THEN avoid right", False),
        ("IF angle > 0.1 THEN avoid left", "IF angle > 0.1 THEN avoid right", False),
        ("IF angle > 0 THEN torque > 1", "IF angle > 0 THEN torque < 1.5", False),
        ("IF angle > 0 THEN torque > 0", "IF angle > 0 THEN avoid torque > 1", False),
        ("IF pole_angle about 0 THEN push_left", "IF pole_angle < -0.05 THEN push_right", False),  # how wide is not known
        ("IF pole_angle about 0 THEN push_left", "IF pole_angle about 0 THEN push_right", True),
    ],
)
def test_conflicts(one: str, other: str, clash: bool) -> None:
    pair = [parse_rule(one), parse_rule(other)]
    found = conflicts(pair)
    assert bool(found) is clash
    assert found == conflicts(reversed(pair))


def test_conflicts_do_not_depend_on_order() -> None:
    texts = [f"IF angle > {k / 10} THEN {'left' if k % 2 else 'right'}" for k in range(6)]
    rules = [parse_rule(text) for text in texts]
    expected = conflicts(rules)
    assert len(expected) == 9  # every odd with every even one
    for seed in range(5):
        random.Random(seed).shuffle(rules)
        assert conflicts(rules) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("IF exists earlier (angel > 0) THEN left", "unknown feature 'angel'; did you mean 'angle'?"),
        ("IF exists thin (kind is key) THEN left", "no such objects; did you mean 'thing'?"),
        ("IF exists thing (kind is lova) THEN left", "has no value 'lova'; did you mean 'lava'?"),
        ("IF kind is key THEN left", "unknown feature 'kind'"),  # only objects have it
        ("IF exists earlier (distance > 1) THEN left", "unknown feature 'distance'"),
        ("IF front in {key, wal} THEN left", "has no value 'wal'; did you mean 'wall'?"),
        ("IF front between 0 and 1 THEN left", "'front' is a category"),
        ("IF angle in {a, b} THEN left", "'angle' is a number"),
        ("IF angle between 0 and 1 AND angle > 2 THEN left", "cannot be above 2 and below 1"),
        ("IF front in {key, wall} AND front is nothing THEN left", "cannot be in {key, wall} and in {nothing} at once"),
        ("IF front in {key, wall} AND front not in {wall, key} THEN left", "cannot be key, wall and not key, wall"),
        ("IF front not in {key, wall} AND front is not nothing THEN left", "every value of front is excluded"),
        ("IF angle about 1 AND NOT angle about 1 THEN left", "cannot be about 1 and not about 1"),
        ("IF (angle > 1 OR angle < 0) AND angle between 0 and 1 THEN left", "can never hold"),
        ("IF exists earlier (front is key AND front is wall) THEN left", "'exists earlier (front is key AND front is wall)'"),
        ("IF exists within 3 steps (front is key) AND forall earlier (front is wall) THEN left", "can never hold"),
        (
            "IF exists thing (kind is key AND distance < 1) AND forall thing (kind is key -> distance > 2) THEN left",
            "can never",
        ),
        ("IF exists thing (kind not in {key, lava}) THEN left", "can never hold"),
    ],
)
def test_problems_of_formulas_are_named(text: str, complaint: str) -> None:
    assert any(complaint in problem for problem in problems(parse_rule(text), ROOM)), problems(parse_rule(text), ROOM)


@pytest.mark.parametrize(
    "text",
    [
        "IF exists earlier (front is key) AND forall within 3 steps (front is wall) THEN left",  # the key was seen before that
        "IF exists thing (kind is key AND angle > 0) AND angle about 0.5 THEN left",
        "IF forall earlier (angle > 1 AND angle < 0) THEN left",  # holds at the first step
        "IF angle about 0 AND angle about 1 AND angle > 5 THEN left",  # how wide "about" is, the data decide
    ],
)
def test_formulas_that_may_hold_pass(text: str) -> None:
    assert problems(parse_rule(text), ROOM) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IF angle > 0 AND angle > 1 THEN left", ["'angle > 0' follows from 'angle > 1'."]),
        ("IF angle between 0 and 1 AND angle < 2 THEN left", ["'angle < 2' follows from 'angle between 0 and 1'."]),
        ("IF (angle > 0 OR angle < 1) AND front is key THEN left", ["'(angle > 0 OR angle < 1)' always holds."]),
        ("IF front is key AND front in {key, wall} THEN left", ["'front in {key, wall}' follows from 'front is key'."]),
        ("IF front in {key, wall, nothing} THEN left", ["'front in {key, wall, nothing}' always holds."]),
        (
            "IF exists within 2 steps (angle > 1) AND exists earlier (angle > 0) THEN left",
            ["'exists earlier (angle > 0)' follows from 'exists within 2 steps (angle > 1)'."],
        ),
        ("IF angle > 1 AND angle > 1 THEN left", ["'angle > 1' follows from 'angle > 1'."]),
        ("IF angle > 1 AND front is key THEN left", []),
    ],
)
def test_redundant_conditions(text: str, expected: list[str]) -> None:
    assert redundancies(parse_rule(text), features_by_name(ROOM)) == expected


def test_rules_that_another_makes_redundant() -> None:
    texts = (
        "IF angle > 1 THEN left",
        "IF angle > 2 AND front is key THEN left",
        "IF angle > 2 THEN right",
        "IF exists earlier (front is key AND angle > 0) THEN left",
        "IF exists earlier (front is key) THEN left",
    )
    rules = [parse_rule(text) for text in texts]
    found = [(str(narrow), str(wide)) for narrow, wide, _ in subsumed(rules)]
    assert found == [(texts[1], texts[0]), (texts[3], texts[4])]
    assert subsumed(rules[::-1]) == subsumed(rules)


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("IF angle between 0 and 1 THEN left", "IF angle > 0.5 THEN right", True),
        ("IF angle between 0 and 1 THEN left", "IF angle > 2 THEN right", False),
        ("IF front in {key, wall} THEN left", "IF front is key THEN right", True),
        ("IF exists earlier (front is key) THEN left", "IF forall earlier (front is wall) THEN right", False),
        ("IF exists earlier (front is key) THEN left", "IF exists earlier (front is wall) THEN right", True),
        ("IF exists thing (kind is key) THEN left", "IF forall thing (kind is lava) THEN right", False),
    ],
)
def test_conflicts_of_formulas(one: str, other: str, clash: bool) -> None:
    assert bool(conflicts([parse_rule(one), parse_rule(other)])) is clash


FRONT = ("nothing", "key", "wall")
small = st.one_of(
    st.builds(Literal, feature=st.just("angle"), op=st.sampled_from("><"), value=st.integers(0, 3), negated=st.booleans()),
    st.builds(Literal, feature=st.just("angle"), op=st.just("between"), value=st.sampled_from([(0, 2), (1, 3)])),
    st.builds(Literal, feature=st.just("front"), op=st.just("is"), value=st.sampled_from(FRONT), negated=st.booleans()),
    st.builds(Literal, feature=st.just("front"), op=st.just("in"), value=st.permutations(FRONT).map(lambda f: tuple(f[:2]))),
)
pair = st.builds(Connective, connective=st.sampled_from(["and", "or", "implies"]), parts=st.tuples(small, small))
formula = st.one_of(
    small, pair, st.builds(Quantified, quantifier=st.sampled_from(["exists", "forall"]), within=st.just(2), body=pair | small)
)


def holds(condition: Condition, episode: list[tuple[float, str]]) -> bool:
    """Whether it holds at the last of some steps (angle, front), thresholds taken as crisp."""
    angle, front = episode[-1]
    if isinstance(condition, Quantified):
        earlier = [holds(condition.body, episode[: at + 1]) for at in range(len(episode) - 1)][-2:]
        truth = any(earlier) if condition.quantifier == "exists" else all(earlier)
    elif isinstance(condition, Connective):
        parts = [holds(part, episode) for part in condition.parts]
        truth = {"and": all(parts), "or": any(parts), "implies": parts[-1] or not parts[0]}[condition.connective]
    elif condition.op in (">", "<"):
        truth = angle > condition.value if condition.op == ">" else angle < condition.value
    elif condition.op == "between":
        truth = min(condition.value) < angle < max(condition.value)
    else:
        truth = front in condition.members
    return truth != condition.negated


@settings(max_examples=300, deadline=None)
@given(st.lists(formula, min_size=1, max_size=3), st.lists(st.tuples(st.sampled_from([-0.5, 0.5, 1.5, 2.5, 3.5]),
       st.sampled_from(FRONT)), min_size=1, max_size=4))  # fmt: skip
def test_nothing_is_claimed_that_is_not_so(body: list[Condition], episode: list[tuple[float, str]]) -> None:
    """Contradictions, redundancies and the canonical form against crisp truth in any little episode."""
    rule = Rule(literals=tuple(body), head={"action": "left"})
    truth = all(holds(item, episode) for item in rule.literals)
    assert all(holds(item, episode) for item in rule.canonical().literals) == truth
    known = features_by_name(GRID)
    if truth:
        assert contradictions(rule.literals, known) == []
    for sentence in redundancies(rule, known):
        if sentence.endswith("always holds."):
            assert holds(parse_condition(sentence[1 : sentence.rindex("'")]), episode), sentence
