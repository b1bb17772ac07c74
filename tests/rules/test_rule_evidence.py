"""Lift, firing rates, verdicts and intervals, against hand computation and known truths."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sb3_nser.errors import ConfigurationError
from sb3_nser.rules import Evidence, describe_evidence, detrend, discounted_returns, measure


def test_lift_by_hand() -> None:
    body = np.array([1, 1, 1, 1, 0, 0.4, 1, 1])
    match = np.array([1, 0, 1, 0, 1, 1, 0, 1])
    returns = np.array([5.0, 1.0, 7.0, 3.0, 100.0, 100.0, 2.0, 6.0])
    episodes = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    evidence = measure(body, match, returns, episodes, min_support=3, min_episodes=3)
    assert evidence.lift == pytest.approx((5 + 7 + 6) / 3 - (1 + 3 + 2) / 3)
    assert (evidence.support, evidence.contrast, evidence.episodes, evidence.rows) == (3, 3, 3, 8)
    assert evidence.body_rate == pytest.approx(6 / 8) and evidence.head_rate == pytest.approx(0.5)
    assert evidence.low <= evidence.lift <= evidence.high and evidence.verdict == "supported"
    against = measure(body, match, returns, episodes, min_support=3, min_episodes=3, avoid=True)
    assert against.lift == pytest.approx(-evidence.lift) and against.verdict == "refuted"


def test_rows_of_one_episode_are_not_independent() -> None:
    """A thousand copies of the same row say no more than one: the interval resamples episodes."""
    rng = np.random.default_rng(0)
    body, match, episodes = np.ones(40), np.tile([1, 0], 20), np.arange(40) // 2
    body[::7] = 0
    returns = rng.normal(size=40)
    once = measure(body, match, returns, episodes, min_support=1)
    many = measure(np.repeat(body, 100), np.repeat(match, 100), np.repeat(returns, 100), np.repeat(episodes, 100))
    assert many.low == pytest.approx(once.low) and many.high == pytest.approx(once.high)


@pytest.mark.parametrize("effect", [0.0, 0.5])
def test_intervals_cover_the_truth_about_as_often_as_they_say(effect: float) -> None:
    rng = np.random.default_rng(1)
    covered, trials, episodes, length = 0, 300, 30, 20
    ids = np.repeat(np.arange(episodes), length)
    for trial in range(trials):
        shared = np.repeat(rng.normal(size=episodes), length)  # what an episode's rows have in common
        body, match = rng.random(len(ids)) < 0.5, rng.random(len(ids)) < 0.5
        returns = shared + effect * match + rng.normal(size=len(ids))
        evidence = measure(body, match, returns, ids, seed=trial, resamples=200)
        covered += evidence.low <= effect <= evidence.high
    assert 0.84 <= covered / trials <= 0.96  # nominal 0.9


def test_verdicts_when_nothing_can_be_said() -> None:
    rows, rng = 4000, np.random.default_rng(2)
    ids, match, returns = np.arange(rows) // 20, rng.random(rows) < 0.5, rng.normal(size=rows)
    half = rng.random(rows) < 0.5
    assert measure(np.zeros(rows), match, returns, ids).verdict == "never_fires"
    assert measure(np.ones(rows), match, returns, ids).verdict == "always_fires"
    assert measure(half, match, np.zeros(rows), ids).verdict == "no_evidence"  # no reward seen yet
    assert measure(half, match, np.full(rows, -7.3), ids).verdict == "no_evidence"
    assert measure(half, np.ones(rows), returns, ids).verdict == "no_evidence"  # the policy never does otherwise
    assert measure(half, np.zeros(rows), returns, ids).verdict == "no_evidence"
    assert measure(half, match, returns, np.zeros(rows)).verdict == "no_evidence"  # one episode
    assert measure(half, match, returns, ids).verdict == "inconclusive"
    assert measure([], [], [], []).verdict == "never_fires"


def test_always_firing_rules_still_have_a_lift() -> None:
    rng = np.random.default_rng(3)
    match = rng.random(2000) < 0.5
    evidence = measure(np.ones(2000), match, 2.0 * match + rng.normal(size=2000), np.arange(2000) // 10)
    assert evidence.verdict == "always_fires" and evidence.lift == pytest.approx(2.0, abs=0.2)


def test_bad_input_is_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="must be \\(N,\\) alike"):
        measure([1, 1], [1], [0.0, 1.0], [0, 0])
    with pytest.raises(ConfigurationError, match="finite"):
        measure([1, 1], [1, 0], [0.0, math.nan], [0, 0])


def test_json_round_trip_with_nan() -> None:
    for evidence in (Evidence("never_fires"), Evidence("supported", 3.2, 1.1, 5.0, 0.9, 30, 40, 0.12, 0.4, 500, 20)):
        again = Evidence.from_dict(json.loads(json.dumps(evidence.to_dict(), allow_nan=False)))
        assert repr(again) == repr(evidence)
    for wrong in ({"verdict": "maybe"}, {"verdict": "supported", "lift": "3"}, {"verdict": "supported", "lfit": 3}, []):
        with pytest.raises(ConfigurationError):
            Evidence.from_dict(wrong)  # type: ignore[arg-type]


def test_words() -> None:
    evidence = Evidence("supported", 3.2, 1.1, 5.04, 0.9, 30, 40, 0.12, 0.4, 500, 20)
    assert describe_evidence(evidence) == (
        "supported: lift +3.2 [+1.1, +5.04] at 90 %, fires in 12 % of 500 steps, 30 with the action, 40 without, 20 episodes"
    )
    assert describe_evidence(None) == "not judged yet"
    assert "never fires" in describe_evidence(Evidence("never_fires"))


def test_returns_to_go() -> None:
    assert discounted_returns([1, 1, 1], 0.5).tolist() == [1.75, 1.5, 1.0]
    assert discounted_returns([0, 0, 1], 0.9) == pytest.approx([0.81, 0.9, 1.0])
    assert discounted_returns([], 0.9).shape == (0,)
    # a constant reward cut by a time limit: with the rest estimated, no step looks better than another
    assert np.ptp(discounted_returns(np.full(50, -1.0), 0.99, final_value=-100.0)) < 1e-9


def test_a_policy_that_improves_does_not_make_a_frequent_action_look_good() -> None:
    """Later episodes return more and choose the action more often; the action itself does nothing."""
    rng = np.random.default_rng(4)
    ids = np.repeat(np.arange(200), 20)
    progress = ids / 200
    match = rng.random(len(ids)) < progress
    body = rng.random(len(ids)) < 0.5
    returns = 10 * progress + rng.normal(size=len(ids))
    assert measure(body, match, returns, ids).verdict == "supported"  # confounded
    adjusted = measure(body, match, detrend(returns, ids, blocks=20), ids)
    assert abs(adjusted.lift) < 0.05 * 10
    assert detrend(np.zeros(100), np.arange(100)).tolist() == [0.0] * 100
    assert detrend([], []).shape == (0,)
    assert detrend([1.0, 3.0], [0, 1]) == pytest.approx([-1.0, 1.0])  # too few episodes for more than one block


def test_a_mediocre_action_beats_the_mean_of_bad_ones_and_is_outdone() -> None:
    """Driving the wrong way costs less than a forbidden dropoff; that is no reason to prefer it."""
    rng = np.random.default_rng(5)
    rows, worth, names = 4000, np.array([2.0, 0.0, -10.0, -10.0]), ("onward", "back", "pickup", "dropoff")
    actions, ids = rng.integers(0, 4, rows), np.arange(rows) // 20
    returns, body = worth[actions] + rng.normal(size=rows), rng.random(rows) < 0.5
    found = [measure(body, actions == code, returns, ids, actions=actions, names=names) for code in range(4)]
    assert [one.verdict for one in found] == ["supported", "outdone", "refuted", "refuted"]
    assert found[1].rival == "onward" and found[1].rival_lift == pytest.approx(2.0, abs=0.3) and found[1].low > 0
    assert "outdone by onward (+2" in describe_evidence(found[1])
    assert measure(body, actions == 1, returns, ids).verdict == "supported"  # nobody asked about single actions
    assert repr(Evidence.from_dict(json.loads(json.dumps(found[1].to_dict())))) == repr(found[1])
    # "avoid" speaks of one action against all others, so it has no rival
    assert measure(body, actions == 2, returns, ids, actions=actions, avoid=True).verdict == "supported"


def test_equally_good_actions_do_not_outdo_each_other() -> None:
    rng = np.random.default_rng(6)
    outdone = 0
    for trial in range(100):
        actions, ids = rng.integers(0, 3, 600), np.arange(600) // 20
        returns = np.array([1.0, 1.0, -3.0])[actions] + rng.normal(size=600)
        outdone += (
            measure(np.arange(600) % 9 > 0, actions == 0, returns, ids, actions=actions, seed=trial).verdict == "outdone"
        )
    assert outdone <= 12  # nominal 5 of 100


def test_p_values_of_useless_rules_are_uniform() -> None:
    rng, p_values = np.random.default_rng(7), []
    ids = np.repeat(np.arange(40), 20)
    for trial in range(300):
        match, body = rng.random(800) < 0.5, rng.random(800) < 0.5
        returns = np.repeat(rng.normal(size=40), 20) + rng.normal(size=800)
        p_values.append(measure(body, match, returns, ids, seed=trial, resamples=200).p_value)
    assert np.mean(p_values) == pytest.approx(0.5, abs=0.06)
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.04)
