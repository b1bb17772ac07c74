"""Judging rules on real CartPole rows of a random policy: right ones are admitted, their opposites refused."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch as th

from sb3_nser.errors import ConfigurationError
from sb3_nser.logic import Dataset, build_bank, judge, scorer
from sb3_nser.rules import Entry, RuleBook, discounted_returns, parse_rule
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary

NAMES = ("cart_position", "cart_velocity", "pole_angle", "pole_angular_velocity")
FEATURES = tuple(Feature(name, "number", name, lambda o, _, i=i: o[:, i]) for i, name in enumerate(NAMES))  # type: ignore[misc]
CARTPOLE = Vocabulary("cartpole", "keep the pole upright", FEATURES, ActionSet(("push_left", "push_right")))


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    env, rng = gym.make("CartPole-v1"), np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    observations, actions, episodes, returns, rewards = [], [], [], [], []
    episode = 0
    for _ in range(20_000):
        action = int(rng.integers(2))
        observations.append(observation)
        actions.append(action)
        episodes.append(episode)
        observation, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        if terminated or truncated:
            returns.append(discounted_returns(rewards, 0.99))
            rewards, episode = [], episode + 1
            observation, _ = env.reset()
    returns.append(discounted_returns(rewards, 0.99))
    return np.array(observations), np.array(actions), np.concatenate(returns), np.array(episodes)


def judged(rows: tuple[np.ndarray, ...], *texts: str, **options: object) -> tuple[RuleBook, dict[str, Entry]]:
    observations, actions, returns, episodes = rows
    dataset = Dataset.build(CARTPOLE.evaluate(observations), actions, returns, episodes)
    book = RuleBook()
    book.propose([parse_rule(text) for text in texts], 0, CARTPOLE)
    book.judge_all(judge(book.candidates(), CARTPOLE, dataset, book.policy, **options), 1)  # type: ignore[arg-type]
    return book, {text: book[parse_rule(text).key] for text in texts}


RIGHT = [
    "IF pole_angle > 0.02 AND pole_angular_velocity > 0 THEN push_right",
    "IF pole_angle < -0.02 AND pole_angular_velocity < 0 THEN push_left",
    "IF pole_angular_velocity > 0.3 THEN avoid push_left",
]
SWAPPED = [
    "IF pole_angle > 0.02 AND pole_angular_velocity > 0 THEN push_left",
    "IF pole_angle < -0.02 AND pole_angular_velocity < 0 THEN push_right",
    "IF pole_angular_velocity > 0.3 THEN avoid push_right",
]


@pytest.mark.parametrize("adjust", [True, False])
def test_right_rules_are_admitted_and_swapped_ones_refused(rows: tuple[np.ndarray, ...], adjust: bool) -> None:
    book, entries = judged(rows, *RIGHT, *SWAPPED, adjust=adjust)
    for text in RIGHT:
        assert (entries[text].status, entries[text].on_prior) == ("admitted", False), entries[text]
        assert entries[text].confidence > 0.9
    for text in SWAPPED:
        assert entries[text].status == "rejected" and entries[text].reason == "the data speak against it"
    assert {entry.key for entry in book.active()} == {parse_rule(text).key for text in RIGHT}


def test_rules_that_never_or_always_fire(rows: tuple[np.ndarray, ...]) -> None:
    """C14: no exception, no NaN, both reported with their rate."""
    never, always = "IF cart_position > 4.7 THEN push_left", "IF cart_position < 4.8 THEN push_left"
    book, entries = judged(rows, never, always, steps=30)
    assert entries[never].evidence and entries[never].evidence.body_rate == 0.0 and entries[never].status == "waiting"
    assert entries[always].evidence and entries[always].evidence.body_rate == 1.0 and entries[always].status == "rejected"
    lines = book.feedback_lines()
    assert f"{never}: never fires" in lines and any("always fires" in line and "100 %" in line for line in lines)
    bank = build_bank(book.entries, CARTPOLE, {})
    assert np.isfinite(scorer(bank, CARTPOLE)(rows[0], None, rows[1][:, None])).all()


def test_near_copies_are_found_by_what_they_fire_on(rows: tuple[np.ndarray, ...]) -> None:
    copy = "IF pole_angular_velocity > 0.00001 AND pole_angle > 0.020001 THEN push_right"
    _, entries = judged(rows, RIGHT[0], copy, steps=30)
    assert entries[RIGHT[0]].status == "admitted"
    assert entries[copy].reason == f"duplicate of {parse_rule(RIGHT[0]).id}"


def test_before_the_first_reward_rules_count_on_the_proposers_word(rows: tuple[np.ndarray, ...]) -> None:
    observations, actions, returns, episodes = rows
    _, entries = judged((observations, actions, 0.0 * returns, episodes), *RIGHT)
    for text in RIGHT:
        assert entries[text].on_prior and entries[text].confidence == pytest.approx(0.25)
        assert entries[text].fitted and entries[text].fitted["theta"] == pytest.approx(
            [x.value for x in parse_rule(text).literals]
        )


def test_a_loaded_book_scores_without_refitting(rows: tuple[np.ndarray, ...]) -> None:
    book, _ = judged(rows, *RIGHT, steps=30)
    expected = scorer(build_bank(book.active(), CARTPOLE), CARTPOLE)(rows[0], None, rows[1][:, None])
    for again in (RuleBook.from_dict(book.to_dict()), RuleBook.from_yaml(book.to_yaml())):
        scores = scorer(build_bank(again.active(), CARTPOLE), CARTPOLE)(rows[0], None, rows[1][:, None])
        np.testing.assert_allclose(scores, expected, atol=1e-6)
    assert expected.max() > 0.9 and (expected == 0).mean() > 0.3


def test_whole_episodes_are_held_out(rows: tuple[np.ndarray, ...]) -> None:
    observations, actions, returns, episodes = rows
    features = CARTPOLE.evaluate(observations)
    one, two = (Dataset.build(features, actions, returns, episodes, 0.3, seed=1) for _ in range(2))
    assert (one.held_out == two.held_out).all()
    held, kept = set(episodes[one.held_out]), set(episodes[~one.held_out])
    assert not held & kept and len(held) == round(0.3 * (episodes[-1] + 1))
    assert max(held) > 0.99 * episodes[-1] * 0.98 and min(held) < 10  # they span the whole time
    assert len(one.part(True)) + len(one.part(False)) == len(one)


@pytest.mark.parametrize("episodes", [1, 2, 3])
def test_few_episodes_are_no_evidence(episodes: int) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(300, 4)).astype(np.float32)
    data = Dataset.build(
        CARTPOLE.evaluate(states), rng.integers(0, 2, 300), rng.normal(size=300), np.arange(300) * episodes // 300
    )
    judgement = judge([Entry(parse_rule(RIGHT[0]))], CARTPOLE, data)[0]
    assert judgement.evidence.verdict == "no_evidence"


def test_no_entries_no_rows_and_bad_data() -> None:
    assert judge([], CARTPOLE, Dataset.build({}, [], [], [])) == []
    empty = Dataset.build(CARTPOLE.evaluate(np.zeros((0, 4), np.float32)), [], [], [])
    assert judge([Entry(parse_rule(RIGHT[0]))], CARTPOLE, empty)[0].evidence.verdict == "never_fires"
    with pytest.raises(ConfigurationError, match="one length"):
        Dataset.build({"pole_angle": th.zeros(3)}, [0, 1], [0.0, 1.0], [0, 0])
    with pytest.raises(ConfigurationError, match=r"held_out_fraction=1\.5"):
        Dataset.build({}, [], [], [], held_out_fraction=1.5)
