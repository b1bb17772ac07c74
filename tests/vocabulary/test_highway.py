"""highway-env: gaps and speeds by hand on a drawn road, and against the vehicles themselves where highway-env is installed."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb3_nser import vocabulary as voc
from sb3_nser.errors import UnsupportedError

META = spaces.Discrete(5)


def road(*vehicles):
    """Rows of a Kinematics observation of highway-v0 (4 lanes): presence, x / 200, y / 16, vx / 80, vy / 80; 5 rows."""
    rows = np.zeros((5, 5), np.float32)
    for row, (x, y, vx, vy) in zip(rows, vehicles, strict=False):
        row[:] = 1, x / 200, y / 16, vx / 80, vy / 80
    return rows


def seen_in(vocabulary, observation):
    batch = {key: np.asarray(value)[None] for key, value in observation.items()} if isinstance(observation, dict) else None
    values = vocabulary.evaluate(np.asarray(observation)[None] if batch is None else batch)
    return {name: value.item() for name, value in values.items()}


def test_a_road_drawn_by_hand():
    vocabulary = voc.vocabulary_for(spaces.Box(-np.inf, np.inf, (5, 5), np.float32), META, "highway-v0")
    assert vocabulary.actions.names == ("lane_left", "idle", "lane_right", "faster", "slower")
    # the ego drives 25 m/s in lane 1; others relative to it: 30 m ahead and 5 m/s slower; 10 m behind in the lane to the left;
    # 60 m ahead, faster, two lanes to the right (which is nobody's neighbour)
    seen = seen_in(vocabulary, road((100, 4, 25, 0), (30, 0, -5, 0), (-10, -4, 2, 0), (60, 8, 3, 0)))
    assert seen == pytest.approx(
        {
            "speed": 25, "lane": 1,
            "front_gap": 30, "front_closing_speed": 5,
            "left_gap": 200, "left_closing_speed": 0, "right_gap": 200, "right_closing_speed": 0,
            "left_lane_free": 0, "right_lane_free": 1,
        }, abs=1e-4,
    )  # fmt: skip
    alone = seen_in(vocabulary, road((100, 12, 20, 0)))
    assert (alone["lane"], alone["front_gap"], alone["left_lane_free"], alone["right_lane_free"]) == (3, 200, 1, 0)


@pytest.mark.parametrize("env_id", ["highway-v0", "highway-fast-v0", "merge-v0", "exit-v0"])
def test_gaps_are_those_between_the_vehicles(env_id):
    highway_env = pytest.importorskip("highway_env")
    gym.register_envs(highway_env)
    env = gym.make(env_id)
    vocabulary = voc.vocabulary_of(env)
    seen_one = 0
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        for action in (1, 2, 2, 2, 3, 0):
            ego = env.unwrapped.vehicle
            seen = seen_in(vocabulary, observation)
            assert seen["speed"] == pytest.approx(np.linalg.norm(ego.velocity), abs=1e-3)
            assert seen["lane"] == round(ego.position[1] / 4)
            gaps = [
                (other.position[0] - ego.position[0], other.velocity[0])
                for other in env.unwrapped.road.vehicles
                if other is not ego
                and abs(other.position[1] - ego.position[1]) < 1.9
                and 0 < other.position[0] - ego.position[0] < 190
            ]
            if gaps and seen["front_gap"] < 190:
                gap, velocity = min(gaps)
                assert seen["front_gap"] == pytest.approx(gap, abs=1e-2)
                assert seen["front_closing_speed"] == pytest.approx(ego.velocity[0] - velocity, abs=1e-2)
                seen_one += 1
            observation, *_ = env.step(action)
    assert seen_one


@pytest.mark.parametrize("env_id", ["roundabout-v0", "intersection-v0", "intersection-v1"])
def test_the_nearest_vehicle_at_a_crossing(env_id):
    highway_env = pytest.importorskip("highway_env")
    gym.register_envs(highway_env)
    env = gym.make(env_id)
    vocabulary = voc.vocabulary_of(env)
    observation, _ = env.reset(seed=1)
    ego = env.unwrapped.vehicle
    seen = seen_in(vocabulary, observation)
    others = [o for o in env.unwrapped.road.close_objects_to(ego, 200, count=4, see_behind=False)]
    nearest = min(np.linalg.norm(other.position - ego.position) for other in others)
    assert seen["nearest_distance"] == pytest.approx(nearest, abs=1e-2)
    assert (seen["x"], seen["y"]) == pytest.approx(tuple(np.clip(ego.position, -100, 100)), abs=1e-3)
    if env_id == "intersection-v0":
        assert vocabulary.actions.names == ("slower", "idle", "faster")
    if env_id == "intersection-v1":
        assert vocabulary.actions.names == ("acceleration", "steering")
        assert vocabulary.actions.high == pytest.approx((5.0, np.pi / 3))


def test_parking_by_hand():
    box = spaces.Box(-np.inf, np.inf, (6,), np.float64)
    space = spaces.Dict({"observation": box, "achieved_goal": box, "desired_goal": box})
    vocabulary = voc.vocabulary_for(space, spaces.Box(-1, 1, (2,)), "parking-v0")
    # at (10, 0) facing down (y grows downwards), 2 m/s; the space at (4, 8) faces left: 8 m ahead, 6 m to the right
    own = np.array([10 / 100, 0, 0, 2 / 5, 0, 1])
    goal = np.array([4 / 100, 8 / 100, 0, 0, -1, 0])
    seen = seen_in(vocabulary, {"observation": own, "achieved_goal": own, "desired_goal": goal})
    assert seen == pytest.approx(
        {"goal_distance": 10, "goal_ahead": 8, "goal_right": 6, "goal_turn": np.pi / 2, "speed": 2}, abs=1e-5
    )
    assert vocabulary.actions.units == ("m/s²", "rad") and vocabulary.actions.low == pytest.approx((-5, -np.pi / 4))


def test_positive_steering_turns_to_the_right_where_the_goal_is_right():
    highway_env = pytest.importorskip("highway_env")
    gym.register_envs(highway_env)
    env = gym.make("parking-v0")
    vocabulary = voc.vocabulary_of(env)
    observation, _ = env.reset(seed=0)
    before = seen_in(vocabulary, observation)
    for _ in range(3):
        observation, *_ = env.step(np.array([0.5, 1.0], np.float32))
    after = seen_in(vocabulary, observation)
    turned = (before["goal_turn"] - after["goal_turn"] + np.pi) % (2 * np.pi) - np.pi
    assert turned > 0.05 and after["speed"] > 0, "turning right takes off the turn to the right that is still to do"


def test_other_observations_are_refused():
    grid = spaces.Box(-1, 1, (2, 12, 12), np.float32)
    with pytest.raises(UnsupportedError, match="Kinematics"):
        voc.vocabulary_for(grid, META, "highway-v0")
    with pytest.raises(UnsupportedError, match="needs the environment's config"):
        voc.vocabulary_for(spaces.Box(-1, 1, (5, 5)), META, "merge-v0")
    with pytest.raises(UnsupportedError, match="achieved_goal"):
        voc.vocabulary_for(spaces.Box(-1, 1, (6,)), spaces.Box(-1, 1, (2,)), "parking-v0")
