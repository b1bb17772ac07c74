"""LunarLander: units and signs, on observations worked out by hand and on the environment where box2d is installed."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb3_nser import vocabulary as voc
from sb3_nser.errors import UnsupportedError

SPACE = spaces.Box(-np.inf, np.inf, (8,), np.float32)
THROTTLES = spaces.Box(-1.0, 1.0, (2,), np.float32)


def features(vocabulary, observation):
    return {name: value.item() for name, value in vocabulary.evaluate(np.asarray(observation, np.float32)[None]).items()}


@pytest.mark.parametrize("env_id", ["LunarLander-v2", "LunarLander-v3"])
def test_units_by_hand(env_id):
    # half a screen (10 m) to the left, three quarters of 6.667 m up; 0.2 and 0.4 are 1 m/s right and 3 m/s down
    seen = features(voc.vocabulary_for(SPACE, spaces.Discrete(4), env_id), [-0.5, 0.75, 0.2, -0.4, 0.1, -0.4, 1, 0])
    assert seen == pytest.approx(
        {
            "x": -5.0, "height": 5.0, "x_velocity": 1.0, "vertical_velocity": -3.0, "lean": 0.1, "lean_velocity": -1.0,
            "left_leg_down": 0, "right_leg_down": 1,
        }
    )  # fmt: skip


def test_actions_of_both_forms():
    discrete = voc.vocabulary_for(SPACE, spaces.Discrete(4), "LunarLander-v3")
    assert discrete.actions.names == ("do_nothing", "fire_left_engine", "fire_main_engine", "fire_right_engine")
    for env_id in ("LunarLanderContinuous-v2", "LunarLander-v3"):  # v3 also with continuous=True
        throttles = voc.vocabulary_for(SPACE, THROTTLES, env_id)
        assert throttles.actions.names == ("main_engine", "side_engine") and throttles.actions.low == (-1.0, -1.0)
        assert "off below 0" in throttles.task
    with pytest.raises(UnsupportedError, match="4 discrete actions"):
        voc.vocabulary_for(SPACE, spaces.Discrete(3), "LunarLander-v3")
    with pytest.raises(UnsupportedError, match="shape"):
        voc.vocabulary_for(spaces.Box(-1, 1, (16,)), spaces.Discrete(4), "LunarLander-v3")


def after(env, action, steps=5):
    env.reset(seed=1)
    lander = env.unwrapped.lander
    lander.linearVelocity, lander.angularVelocity, lander.angle = (0.0, 0.0), 0.0, 0.0
    for _ in range(steps):
        observation, *_ = env.step(action)
    return observation, lander


@pytest.mark.parametrize("env_id", [i for i in ("LunarLander-v2", "LunarLander-v3") if i in gym.registry])
def test_numbers_and_engines_are_the_environments(env_id):
    pytest.importorskip("Box2D")
    env = gym.make(env_id)
    vocabulary = voc.vocabulary_for(env.observation_space, env.action_space, env_id)
    seen = {}
    for index, name in enumerate(vocabulary.actions.names):
        observation, lander = after(env, index)
        seen[name] = features(vocabulary, observation)
        assert seen[name]["x_velocity"] == pytest.approx(lander.linearVelocity.x, abs=1e-5)
        assert seen[name]["vertical_velocity"] == pytest.approx(lander.linearVelocity.y, abs=1e-5)
        assert seen[name]["lean"] == pytest.approx(lander.angle, abs=1e-6)
        assert seen[name]["lean_velocity"] == pytest.approx(lander.angularVelocity, abs=1e-5)
        assert seen[name]["x"] == pytest.approx(lander.position.x - 10.0, abs=1e-4)
    assert seen["fire_main_engine"]["vertical_velocity"] > 0 > seen["do_nothing"]["vertical_velocity"]
    left, right = seen["fire_left_engine"], seen["fire_right_engine"]
    assert left["x_velocity"] < 0 < right["x_velocity"] and left["lean"] > 0 > right["lean"]


def test_throttles_do_what_the_task_says():
    pytest.importorskip("Box2D")
    env_id = next(i for i in ("LunarLanderContinuous-v3", "LunarLanderContinuous-v2") if i in gym.registry)
    env = gym.make(env_id)
    vocabulary = voc.vocabulary_for(env.observation_space, env.action_space, env_id)
    seen = {}
    for main, side in [(-1, 0), (1, 0), (-1, -1), (-1, 1), (-1, 0.4)]:
        seen[main, side] = features(vocabulary, after(env, np.array([main, side], np.float32))[0])
    assert seen[1, 0]["vertical_velocity"] > 0 > seen[-1, 0]["vertical_velocity"]
    assert seen[-1, -1]["x_velocity"] < 0 < seen[-1, 1]["x_velocity"] and seen[-1, -1]["lean"] > 0 > seen[-1, 1]["lean"]
    assert seen[-1, 0.4] == seen[-1, 0]


@pytest.mark.parametrize("lean, first", [(0.25, "left_leg_down"), (-0.25, "right_leg_down")])
def test_the_leg_that_touches_first_is_on_the_side_the_craft_leans_to(lean, first):
    pytest.importorskip("Box2D")
    env = gym.make(next(i for i in ("LunarLander-v3", "LunarLander-v2") if i in gym.registry))
    vocabulary = voc.vocabulary_for(env.observation_space, env.action_space, "LunarLander-v3")
    env.reset(seed=1)
    craft, legs = env.unwrapped.lander, env.unwrapped.legs
    middle = (craft.position.x, craft.position.y)
    turn = np.array([[np.cos(lean), -np.sin(lean)], [np.sin(lean), np.cos(lean)]])
    for body in (*legs, craft):  # the whole craft, leaning, 2 m above the pad, at rest
        x, y = turn @ (np.array([body.position.x, body.position.y]) - middle)
        body.position = (10.0 + x, env.unwrapped.helipad_y + 2.0 + y)
        body.angle += lean
        body.linearVelocity, body.angularVelocity = (0.0, 0.0), 0.0
    for _ in range(60):
        seen = features(vocabulary, env.step(0)[0])
        if seen["left_leg_down"] or seen["right_leg_down"]:
            break
    assert seen[first] == 1.0 and seen["left_leg_down"] + seen["right_leg_down"] == 1.0
