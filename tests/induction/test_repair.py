"""Near misses: a proposed rule that lacks a condition, has a wrong one or a misplaced threshold, and what becomes of it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_nser.induction.repair import REPAIR_SOURCE, repair
from sb3_nser.logic import Dataset, judge
from sb3_nser.rules import Entry, Rule, parse_rule
from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary

EPISODES, STEPS = 60, 40


def column(at: int, observations: th.Tensor) -> th.Tensor:
    return observations[:, at]


WORDS = Vocabulary(
    "toy",
    "Fetch the key.",
    (
        Feature("front", "category", "what is ahead", partial(column, 0), values=("empty", "key", "wall")),
        Feature("carrying", "boolean", "yes if the hands are full", partial(column, 1)),
        Feature("speed", "number", "how fast", partial(column, 2), low=-3.0, high=3.0),
        Feature("noise", "number", "means nothing", partial(column, 3), low=-3.0, high=3.0),
    ),
    ActionSet(("pickup", "forward")),
)


def data(effect: Any, seed: int = 0, episodes: int = EPISODES) -> Dataset:
    """Random states and actions; ``effect(front, carrying, speed)`` is what ``pickup`` adds to the return there."""
    rng = np.random.default_rng(seed)
    rows = episodes * STEPS
    front, carrying = rng.integers(0, 3, rows), rng.integers(0, 2, rows)
    speed, noise = rng.normal(size=rows), rng.normal(size=rows)
    actions, ids = rng.integers(0, 2, rows), np.repeat(np.arange(episodes), STEPS)
    returns = rng.normal(size=rows) + rng.normal(size=episodes)[ids]
    returns += np.where(actions == 0, effect(front, carrying, speed), 0.0)
    values = {"front": front, "carrying": carrying, "speed": speed, "noise": noise}
    columns = {name: th.from_numpy(part.astype(np.float32)) for name, part in values.items()}
    return Dataset.build(columns, actions, returns, ids)


def key_and_free_hands(front: Any, carrying: Any, speed: Any) -> Any:
    return np.where(front == 1, np.where(carrying == 0, 2.0, -2.0), 0.0)


def found(text: str, dataset: Dataset, **settings: Any) -> list[Rule]:
    return [item.rule for item in repair([parse_rule(text)], WORDS, dataset, **settings)]


def test_a_missing_condition_is_added_and_confirmed_on_episodes_that_the_search_has_not_seen() -> None:
    dataset = data(key_and_free_hands)
    (item,) = repair([parse_rule("IF front is key THEN pickup")], WORDS, dataset)
    assert item.rule.key == "IF carrying is no AND front is key THEN pickup"
    assert item.changes == ("added carrying is no",) and item.after > 3.0 > 2.0 > item.before
    assert item.rule.source == REPAIR_SOURCE and item.rule.confidence == 0.0  # nobody has vouched for it
    (judgement,) = judge([Entry(item.rule)], WORDS, dataset)
    assert judgement.evidence.verdict == "supported"


def test_a_condition_that_should_not_be_there_is_dropped_or_turned_round() -> None:
    dataset = data(lambda front, carrying, speed: np.where(front == 1, 1.5, -1.5))
    (rule,) = found("IF front is key AND noise > 2.5 THEN pickup", dataset)  # hardly ever fires
    assert rule.key == "IF front is key THEN pickup"
    (rule,) = found("IF front is key AND front is wall THEN pickup", dataset) or [None]
    assert rule is None  # cannot be grounded: it contradicts itself


def test_a_threshold_moves_to_where_the_effect_is() -> None:
    dataset = data(lambda front, carrying, speed: np.where(speed > 0.7, 2.0, -1.0))
    (rule,) = found("IF speed > -1 THEN pickup", dataset)
    (literal,) = [literal for literal in rule.literals if literal.feature == "speed" and literal.op == ">"]
    assert 0.4 < float(literal.value) < 1.1


def test_the_action_and_one_feature_of_the_proposal_stay() -> None:
    dataset = data(key_and_free_hands)
    for text in ("IF noise > 0 THEN pickup", "IF speed < 0.3 AND noise > 1 THEN pickup", "IF front is wall THEN forward"):
        proposed = parse_rule(text)
        for rule in found(text, dataset, beam=16):
            assert rule.head == proposed.head and rule.polarity == proposed.polarity
            assert {item.feature for item in rule.literals} & {item.feature for item in proposed.literals}


def test_what_the_fitting_episodes_support_is_left_alone_and_what_is_known_is_not_found_again() -> None:
    dataset = data(key_and_free_hands)
    good = "IF front is key AND carrying is no THEN pickup"
    assert found(good, dataset) == []
    assert found("IF front is key THEN pickup", dataset, known=[parse_rule(good).key]) == []
    both = repair([parse_rule("IF front is key THEN pickup"), parse_rule(good)], WORDS, dataset)
    assert both == []  # it was proposed in the same round


def test_an_avoid_rule_is_searched_for_harm() -> None:
    dataset = data(key_and_free_hands)
    (rule,) = found("IF front is key THEN avoid pickup", dataset)
    assert rule.key == "IF carrying is yes AND front is key THEN avoid pickup"


def test_searches_that_can_confirm_nothing_are_not_made() -> None:
    flat = data(lambda *_: 0.0)
    flat = Dataset(flat.features, flat.actions, np.zeros(len(flat)), flat.episode_ids, flat.held_out)
    assert found("IF front is key THEN pickup", flat) == []
    one = data(key_and_free_hands, episodes=1)
    assert not one.held_out.any() and found("IF front is key THEN pickup", one) == []
    assert repair([], WORDS, data(key_and_free_hands)) == []


def test_the_same_question_has_the_same_answer() -> None:
    rules = [parse_rule("IF noise > 0 THEN pickup"), parse_rule("IF front is key THEN pickup")]
    assert repair(rules, WORDS, data(key_and_free_hands)) == repair(rules, WORDS, data(key_and_free_hands))


def test_the_best_of_many_neighbours_in_pure_noise_is_seldom_admitted() -> None:
    """The search looks at hundreds of bodies, so its own score means little; the judge's episodes keep their level."""
    admitted = made = 0
    for seed in range(30):
        dataset = data(lambda *_: 0.0, seed=seed)
        rules = [
            parse_rule(f"IF {body} THEN {head}") for body in ("front is key", "speed > 0") for head in WORDS.actions.names
        ]
        repaired = [Entry(item.rule) for item in repair(rules, WORDS, dataset, beam=8)]
        made += len(repaired)
        admitted += sum(item.evidence.verdict == "supported" for item in judge(repaired, WORDS, dataset))
    assert 0 < made <= 20  # of 120 rules: what the search finds in noise is mostly below its own limits
    assert admitted <= 2  # 5 % of those are expected, by an interval of 90 %


def test_the_search_is_bounded() -> None:
    rng = np.random.default_rng(0)
    rows, width = 20_000, 40
    features = tuple(Feature(f"x{at}", "number", "a number", partial(column, at), low=-3.0, high=3.0) for at in range(width))
    words = Vocabulary("wide", "Go.", features, ActionSet(("a", "b")))
    columns = {f"x{at}": th.from_numpy(rng.normal(size=rows).astype(np.float32)) for at in range(width)}
    actions, returns = rng.integers(0, 2, rows), rng.normal(size=rows)
    dataset = Dataset.build(columns, actions, returns, np.repeat(np.arange(rows // 100), 100))
    rules = [parse_rule(f"IF x{at} > 0 AND x{at + 1} < 0.5 THEN a") for at in range(8)]
    began = time.process_time()
    repair(rules, words, dataset)
    assert time.process_time() - began < 5.0  # well below 1 s on an idle core


@pytest.mark.parametrize("text", ["IF colour is red THEN pickup", "IF front is key THEN fly"])
def test_rules_of_another_vocabulary_are_passed_over(text: str) -> None:
    assert found(text, data(key_and_free_hands)) == []
