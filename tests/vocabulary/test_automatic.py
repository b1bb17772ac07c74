"""The automatic vocabulary: any space that can be named gets names, any other a sentence."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sb3_nser import vocabulary as voc
from sb3_nser.errors import ConfigurationError, UnsupportedError

TWO = spaces.Discrete(2)


def automatic(observation_space, action_space=TWO, env_id=None):
    return voc.vocabulary_for(observation_space, action_space, env_id)


def test_box_is_named_by_position():
    vocabulary = automatic(spaces.Box(np.array([0.0, -1.0]), np.array([2.0, np.inf]), dtype=np.float64))
    assert vocabulary.name == "generic" and [f.name for f in vocabulary.features] == ["obs_0", "obs_1"]
    assert (vocabulary["obs_0"].low, vocabulary["obs_0"].high) == (0.0, 2.0)
    assert (vocabulary["obs_1"].low, vocabulary["obs_1"].high) == (-1.0, None)
    assert vocabulary.actions.names == ("action_0", "action_1")
    values = vocabulary.evaluate(np.array([[1.0, 5.0], [2.0, 6.0], [0.0, 7.0]]))
    assert values["obs_1"].tolist() == [5.0, 6.0, 7.0] and values["obs_1"].dtype == th.float32


@pytest.mark.parametrize("limit", [np.inf, 3.4e38, 1e300])
def test_huge_limits_are_no_limits(limit):
    vocabulary = automatic(spaces.Box(-limit, limit, (3,), np.float64))
    assert all(feature.low is None and feature.high is None for feature in vocabulary.features)
    assert np.isfinite(vocabulary.evaluate(np.zeros((2, 3)))["obs_0"].numpy()).all()


@given(hnp.arrays(np.float64, (4, 3), elements=st.floats(-1e6, 1e6)))
@settings(max_examples=50, deadline=None)
def test_float64_and_float32_say_the_same(rows):
    vocabulary = automatic(spaces.Box(-np.inf, np.inf, (3,), np.float64))
    double, single = vocabulary.evaluate(rows), vocabulary.evaluate(rows.astype(np.float32))
    for name in double:
        th.testing.assert_close(double[name], single[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int8, np.uint8])
def test_any_number_type_and_shape(dtype):
    vocabulary = automatic(spaces.Box(0, 100, (2, 3), dtype))
    rows = np.arange(12).reshape(2, 2, 3).astype(dtype)
    assert len(vocabulary.features) == 6 and "[1, 2]" in vocabulary["obs_5"].meaning
    assert vocabulary.evaluate(rows)["obs_5"].tolist() == [5.0, 11.0]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_discrete_observations_in_both_shapes_of_the_buffer(shape):
    vocabulary = automatic(spaces.Discrete(16))
    assert vocabulary["state"].kind == "category" and vocabulary["state"].values[3] == "s3"
    assert vocabulary.evaluate(np.array([0, 3, 15, 1]).reshape(shape))["state"].tolist() == [0, 3, 15, 1]


def test_discrete_with_many_states_or_another_start():
    many = automatic(spaces.Discrete(500))["state"]
    assert many.kind == "number" and (many.low, many.high) == (0.0, 499.0)
    shifted = automatic(spaces.Discrete(3, start=-1))
    assert shifted["state"].values == ("s-1", "s0", "s1")
    assert shifted.evaluate(np.array([-1, 0, 1]))["state"].tolist() == [0, 1, 2]


def test_multi_discrete_and_multi_binary():
    parts = automatic(spaces.MultiDiscrete([3, 1000]))
    assert parts["part_0"].values == ("s0", "s1", "s2") and parts["part_1"].kind == "number"
    assert parts.evaluate(np.array([[2, 700]]))["part_1"].tolist() == [700.0]
    bits = automatic(spaces.MultiBinary(3))
    assert bits["bit_2"].kind == "boolean" and bits["bit_2"].values == ("no", "yes")
    assert bits.evaluate(np.array([[0, 0, 1]], np.int8))["bit_2"].tolist() == [1.0]


def test_a_dict_is_named_by_its_keys():
    space = spaces.Dict(
        {
            "achieved goal": spaces.Box(-1, 1, (2,)),
            "camera": spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "gear": spaces.Discrete(3),
            "lights": spaces.MultiBinary(2),
            "robot": spaces.Dict({"0": spaces.Box(0, 9, (1,)), "joints": spaces.Box(-1, 1, (2, 2))}),
            "words": spaces.Text(5),
        }
    )
    vocabulary = voc.automatic_vocabulary(space, TWO)
    assert [feature.name for feature in vocabulary.features] == [
        "achieved_goal.0", "achieved_goal.1", "gear", "lights.0", "lights.1", "robot.key_0",
        "robot.joints.0", "robot.joints.1", "robot.joints.2", "robot.joints.3",
    ]  # fmt: skip
    assert "camera (an image)" in vocabulary.task and "words (Text" in vocabulary.task
    assert vocabulary["robot.joints.2"].meaning == "entry [1, 0] of 'robot.joints'"
    rows = {
        "achieved goal": np.array([[0.1, 0.2], [0.3, 0.4]]),
        "gear": np.array([[2], [0]]),
        "lights": np.array([[0, 1], [1, 1]], np.int8),
        "robot": {"0": np.array([[5.0], [6.0]]), "joints": np.arange(8.0).reshape(2, 2, 2)},
    }
    values = vocabulary.evaluate(rows)
    assert values["achieved_goal.1"].tolist() == pytest.approx([0.2, 0.4])
    assert vocabulary["gear"].kind == "category" and values["gear"].tolist() == [2.0, 0.0]
    assert values["lights.0"].tolist() == [0.0, 1.0] and values["robot.key_0"].tolist() == [5.0, 6.0]
    assert values["robot.joints.2"].tolist() == [2.0, 6.0]


def test_keys_that_read_alike_get_different_names():
    space = spaces.Dict({key: spaces.Box(-1, 1, (1,)) for key in ("a b", "a-b", "ü", "x" * 99)})
    names = [feature.name for feature in automatic(space).features]
    assert len(set(names)) == 4 and names[:2] == ["a_b", "a_b_2"]


def test_empty_batches():
    for space in (spaces.Box(-1, 1, (3,)), spaces.Discrete(4), spaces.MultiBinary(2)):
        vocabulary = automatic(space)
        assert all(v.shape == (0,) for v in vocabulary.evaluate(np.zeros((0, *space.shape), space.dtype)).values())


def test_box_actions_are_in_environment_units():
    box = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    actions = automatic(spaces.Box(-1, 1, (1,)), box).actions
    assert actions.continuous and actions.names == ("action_0", "action_1")
    np.testing.assert_allclose(actions.from_buffer(np.array([[0.9, -1.0], [-1.0, 0.5]])), [[1.8, 0.0], [-2.0, 7.5]], atol=1e-6)


def test_unbounded_actions_are_refused():
    with pytest.raises(ConfigurationError, match="infinite limits"):
        automatic(spaces.Box(-1, 1, (1,)), spaces.Box(-np.inf, np.inf, (1,)))


@pytest.mark.parametrize("action_space", [spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2), spaces.Discrete(2, start=1)])
def test_other_actions_are_refused(action_space):
    with pytest.raises(UnsupportedError, match="action space"):
        automatic(spaces.Box(-1, 1, (1,)), action_space)


@pytest.mark.parametrize(
    "space, says",
    [
        (spaces.Box(0, 255, (84, 84, 3), np.uint8), "rules cannot name pixels"),
        (spaces.Box(0, 255, (3, 84, 84), np.uint8), "features of your own"),
        (spaces.Box(-1, 1, (65,)), "65 numbers"),
        (spaces.Dict({"camera": spaces.Box(0, 255, (84, 84, 3), np.uint8)}), r"nothing in this Dict.*camera \(an image\)"),
        (spaces.Dict({f"k{i}": spaces.Box(-1, 1, (40,)) for i in range(2)}), "80 numbers"),
        (spaces.Tuple([TWO, TWO]), "FlattenObservation"),
        (spaces.Text(5), "wrap the environment"),
    ],
)
def test_what_cannot_be_named_is_refused_with_a_way_out(space, says):
    with pytest.raises(UnsupportedError, match=says):
        automatic(space)
