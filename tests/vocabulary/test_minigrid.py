"""MiniGrid's vocabulary, checked on states set up by hand."""

import gymnasium as gym
import minigrid  # noqa: F401  (registers the environments)
import numpy as np
import pytest
from gymnasium import spaces
from minigrid.core.constants import COLOR_NAMES, COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall
from minigrid.wrappers import (
    ImgObsWrapper,
)

from sb3_nser import vocabulary as voc
from sb3_nser.vocabulary import partial_view as pv

from .views import DISCRETE, DOWN, FORMS, RIGHT, UP, door_key, observe, said, stand, vocabulary_of


@pytest.mark.parametrize("form", FORMS)
def test_doorkey_solved_by_hand(form):
    env = door_key(form)
    seen = stand(env, 1, 3, UP)
    assert seen["front_object"] == "empty" and seen["carrying"] == "nothing"
    assert seen["key_visible"] == "yes" and seen["key_direction"] == "ahead"
    assert seen["goal_visible"] == "no" and seen["goal_direction"] == "not_visible"

    act = {name: index for index, name in enumerate(vocabulary_of(env).actions.names)}
    vocabulary = vocabulary_of(env)

    def step(action):
        observation, reward, terminated, _, _ = env.step(act[action])
        return said(vocabulary, np.asarray(observation)), reward, terminated

    assert step("forward")[0]["front_object"] == "key"
    seen = step("pickup")[0]
    assert seen["carrying"] == "key" and seen["front_object"] == "empty"
    assert seen["key_visible"] == "no", "a carried key is not one to go to"
    assert step("drop")[0] == stand(env, 1, 2, UP)
    assert step("pickup")[0]["carrying"] == "key"

    seen = stand(env, 2, 3, RIGHT)
    assert (seen["door_visible"], seen["door_direction"], seen["door_state"]) == ("yes", "ahead", "locked")
    seen = step("forward")[0]
    assert seen["front_object"] == "locked_door" and seen["front_door_state"] == "locked"
    seen = step("toggle")[0]
    assert seen["front_object"] == "open_door" and seen["door_state"] == "open" and seen["carrying"] == "key"
    assert seen["front_door_state"] == "open"
    seen = step("toggle")[0]
    assert seen["front_object"] == "closed_door" and seen["door_state"] == seen["front_door_state"] == "closed"
    step("toggle")
    seen = step("forward")[0]
    assert seen["door_visible"] == "no" and seen["front_object"] == "empty", "the door one stands in is not in view"
    seen = step("forward")[0]
    assert seen["goal_visible"] == "yes" and seen["goal_direction"] == "right"

    assert stand(env, 6, 5, DOWN)["front_object"] == "goal" and stand(env, 6, 5, DOWN)["front_door_state"] == "none"
    assert stand(env, 6, 5, RIGHT)["front_object"] == "wall"
    stand(env, 6, 5, DOWN)
    _, reward, terminated = step("forward")
    assert terminated and reward > 0


def test_directions_and_distances_are_the_agents_own():
    env = ImgObsWrapper(gym.make("MiniGrid-Empty-16x16-v0"))
    env.reset(seed=0)
    env.unwrapped.grid.set(14, 14, None)
    env.unwrapped.grid.set(8, 8, Goal())
    for x, y, facing, direction, distance in [
        (8, 10, UP, "ahead", 2.0),
        (6, 10, UP, "right", 4.0),
        (10, 9, UP, "left", 3.0),
        (6, 10, RIGHT, "left", 4.0),
        (7, 8, UP, "right", 1.0),  # beside the agent
        (8, 14, UP, "ahead", 6.0),
        (11, 14, UP, "left", 9.0),  # the farthest cell in view
        (8, 9, DOWN, "not_visible", 14.0),  # behind
        (12, 14, UP, "not_visible", 14.0),  # outside the view
    ]:
        seen = stand(env, x, y, facing)
        assert (seen["goal_direction"], seen["goal_distance"]) == (direction, distance), (x, y, facing)


def test_the_nearest_of_several_counts():
    env = ImgObsWrapper(gym.make("MiniGrid-Playground-v0"))
    vocabulary = voc.minigrid_vocabulary(env.observation_space, DISCRETE)
    image = np.ones((7, 7, 3), np.uint8) * [1, 0, 0]
    image[1, 4] = image[3, 2] = [OBJECT_TO_IDX["ball"], 0, 0]
    seen = said(vocabulary, image.astype(np.uint8))
    assert seen["ball_direction"] == "left" and seen["ball_distance"] == 4.0, "two equally near: the left one"
    image[3, 4] = [OBJECT_TO_IDX["ball"], 0, 0]
    seen = said(vocabulary, image.astype(np.uint8))
    assert seen["ball_direction"] == "ahead" and seen["ball_distance"] == 2.0
    image[3, 5], image[0, 0] = [OBJECT_TO_IDX["door"], 0, 2], [OBJECT_TO_IDX["door"], 0, 0]
    assert said(vocabulary, image.astype(np.uint8))["door_state"] == "locked", "the nearer door's state"


