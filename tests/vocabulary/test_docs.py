"""The page "Teach NSER your environment" does what it says."""

import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb3_nser import vocabulary as voc

PAGE = (Path(__file__).parents[2] / "docs" / "vocabularies.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_teaches_the_walker():
    exec(compile(CODE[0], "vocabularies.md", "exec"), {})
    space, actions = spaces.Box(-np.inf, np.inf, (24,), np.float32), spaces.Box(-1, 1, (4,), np.float32)
    vocabulary = voc.vocabulary_for(space, actions, "BipedalWalker-v3")
    assert vocabulary.name == "bipedal_walker"
    row = np.zeros(24, np.float32)
    row[[0, 2, 8, 13]] = 0.2, 0.5, 1.0, 0.0
    seen = {name: value.item() for name, value in vocabulary.evaluate(row[None]).items()}
    assert seen == pytest.approx({"hull_angle": 0.2, "forward_speed": 0.5, "first_leg_down": 1, "second_leg_down": 0})
    assert len(CODE[0].strip().splitlines()) <= 30


def test_the_walker_is_as_the_example_says():
    pytest.importorskip("Box2D")
    exec(compile(CODE[0], "vocabularies.md", "exec"), {})
    env = gym.make("BipedalWalker-v3")
    vocabulary = voc.vocabulary_of(env)
    observation, _ = env.reset(seed=0)
    hull = env.unwrapped.hull
    hull.angle, hull.linearVelocity = 0.3, (2.0, 0.0)  # counter-clockwise: backwards for one who walks to the right
    observation, *_ = env.step(np.zeros(4, np.float32))
    seen = {name: value.item() for name, value in vocabulary.evaluate(observation[None]).items()}
    assert seen["hull_angle"] > 0.1 and seen["forward_speed"] > 0
    legs = [env.unwrapped.legs[i].ground_contact for i in (1, 3)]
    assert [seen["first_leg_down"], seen["second_leg_down"]] == legs


def test_the_camera_example():
    scope = {}
    exec(compile(CODE[1], "vocabularies.md", "exec"), scope)
    images = np.zeros((2, 8, 8, 3), np.uint8)
    images[0, :, :4, 0] = 200  # red on the left
    images[1, :, 4:, 0] = 200  # red on the right
    vocabulary = scope["callback"]._vocabulary_given
    assert vocabulary.evaluate(images)["line_on_the_left"].tolist() == [1.0, 0.0]


def test_the_table_names_what_ships():
    shipped = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert set(voc.registered()) <= shipped
