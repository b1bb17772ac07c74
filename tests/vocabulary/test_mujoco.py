"""MuJoCo's robots and arms: every name against the simulator's own joints, and by hand where mujoco is not installed."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb3_nser import vocabulary as voc
from sb3_nser.errors import UnsupportedError

ROBOTS = ["Hopper", "HalfCheetah", "Walker2d", "Swimmer", "Ant", "Humanoid", "HumanoidStandup"]


def made(name, **kwargs):
    pytest.importorskip("mujoco")
    env = gym.make(f"{name}-v5", **kwargs)
    env.reset(seed=0)
    return env, voc.vocabulary_of(env)


def seen_in(vocabulary, env):
    observation = env.unwrapped._get_obs()
    return {name: value.item() for name, value in vocabulary.evaluate(observation[None]).items()}


def shaken(env):
    """The environment in a state in which no two numbers are alike."""
    base = env.unwrapped
    rng = np.random.default_rng(0)
    positions = base.init_qpos + rng.uniform(-0.2, 0.2, base.init_qpos.shape)
    base.set_state(positions, rng.uniform(-1.0, 1.0, base.init_qvel.shape))
    return base


# the simulator's names of the joints, in our words
TRANSLATED = {
    "Hopper": {"thigh_joint": "thigh", "leg_joint": "leg", "foot_joint": "foot"},
    "HalfCheetah": {
        "bthigh": "back_thigh", "bshin": "back_shin", "bfoot": "back_foot",
        "fthigh": "front_thigh", "fshin": "front_shin", "ffoot": "front_foot",
    },
    "Walker2d": {
        "thigh_joint": "right_thigh", "leg_joint": "right_leg", "foot_joint": "right_foot",
        "thigh_left_joint": "left_thigh", "leg_left_joint": "left_leg", "foot_left_joint": "left_foot",
    },
    "Swimmer": {"motor1_rot": "first_joint", "motor2_rot": "second_joint"},
    "Ant": {
        f"{part}_{i}": f"{leg}_{part}"
        for i, leg in enumerate(("front_left", "back_left", "back_right", "front_right"), 1)
        for part in ("hip", "ankle")
    },
}  # fmt: skip


@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("name", ROBOTS)
def test_joints_and_motors_are_the_simulators(name, positions):
    env, vocabulary = made(name, exclude_current_positions_from_observation=not positions)
    base = shaken(env)
    seen = seen_in(vocabulary, env)
    model, data = base.model, base.data
    hinges = [model.joint(i).name for i in range(model.njnt) if model.jnt_type[i] == 3 and "root" not in model.joint(i).name]
    words = TRANSLATED.get(name, {hinge: hinge for hinge in hinges})
    for hinge in hinges:
        if hinge in words:
            assert seen[f"{words[hinge]}_angle"] == pytest.approx(data.joint(hinge).qpos.item(), abs=1e-5)
            assert seen[f"{words[hinge]}_velocity"] == pytest.approx(data.joint(hinge).qvel.item(), abs=1e-5)
    motors = [f"{words[model.joint(model.actuator_trnid[i, 0]).name]}_torque" for i in range(model.nu)]
    assert list(vocabulary.actions.names) == motors
    assert vocabulary.actions.high == tuple(env.action_space.high.tolist())


@pytest.mark.parametrize("name", ["Hopper", "HalfCheetah", "Walker2d"])
def test_posture_in_the_plane(name):
    env, vocabulary = made(name)
    base = shaken(env)
    seen, torso = seen_in(vocabulary, env), base.data.body("torso")
    assert seen["lean"] == pytest.approx(math.atan2(torso.xmat[2], torso.xmat[8]), abs=1e-5), "its top moves forward"
    drop = 0.7 if name == "HalfCheetah" else 0.0
    assert seen["height"] == pytest.approx(torso.xpos[2] - drop, abs=1e-5)
    assert seen["forward_velocity"] == pytest.approx(base.data.joint("rootx").qvel.item(), abs=1e-5)
    assert seen["vertical_velocity"] == pytest.approx(base.data.joint("rootz").qvel.item(), abs=1e-5)


@pytest.mark.parametrize("name", ["Ant", "Humanoid"])
def test_posture_in_space(name):
    env, vocabulary = made(name)
    base = shaken(env)
    seen, torso = seen_in(vocabulary, env), base.data.body("torso")
    # columns of the torso's matrix: its own forward, left and up axes in the world
    forward, _left, up = torso.xmat.reshape(3, 3).T
    norm = np.linalg.norm(base.data.qpos[3:7])
    base.set_state(np.concatenate([base.data.qpos[:3], base.data.qpos[3:7] / norm, base.data.qpos[7:]]), base.data.qvel)
    seen = seen_in(vocabulary, env)
    assert seen["height"] == pytest.approx(torso.xpos[2], abs=1e-5)
    assert seen["uprightness"] == pytest.approx(up[2], abs=1e-5)
    assert seen["heading"] == pytest.approx(math.atan2(forward[1], forward[0]), abs=1e-5)
    assert seen["pitch"] == pytest.approx(-math.asin(forward[2]), abs=1e-5)
    assert seen["forward_velocity"] == pytest.approx(base.data.qvel[0], abs=1e-5)
    assert seen["turn_velocity"] == pytest.approx(base.data.qvel[5], abs=1e-5)


@pytest.mark.parametrize("axis, feature", [(0, "roll"), (1, "pitch"), (2, "heading")])
def test_turns_by_hand(axis, feature):
    """No simulator needed: a turn by 0.4 about one axis as a quaternion."""
    box = spaces.Box(-np.inf, np.inf, (27,), np.float64)
    vocabulary = voc.vocabulary_for(box, spaces.Box(-1, 1, (8,)), "Ant-v5")
    row = np.zeros(27)
    row[0], row[1], row[2 + axis], row[13] = 0.75, math.cos(0.2), math.sin(0.2), 1.5
    seen = {name: value.item() for name, value in vocabulary.evaluate(row[None]).items()}
    assert seen[feature] == pytest.approx(0.4, abs=1e-6)
    assert seen["uprightness"] == pytest.approx(1.0 if feature == "heading" else math.cos(0.4), abs=1e-6)
    assert seen["height"] == 0.75 and seen["forward_velocity"] == 1.5


def test_ant_legs_are_where_their_names_say():
    env, vocabulary = made("Ant")
    base = env.unwrapped
    base.set_state(base.init_qpos, base.init_qvel)
    for hip, (forward, left) in {
        "hip_1": (1, 1), "hip_2": (-1, 1), "hip_3": (-1, -1), "hip_4": (1, -1),
    }.items():  # fmt: skip
        x, y = base.data.joint(hip).xanchor[:2] - base.data.body("torso").xpos[:2]
        assert (np.sign(x), np.sign(y)) == (forward, left)
    assert vocabulary.actions.names[0] == "front_right_hip_torque"


def test_inverted_pendulum():
    env, vocabulary = made("InvertedPendulum")
    env.unwrapped.set_state(np.array([0.1, 0.15]), np.array([0.5, -0.7]))
    assert seen_in(vocabulary, env) == pytest.approx(
        {"pole_angle": 0.15, "pole_angular_velocity": -0.7, "cart_position": 0.1, "cart_velocity": 0.5}
    )
    assert env.unwrapped.data.body("pole").xmat[2] > 0, "a positive lean is to the right"
    env.unwrapped.set_state(np.zeros(2), np.zeros(2))
    env.step(np.array([3.0]))
    assert seen_in(vocabulary, env)["cart_velocity"] > 0


def test_inverted_double_pendulum():
    env, vocabulary = made("InvertedDoublePendulum")
    env.unwrapped.set_state(np.array([0.1, 0.3, -0.5]), np.array([0.5, -0.7, 0.9]))
    seen = seen_in(vocabulary, env)
    assert seen["tip_height"] == pytest.approx(env.unwrapped.data.site_xpos[0][2], abs=1e-5)
    assert (seen["first_angle"], seen["second_angle"]) == pytest.approx((0.3, -0.5), abs=1e-6)
    assert (seen["cart_velocity"], seen["first_angular_velocity"], seen["second_angular_velocity"]) == pytest.approx(
        (0.5, -0.7, 0.9), abs=1e-6
    )


def test_reacher():
    env, vocabulary = made("Reacher")
    # first link along y (0.1 m), second turned back by a right angle: the tip is at (0.11, 0.1)
    env.unwrapped.set_state(np.array([math.pi / 2, -math.pi / 2, -0.1, 0.1]), np.array([0.5, -0.7, 0.0, 0.0]))
    seen = seen_in(vocabulary, env)
    assert (seen["shoulder_angle"], seen["elbow_angle"]) == pytest.approx((math.pi / 2, -math.pi / 2), abs=1e-6)
    assert (seen["shoulder_velocity"], seen["elbow_velocity"]) == pytest.approx((0.5, -0.7), abs=1e-6)
    assert (seen["target_x"], seen["target_y"]) == pytest.approx((-0.1, 0.1), abs=1e-6)
    assert seen["target_angle"] == pytest.approx(math.pi / 4, abs=1e-5), "the target is at 135 degrees, the link at 90"
    tip, target = env.unwrapped.get_body_com("fingertip"), env.unwrapped.get_body_com("target")
    assert seen["target_distance"] == pytest.approx(np.linalg.norm((tip - target)[:2]), abs=1e-6)
    assert seen["tip_right_of_target"] == pytest.approx(tip[0] + 0.1, abs=1e-6) and seen["tip_right_of_target"] > 0.15


def test_pusher():
    env, vocabulary = made("Pusher")
    base = shaken(env)
    seen = seen_in(vocabulary, env)
    tip, thing, goal = (base.get_body_com(name) for name in ("tips_arm", "object", "goal"))
    assert seen["object_goal_distance"] == pytest.approx(np.linalg.norm(thing - goal), abs=1e-5)
    assert seen["tip_object_distance"] == pytest.approx(np.linalg.norm(tip - thing), abs=1e-5)
    assert seen["object_right_of_goal"] == pytest.approx(thing[0] - goal[0], abs=1e-5)
    assert seen["tip_beyond_object"] == pytest.approx(tip[1] - thing[1], abs=1e-5)
    joints = [name.removesuffix("_torque") for name in vocabulary.actions.names]
    for i, joint in enumerate(joints):
        assert base.model.joint(i).name == f"r_{joint}_joint"
        assert seen[f"{joint}_angle"] == pytest.approx(base.data.qpos[i], abs=1e-5)
        assert seen[f"{joint}_velocity"] == pytest.approx(base.data.qvel[i], abs=1e-5)


@pytest.mark.parametrize("name, size", [("Hopper", 13), ("Ant", 30), ("Reacher", 12), ("Pusher", 20), ("InvertedPendulum", 5)])
def test_other_sizes_are_refused(name, size):
    box = spaces.Box(-np.inf, np.inf, (size,), np.float64)
    with pytest.raises(UnsupportedError, match=f"{name} vocabulary reads"):
        voc.vocabulary_for(box, spaces.Box(-1, 1, (2,)), f"{name}-v5")
    with pytest.raises(UnsupportedError, match="needs the environment's id"):
        voc.vocabulary_for(box, spaces.Box(-1, 1, (2,)), None, "mujoco_robot")


@pytest.mark.parametrize(
    "name, size, motors",
    [("Hopper", 11, 3), ("Walker2d", 17, 6), ("Ant", 27, 8), ("Ant", 105, 8), ("Ant", 111, 8), ("Humanoid", 348, 17),
     ("Humanoid", 376, 17), ("Humanoid", 350, 17), ("Reacher", 11, 2), ("InvertedDoublePendulum", 11, 1)],
)  # fmt: skip
def test_sizes_of_all_versions(name, size, motors):
    box = spaces.Box(-np.inf, np.inf, (size,), np.float64)
    assert len(voc.vocabulary_for(box, spaces.Box(-1, 1, (motors,)), f"{name}-v4").features) >= 7
