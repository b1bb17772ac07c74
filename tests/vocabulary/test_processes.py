"""Environments in other processes: only what can safely be asked of them is asked."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor, VecNormalize

from sb3_nser import vocabulary as voc
from sb3_nser.errors import NSERWarning

from .test_wrappers import Bonus, Halved, cartpole, pendulum


def test_a_map_is_read_across_processes():
    venv = SubprocVecEnv([lambda: gym.make("FrozenLake-v1", map_name="8x8")] * 2, start_method="fork")
    try:
        assert "right_cell" in voc.vocabulary_of(VecMonitor(venv))
        assert venv.reset().shape == (2,), "the workers are alive"
    finally:
        venv.close()


def test_unknown_wrappers_in_other_processes_are_doubted_aloud():
    venv = SubprocVecEnv([lambda: Halved(cartpole())], start_method="fork")
    try:
        with pytest.warns(NSERWarning, match=r"Halved runs in another process.*vocabulary='cartpole'.*'generic'"):
            assert voc.vocabulary_of(venv).name == "cartpole"
        assert voc.vocabulary_of(venv, "cartpole").name == "cartpole", "said aloud, no doubt is left"
    finally:
        venv.close()
    venv = SubprocVecEnv([lambda: Bonus(cartpole())], start_method="fork")
    try:
        assert voc.vocabulary_of(venv).name == "cartpole"
    finally:
        venv.close()


def test_other_processes_show_their_names_only():
    venv = SubprocVecEnv([lambda: wrappers.NormalizeObservation(cartpole())], start_method="fork")
    try:
        with pytest.warns(NSERWarning, match="NormalizeObservation"):
            assert voc.vocabulary_of(venv).name == "generic"
    finally:
        venv.close()
    venv = make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
    try:
        assert voc.vocabulary_of(VecNormalize(venv)).name == "cartpole"
    finally:
        venv.close()
    venv = SubprocVecEnv([lambda: wrappers.RescaleAction(pendulum(), np.float32(-1), np.float32(1))], start_method="fork")
    try:
        with pytest.warns(NSERWarning, match="RescaleAction runs in another process"):
            actions = voc.vocabulary_of(venv).actions
        assert actions.names == ("action_0",) and actions.high == (1.0,) and actions.units == ()
    finally:
        venv.close()
