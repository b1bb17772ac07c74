"""Wrong names, wrong kinds, and contradictions are found before any data is looked at."""

from __future__ import annotations

import random

import pytest

from sb3_nser.rules import conflicts, contradictions, parse_rule, problems
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

FEATURES = (
    Feature("angle", "number", "tilt", lambda o, _: o[:, 0]),
    Feature("door_open", "boolean", "whether the door is open", lambda o, _: o[:, 1]),
    Feature("front", "category", "what is in front", lambda o, _: o[:, 2], values=("nothing", "key", "wall")),
)
GRID = Vocabulary("grid", "reach the goal", FEATURES, ActionSet(("left", "right")))
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
