"""Rules that speak of what a wrapper or a number hides, in real training runs."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sb3_nser import NSERHerReplayBuffer, NSERReplayBuffer, NSERWarning, RuleInductionCallback
from sb3_nser.rules import parse_rule
from scripted import Scripted, dqn, reply, threshold_rule


def trained(model, *answers, steps=600, **settings):
    callback = RuleInductionCallback(inducer=Scripted(*answers), every=steps // 2, blocking=True, **settings)
    model.learn(steps, callback=callback)
    return callback


def test_frozen_lake_rules_name_the_cells():
    env = make_vec_env("FrozenLake-v1", 2, env_kwargs={"desc": ["SFF", "HFF", "FFG"], "is_slippery": False})
    rule = {"facts": ["down_cell is hole"], "action": "move_down", "mode": "avoid", "confidence": 0.7, "why": "falls"}
    callback = trained(dqn(env), reply(rule, threshold_rule("goal_down", ">", 0.5, "move_down")))
    assert callback.vocabulary.name == "frozen_lake"
    prompt = str(callback.inducer.requests[0].messages)
    assert "down_cell" in prompt and "right_cell" in prompt, "the first two features of the vocabulary"
    assert "3 rows and 3 columns" in prompt
    assert "IF goal_down > 0.5 THEN move_down" in {str(entry.rule) for entry in callback.book.entries}


def test_stacked_and_normalised_observations_are_judged_in_the_units_of_the_environment():
    env = VecNormalize(VecFrameStack(DummyVecEnv([lambda: gym.make("CartPole-v1")]), 3))
    model = dqn(env)
    callback = trained(model, reply(threshold_rule("pole_angle", ">", 0.0, "push_right")), steps=1_000)
    assert callback.vocabulary.name == "cartpole"
    buffer = model.replay_buffer
    newest = buffer.observations[: buffer.size(), 0, -4:]
    seen = callback.vocabulary.evaluate(buffer.observations[: buffer.size(), 0])
    np.testing.assert_allclose(seen["pole_angle"].numpy(), newest[:, 2], atol=1e-6)
    assert np.abs(newest[:, 2]).max() < 0.5, "radians, not standard deviations"


def test_one_warning_where_names_would_be_wrong():
    model = dqn(wrappers.NormalizeObservation(gym.make("CartPole-v1")))
    with pytest.warns(NSERWarning, match="NormalizeObservation") as caught:
        callback = trained(model, reply(threshold_rule("obs_2", ">", 0.0, "action_1")))
    assert callback.vocabulary.name == "generic" and len([w for w in caught if w.category is NSERWarning]) == 1
    assert __file__ == caught[0].filename, "it points at the user's own line"


@pytest.mark.parametrize("her", [False, True])
def test_rules_on_dict_observations(her):
    env = BitFlippingEnv(n_bits=4, continuous=her)
    kind = SAC if her else DQN
    kwargs = {"n_sampled_goal": 2} if her else {}
    model = kind(
        "MultiInputPolicy",
        env,
        replay_buffer_class=NSERHerReplayBuffer if her else NSERReplayBuffer,
        replay_buffer_kwargs=kwargs,
        learning_starts=100,
        buffer_size=2_000,
        policy_kwargs={"net_arch": [16]},
        device="cpu",
        seed=0,
    )
    rule = {"facts": ["observation.0 is no"], "action": "action_0", "confidence": 0.7, "why": "flip"}
    if her:
        rule |= {"action_op": ">", "action_value": 0.0}
    callback = trained(model, reply(rule), steps=400)
    assert "desired_goal.3" in callback.vocabulary and len(callback.book) == 1
    prompt = str(callback.inducer.requests[0].messages)
    assert "achieved_goal.0" in prompt and "achieved_goal.1" in prompt
    scored = model.replay_buffer
    scored.sample(16)
    assert np.isfinite(scored.scores).all()


def test_dotted_names_can_be_written_in_a_rule():
    assert str(parse_rule("IF observation.0 is no THEN action_0")) == "IF observation.0 is no THEN action_0"
