"""FrozenLake, CliffWalking and Taxi: what a state's number says, against the maps and against the environments' own moves."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb3_nser import vocabulary as voc
from sb3_nser.errors import UnsupportedError

FOUR = spaces.Discrete(4)


def said(vocabulary, state):
    """The features of one state in words and numbers."""
    out = {}
    for name, value in vocabulary.evaluate(np.array([[state]])).items():
        values = vocabulary[name].values
        out[name] = values[int(value.item())] if values else value.item()
    return out


def lake(n=16, env_id="FrozenLake-v1", **kwargs):
    return voc.frozen_lake_vocabulary(spaces.Discrete(n), FOUR, env_id, **kwargs)


def test_frozen_lake_read_off_the_map():
    # S F F F
    # F H F H     state 6 is row 1, column 2: holes at both sides, frozen above and below
    # F F F H
    # H F F G
    seen = said(lake(), 6)
    assert seen == {
        "row": 1, "column": 2,
        "up_cell": "frozen", "right_cell": "hole", "down_cell": "frozen", "left_cell": "hole",
        "goal_down": 2, "goal_right": 1,
    }  # fmt: skip
    seen = said(lake(), 0)
    assert (seen["up_cell"], seen["left_cell"], seen["right_cell"]) == ("edge", "edge", "frozen")
    assert said(lake(), 14)["right_cell"] == "goal" and said(lake(), 14)["goal_down"] == 0
    assert said(lake(), 15)["goal_right"] == 0
    assert lake().actions.names == ("move_left", "move_down", "move_right", "move_up")


def test_frozen_lake_8x8_and_a_map_of_ones_own():
    # the fourth row of the 8x8 map is FFFFFHFF: its hole is row 3, column 5
    seen = said(lake(64, "FrozenLake8x8-v1"), 3 * 8 + 4)
    assert (seen["row"], seen["column"], seen["right_cell"], seen["up_cell"]) == (3, 4, "hole", "frozen")
    own = lake(6, desc=["GFS", "FHF"])  # the goal is not at the bottom right, and the map is not square
    seen = said(own, 4)
    assert (seen["row"], seen["column"], seen["goal_down"], seen["goal_right"]) == (1, 1, -1, -1)
    assert (
        said(own, 2)["left_cell"] == "frozen" and said(own, 1)["left_cell"] == "goal" and said(own, 1)["down_cell"] == "hole"
    )
    assert "from the start" in own.task and "2 rows and 3 columns" in own.task


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "FrozenLake8x8-v1"])
def test_frozen_lake_agrees_with_the_environments_moves(env_id):
    env = gym.make(env_id, is_slippery=False).unwrapped
    vocabulary = voc.vocabulary_for(env.observation_space, env.action_space, env_id)
    cells = {b"S": "frozen", b"F": "frozen", b"H": "hole", b"G": "goal"}
    for state in range(env.observation_space.n):
        if env.desc.ravel()[state] in (b"H", b"G"):
            continue
        seen = said(vocabulary, state)
        for action, name in enumerate(vocabulary.actions.names):
            env.reset()
            env.s = state
            after, reward, *_ = env.step(action)
            beside = seen[name.removeprefix("move_") + "_cell"]
            assert beside == ("edge" if after == state else cells[env.desc.ravel()[after]])
            assert (beside == "goal") == (reward == 1)


def test_frozen_lake_without_a_map_names_the_place_only():
    # 64 states under the id of the 4x4 map: some map of the user's, which nobody has shown
    seen = said(lake(64), 10)
    assert seen == {"row": 1, "column": 2}
    with pytest.raises(UnsupportedError, match="desc="):
        lake(12)
    for bad in (["SF", "F"], ["SX", "FG"], [], 7, ["", ""]):
        with pytest.raises(UnsupportedError, match="rows of equal length"):
            lake(4, desc=bad)
    with pytest.raises(UnsupportedError, match=r"Discrete\(9\)"):
        lake(16, desc=["SFF", "FHF", "FFG"])


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_both_shapes_of_the_buffer(shape):
    rows = np.array([0, 6, 15]).reshape(shape)
    assert lake().evaluate(rows)["row"].tolist() == [0, 1, 3]


def test_cliff_walking_read_off_the_map():
    vocabulary = voc.vocabulary_for(spaces.Discrete(48), FOUR, "CliffWalking-v1")
    assert said(vocabulary, 36) == {  # the start, bottom left
        "row": 3, "column": 0,
        "up_cell": "ground", "right_cell": "cliff", "down_cell": "edge", "left_cell": "edge",
        "goal_down": 0, "goal_right": 11,
    }  # fmt: skip
    assert said(vocabulary, 2 * 12 + 11)["down_cell"] == "goal" and said(vocabulary, 2 * 12 + 5)["down_cell"] == "cliff"
    assert "slippery" not in vocabulary.task


@pytest.mark.parametrize("env_id", [i for i in ("CliffWalking-v0", "CliffWalking-v1") if i in gym.registry])
def test_cliff_walking_agrees_with_the_environments_moves(env_id):
    env = gym.make(env_id).unwrapped
    vocabulary = voc.vocabulary_for(env.observation_space, env.action_space, env_id)
    for state in [*range(36), 36]:
        seen = said(vocabulary, state)
        for action, name in enumerate(vocabulary.actions.names):
            env.reset()
            env.s = state
            after, reward, terminated, *_ = env.step(action)
            expected = "cliff" if reward == -100 else "goal" if terminated else "edge" if after == state else "ground"
            assert seen[name.removeprefix("move_") + "_cell"] == expected


def taxi():
    return voc.vocabulary_for(spaces.Discrete(500), spaces.Discrete(6), "Taxi-v3")


def test_taxi_states_taken_apart_by_hand():
    # row 3, column 1, passenger at yellow (row 4, column 0), destination red: ((3 * 5 + 1) * 5 + 2) * 4 + 0
    seen = said(taxi(), 328)
    assert seen == {
        "passenger": "yellow", "destination": "red",
        "at_passenger": "no", "passenger_in_taxi": "no", "at_destination": "no",
        "target_south": 1, "target_east": -1,
        "south_free": "yes", "north_free": "yes", "east_free": "yes", "west_free": "no",  # a wall between columns 0 and 1
        "row": 3, "column": 1,
    }  # fmt: skip
    riding = said(taxi(), ((4 * 5 + 3) * 5 + 4) * 4 + 3)  # at blue with the passenger in the taxi, who wants to go there
    assert (riding["passenger"], riding["destination"]) == ("taxi", "blue")
    assert (riding["at_destination"], riding["passenger_in_taxi"], riding["at_passenger"]) == ("yes", "yes", "no")
    assert (riding["target_south"], riding["target_east"], riding["south_free"]) == (0, 0, "no")


def test_taxi_agrees_with_the_environment():
    env_id = next(i for i in ("Taxi-v4", "Taxi-v3") if i in gym.registry)
    env = gym.make(env_id).unwrapped
    vocabulary = taxi()
    act = {name: index for index, name in enumerate(vocabulary.actions.names)}
    yes = {"yes": True, "no": False}
    for state in range(500):
        row, column, passenger, destination = env.decode(state)
        seen = said(vocabulary, state)
        assert (seen["row"], seen["column"]) == (row, column)
        assert vocabulary["passenger"].code(seen["passenger"]) == passenger
        assert vocabulary["destination"].code(seen["destination"]) == destination
        for side in ("south", "north", "east", "west"):
            (_, after, _, _), *_ = env.P[state][act[f"move_{side}"]]
            assert yes[seen[f"{side}_free"]] == (after != state)
        (_, _, pickup, _), *_ = env.P[state][act["pickup"]]
        assert yes[seen["at_passenger"]] == (pickup != -10)
        (_, _, dropoff, done), *_ = env.P[state][act["dropoff"]]
        assert (seen["at_destination"] == seen["passenger_in_taxi"] == "yes") == (dropoff == 20 and done)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v3"])
def test_another_space_is_refused_with_a_way_out(env_id):
    with pytest.raises(UnsupportedError, match="vocabulary='generic'"):
        voc.vocabulary_for(spaces.Box(0, 1, (16,)), FOUR, env_id)
    with pytest.raises(UnsupportedError, match="actions"):
        n = {"FrozenLake-v1": 16, "CliffWalking-v1": 48, "Taxi-v3": 500}[env_id]
        voc.vocabulary_for(spaces.Discrete(n), spaces.Discrete(9), env_id)


def test_blackjack_in_every_form_that_can_be_stored():
    stick_or_hit = spaces.Discrete(2)
    flat = gym.wrappers.FlattenObservation(gym.make("Blackjack-v1"))
    one_hot = np.zeros(45, np.int64)
    one_hot[[17, 32 + 10, 43 + 1]] = 1  # 17 with a usable ace against a ten
    for vocabulary, row in [
        (voc.vocabulary_of(flat), one_hot),
        (voc.vocabulary_for(spaces.MultiBinary(45), stick_or_hit, "Blackjack-v1"), one_hot),
        (voc.vocabulary_for(spaces.MultiDiscrete([32, 11, 2]), stick_or_hit, "Blackjack-v1"), np.array([17, 10, 1])),
    ]:
        assert vocabulary.name == "blackjack" and vocabulary.actions.names == ("stick", "hit")
        seen = {name: value.item() for name, value in vocabulary.evaluate(row[None]).items()}
        assert seen == {"player_sum": 17, "dealer_card": 10, "usable_ace": 1}
    observation, _ = flat.reset(seed=4)
    player, dealer, ace = flat.unwrapped._get_obs()
    seen = {name: value.item() for name, value in voc.vocabulary_of(flat).evaluate(observation[None]).items()}
    assert seen == {"player_sum": player, "dealer_card": dealer, "usable_ace": int(ace)}


def test_blackjack_as_it_is_cannot_be_stored():
    with pytest.raises(UnsupportedError, match="FlattenObservation"):
        voc.vocabulary_of(gym.make("Blackjack-v1"))
    with pytest.raises(UnsupportedError, match="45 one-hot"):
        voc.vocabulary_for(spaces.Box(0, 1, (44,)), spaces.Discrete(2), "Blackjack-v1")