@pytest.mark.parametrize("form", ["raw", "one-hot flat", "normalised"])
def test_every_object_in_front(form):
    things = {
        "empty": None,
        "wall": Wall(),
        "key": Key("red"),
        "locked_door": Door("red", is_locked=True),
        "closed_door": Door("blue"),
        "open_door": Door("grey", is_open=True),
        "goal": Goal(),
        "ball": Ball("purple"),
        "box": Box("green"),
        "lava": Lava(),
    }
    env = FORMS[form](gym.make("MiniGrid-Empty-16x16-v0"))
    env.reset(seed=0)
    vocabulary = voc.minigrid_vocabulary(env.observation_space, DISCRETE)  # no id: all features
    assert set(vocabulary["front_object"].values) == set(things)
    env.unwrapped.agent_pos, env.unwrapped.agent_dir = (5, 5), RIGHT
    for name, thing in things.items():
        env.unwrapped.grid.set(6, 5, thing)
        seen = said(vocabulary, observe(env))
        assert seen["front_object"] == name
        assert seen["front_color"] == ("none" if thing is None else thing.color)
    env.unwrapped.grid.set(6, 5, Floor("blue"))
    assert said(vocabulary, observe(env))["front_object"] == "empty", "the agent walks over a floor tile"


@pytest.mark.parametrize("form", ["raw", "one-hot", "normalised flat"])
def test_carrying_and_fitting_keys(form):
    env = FORMS[form](gym.make("MiniGrid-Playground-v0"))
    env.reset(seed=0)
    inside = env.unwrapped
    inside.agent_pos, inside.agent_dir = (3, 3), RIGHT
    inside.grid.set(4, 3, Door("red", is_locked=True))
    vocabulary = vocabulary_of(env)
    for thing, name, fits in [
        (None, "nothing", "no"),
        (Key("red"), "key", "yes"),
        (Key("blue"), "key", "no"),
        (Ball("red"), "ball", "no"),
        (Box("red"), "box", "no"),
    ]:
        inside.carrying = thing
        seen = said(vocabulary, observe(env))
        assert (seen["carrying"], seen["key_fits"]) == (name, fits)


def test_sides():
    env = ImgObsWrapper(gym.make("MiniGrid-LavaGapS7-v0"))
    env.reset(seed=0)
    grid = env.unwrapped.grid
    for x in range(1, 6):
        for y in range(1, 6):
            grid.set(x, y, None)
    assert stand(env, 1, 1, RIGHT)["left_free"] == "no" and stand(env, 1, 1, RIGHT)["right_free"] == "yes"
    grid.set(1, 2, Lava())
    assert stand(env, 1, 1, RIGHT)["right_free"] == "no", "lava is no place to go"
    for thing, free in ((Door("red"), "no"), (Door("red", is_open=True), "yes"), (Goal(), "yes"), (Floor(), "yes")):
        grid.set(1, 2, thing)
        assert stand(env, 1, 1, RIGHT)["right_free"] == free


def test_front_and_side_cells_are_never_unseen():
    env = ImgObsWrapper(gym.make("MiniGrid-MultiRoom-N4-S5-v1"))
    for seed in range(20):
        image, _ = env.reset(seed=seed)
        for _ in range(20):
            image, *_ = env.step(env.action_space.sample())
            assert image[3, 5, 0] and image[2, 6, 0] and image[4, 6, 0]


def test_codes_are_minigrids():
    for name, code in OBJECT_TO_IDX.items():
        assert getattr(pv, name.upper()) == code
    assert [COLOR_TO_IDX[color] for color in pv.COLORS] == list(range(6)) and set(pv.COLORS) == set(COLOR_NAMES)


def test_features_fit_the_family():
    def names(env_id):
        return [f.name for f in voc.minigrid_vocabulary(spaces.Box(0, 255, (7, 7, 3), np.uint8), DISCRETE, env_id).features]

    assert names("MiniGrid-DoorKey-5x5-v0")[:5] == ["front_object", "carrying", "key_visible", "door_visible", "goal_visible"]
    assert not [name for name in names("MiniGrid-Empty-8x8-v0") if "key" in name or "door" in name or name == "carrying"]
    assert "goal_distance" in names("MiniGrid-FourRooms-v0") and "front_color" in names("MiniGrid-RedBlueDoors-6x6-v0")
    assert "lava_visible" in names("MiniGrid-LavaGapS5-v0") and "goal_visible" not in names("BabyAI-GoToObj-v0")
    assert len(names("MyOwnGrid-v0")) == max(len(names(env_id)) for env_id in gym.registry if env_id.startswith("MiniGrid"))


def test_every_registered_id_has_a_vocabulary():
    space = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    ids = [env_id for env_id in gym.registry if env_id.startswith(("MiniGrid-", "BabyAI-"))]
    assert len(ids) > 100
    for env_id in ids:
        n = 3 if "Dynamic" in env_id else 7
        vocabulary = voc.vocabulary_for(space, spaces.Discrete(n), env_id)
        assert vocabulary.name == "minigrid" and len(vocabulary.features) <= 24, env_id


def test_dynamic_obstacles_have_three_actions():
    env = ImgObsWrapper(gym.make("MiniGrid-Dynamic-Obstacles-5x5-v0"))
    vocabulary = vocabulary_of(env)
    assert vocabulary.actions.names == ("turn_left", "turn_right", "forward")
    assert "carrying" not in vocabulary, "without the action pickup nothing is carried"
