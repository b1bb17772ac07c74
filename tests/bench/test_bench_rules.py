"""Right rules in, wrong ones out, on real transitions of every environment; and the benchmark that counts them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from sb3_nser.bench.__main__ import main
from sb3_nser.bench.rule_players import PLAYERS, action_values, make_env, play
from sb3_nser.bench.rule_problems import PROBLEMS
from sb3_nser.bench.rules import Verdict, confusion, run_problem, shares
from sb3_nser.logic import RuleBank
from sb3_nser.rules import Entry, parse_rule, problems
from sb3_nser.vocabulary import vocabulary_of

# one clear rule, and the same with the action swapped
CLEAR = {
    "CartPole-v1": ("IF pole_angular_velocity > 0.3 THEN push_right", "IF pole_angular_velocity > 0.3 THEN push_left"),
    "MountainCar-v0": ("IF velocity > 0.01 THEN push_right", "IF velocity > 0.01 THEN push_left"),
    "LunarLander-v3": ("IF lean_velocity > 0.5 THEN fire_right_engine", "IF lean_velocity > 0.5 THEN fire_left_engine"),
    "FrozenLake-v1": ("IF down_cell is hole THEN move_up", "IF down_cell is hole THEN move_down"),
    "Taxi-v4": ("IF at_passenger is yes THEN pickup", "IF at_passenger is yes THEN dropoff"),
    "MiniGrid-DoorKey-5x5-v0": (
        "IF front_object is key AND carrying is nothing THEN pickup",
        "IF front_object is key AND carrying is nothing THEN toggle",
    ),
}


@pytest.mark.parametrize("env_id", CLEAR)
def test_a_clear_rule_is_admitted_and_the_swapped_one_is_not(env_id: str) -> None:
    right, wrong = CLEAR[env_id]
    problem = dataclasses.replace(PROBLEMS[env_id], right=(right,), wrong=(wrong,))
    verdicts = {one.right: one for one in run_problem(problem, 20_000 if env_id == "FrozenLake-v1" else 10_000, seed=3)}
    assert verdicts[True].entry.status == "admitted" and not verdicts[True].entry.on_prior
    assert verdicts[False].entry.status != "admitted"
    evidence = verdicts[True].entry.evidence
    assert evidence is not None and evidence.low > 0.0


def test_problems_are_sound() -> None:
    """Every rule can be grounded, none stands on both sides, and there are at least six on each."""
    assert set(CLEAR) <= set(PROBLEMS) == set(PLAYERS)
    for problem in PROBLEMS.values():
        rules = [parse_rule(text) for text in (*problem.right, *problem.wrong)]
        assert len({rule.key for rule in rules}) == len(rules) and min(len(problem.right), len(problem.wrong)) >= 6
        env = make_env(problem.env_id)
        assert not [wrong for rule in rules for wrong in problems(rule, vocabulary_of(env))]
        env.close()


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4"])
def test_labels_agree_with_exact_values(env_id: str) -> None:
    """
    With the environment's own transition table the value of every action is known. A right rule's action then does better
    than the player's other ones in the states of the body; a wrong one's does worse than another single action, or the rest.
    """
    env = make_env(env_id)
    env.reset(seed=0)
    vocabulary, model, gamma = vocabulary_of(env), env.unwrapped.P, 0.99
    states, actions = len(model), len(model[0])
    chosen = np.array([PLAYERS[env_id](env, state) for state in range(states)])
    policy = np.full((states, actions), 0.65 / actions)  # half-way through the exploration
    policy[np.arange(states), chosen] += 0.35
    value, step = np.zeros(states), np.zeros((states, states))
    for _ in range(300):
        q = action_values(model, value, gamma)
        value = (policy * q).sum(1)
    for state in range(states):
        for action in range(actions):
            for chance, after, _, ended in model[state][action]:
                step[state, after] += policy[state, action] * chance * (not ended)
    visits = here = np.array(env.unwrapped.initial_state_distrib, np.float64)
    for _ in range(200):
        here = here @ step
        visits = visits + here
    features = vocabulary.evaluate(np.arange(states).reshape(-1, 1))
    advantage = q - value[:, None]
    for right, texts in ((True, PROBLEMS[env_id].right), (False, PROBLEMS[env_id].wrong)):
        for text in texts:
            rule = parse_rule(text)
            body = RuleBank([rule], vocabulary, {}).body(features).detach().numpy()[:, 0] > 0.5
            weight = (visits * body)[:, None] * policy
            means = (weight * advantage).sum(0) / weight.sum(0)
            mine = vocabulary.actions.names.index(rule.head.action)
            others = np.delete(weight * advantage, mine, 1).sum() / np.delete(weight, mine, 1).sum()
            lift = (means[mine] - others) * (-1 if rule.polarity == "avoid" else 1)
            outdone = rule.polarity == "prefer" and np.delete(means, mine).max() > means[mine]
            assert (lift > 0.0 and not outdone) == right, (text, lift, outdone)


def test_players_are_the_same_for_the_same_seed_and_get_better() -> None:
    def rewards(seed: int) -> np.ndarray:
        *_, (_, buffer, _) = play("CartPole-v1", 3_000, seed, 1_000)
        return buffer.dones.copy()

    first = rewards(1)
    assert (first == rewards(1)).all() and (first != rewards(2)).any()
    assert first[:1_000].sum() > 1.5 * first[2_000:].sum()  # episodes become longer


def test_the_confusion_table_counts_words_as_admissions() -> None:
    rule = parse_rule("IF x > 0 THEN go")
    entries = [
        (True, Entry(rule, "admitted")),
        (True, Entry(rule, "admitted", on_prior=True)),
        (True, Entry(rule, "pruned")),
        (False, Entry(rule, "waiting")),
        (False, Entry(rule, "admitted", on_prior=True)),
    ]
    counts = confusion(Verdict("E", 0, right, entry) for right, entry in entries)
    assert counts["right"] == {"admitted": 1, "on_prior": 1, "waiting": 0, "rejected": 1, "rules": 3}
    assert counts["wrong"] == {"admitted": 0, "on_prior": 1, "waiting": 1, "rejected": 0, "rules": 2}
    assert shares(counts) == pytest.approx((2 / 3, 1 / 2))


def test_command_writes_json_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rules.json"
    assert main(["rules", "--quick", "--details", "--json", str(file)]) == 0
    report, text = json.loads(file.read_text(encoding="utf-8")), capsys.readouterr().out
    assert report["command"] == ("python -m sb3_nser.bench rules --steps 5000 --seeds 1 --env CartPole-v1 --json rules.json")
    assert {one["limit"] for one in report["targets"]} == {0.8, 0.95} and all("met" in one for one in report["targets"])
    problem = PROBLEMS["CartPole-v1"]
    assert len(report["rules"]) == len(problem.right) + len(problem.wrong)
    assert report["confusion"]["all"]["right"]["rules"] == len(problem.right)
    assert "right admitted" in text and "lift" in text and "not measured" not in text


def test_an_unknown_environment_is_told_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["rules", "--env", "Pong"])
    assert stopped.value.code == 2 and "invalid choice: 'Pong'" in capsys.readouterr().err
