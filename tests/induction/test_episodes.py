"""What is counted for a prompt equals a count by hand; nothing is shown before there is anything to show."""

from __future__ import annotations

import numpy as np
import pytest

from sb3_nser.induction.episodes import Experience, conditions, contrast_lines, contrasts, feature_lines, short
from sb3_nser.vocabulary import ActionSet, Feature, Vocabulary

ANGLE = Feature("angle", "number", "tilt", lambda o, _: o[:, 0], unit="rad")
FRONT = Feature("front", "category", "what is in front", lambda o, _: o[:, 1], values=("nothing", "key"))
GRID = Vocabulary("grid", "Reach the goal.", (ANGLE, FRONT), ActionSet(("left", "right")))
ARM = Vocabulary("arm", "Lift.", (ANGLE,), ActionSet(("torque",), low=(-1.0,), high=(3.0,)))


def table(
    vocabulary: Vocabulary, angle: list[float], actions: list[float], returns: list[float], front: int = 0
) -> Experience:
    n = len(angle)
    columns = {"angle": np.array(angle, np.float32), "front": np.full(n, front, np.float32)}
    columns = {feature.name: columns[feature.name] for feature in vocabulary.features}
    taken = np.array(actions)[:, None] if vocabulary.actions.continuous else np.array(actions, np.int64)
    gains = np.array(returns, np.float64)
    return Experience(columns, taken, gains, gains, np.arange(n) // 10)


def test_contrasts_equal_a_count_by_hand() -> None:
    # angle below 0: left returns 4, right 1; above 0: right returns 3, left 1; 20 rows of each
    angle = [-1.0] * 40 + [1.0] * 40
    actions = ([0.0] * 20 + [1.0] * 20) * 2
    returns = [4.0] * 20 + [1.0] * 20 + [1.0] * 20 + [3.0] * 20
    groups = contrasts(table(GRID, angle, actions, returns), GRID)
    assert [group[0].feature for group in groups] == ["angle", "front"]
    assert [(c.condition, c.head, c.mean, c.count, c.otherwise) for c in groups[0]] == [
        ("angle < 0", "left", 4.0, 20, 1.0),
        ("angle > 0", "right", 3.0, 20, 1.0),
    ]
    spread = np.std(returns) * np.sqrt(1 / 20 + 1 / 20)
    assert groups[0][0].strength == pytest.approx(3 / spread)
    assert str(groups[0][0]) == "- angle < 0 -> left (mean return 4 in 20 cases, else 1)"
    # front is nothing throughout: left (4 + 1) / 2 in 40 rows, right (1 + 3) / 2; no row shows a key
    assert [(c.condition, c.head, c.mean, c.count, c.otherwise) for c in groups[1]] == [
        ("front is nothing", "left", 2.5, 40, 2.0)
    ]


def test_continuous_actions_are_counted_in_halves_around_the_middle_of_their_range() -> None:
    angle = [-1.0] * 40 + [1.0] * 40
    torque = ([0.5] * 20 + [2.0] * 20) * 2  # the middle of -1 to 3 is 1
    returns = [4.0] * 20 + [1.0] * 20 + [1.0] * 20 + [3.0] * 20
    groups = contrasts(table(ARM, angle, torque, returns), ARM)
    assert [(c.condition, c.head) for c in groups[0]] == [("angle < 0", "torque < 1"), ("angle > 0", "torque > 1")]


@pytest.mark.parametrize("rows", [0, 40])
def test_without_reward_nothing_is_counted(rows: int) -> None:
    experience = table(GRID, [0.1] * rows, [0.0, 1.0] * (rows // 2), [0.0] * rows)
    assert not experience.rewarded
    assert contrasts(experience, GRID) == []
    assert contrast_lines(experience, GRID) == []


def test_few_cases_are_not_shown() -> None:
    experience = table(GRID, [0.0] * 24, [0.0] * 12 + [1.0] * 12, [1.0] * 12 + [0.0] * 12)
    assert contrasts(experience, GRID) == []


def test_conditions_are_both_sides_of_each_quartile_or_every_value() -> None:
    groups = conditions(ANGLE, np.arange(101, dtype=np.float32))
    assert [list(group) for group in groups] == [[f"angle > {cut}", f"angle < {cut}"] for cut in (50, 25, 75)]
    assert groups[0]["angle > 50"].sum() == 50
    assert [list(group) for group in conditions(FRONT, np.zeros(3))] == [["front is nothing", "front is key"]]
    near = conditions(ANGLE, 1000 + np.linspace(0, 0.4, 5, dtype=np.float64))  # far from zero, close together
    assert [next(iter(group)) for group in near] == ["angle > 1000.2", "angle > 1000.1", "angle > 1000.3"]
    assert conditions(ANGLE, np.zeros(0)) == []
    assert conditions(ANGLE, np.full(9, np.nan)) == []
    assert len(conditions(ANGLE, np.zeros(9))) == 1  # quartiles that coincide are one cut


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.012345, "0.012"), (-0.00668, "-0.0067"), (14.68, "15"), (1234.4, "1234"), (0.0, "0"), (-99.6, "-100")],
)
def test_numbers_are_shown_short(value: float, text: str) -> None:
    assert short(value) == text


def test_best_and_worst_episode_are_told_apart() -> None:
    experience = table(GRID, [0.0] * 20, [0.0, 1.0] * 10, [0.0] * 10 + [1.0] * 10)
    lines = contrast_lines(experience, GRID, episodes=1)
    assert lines[0].startswith("best: return 10 in 10 steps, ... ")
    assert lines[1].startswith("worst: return 0 in 10 steps, ... ")


def test_feature_lines_show_values_units_and_meaning_of_the_chosen_ones() -> None:
    assert feature_lines(GRID) == ["- angle (rad): tilt", "- front (nothing, key): what is in front"]
    assert feature_lines(GRID, ["front"]) == ["- front (nothing, key): what is in front"]
    assert {feature_lines(GRID, ["front"], k)[0][9:21] for k in range(9)} == {"nothing, key", "key, nothing"}
