"""CartPole behind a gate: ``gated:Gated-v0`` stands still as long as a file exists, so a test decides when a run goes on."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Gated(CartPoleEnv):
    def __init__(self, gate: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._gate = gate

    def step(self, action: Any) -> Any:
        while os.path.exists(self._gate):
            time.sleep(0.05)
        return super().step(action)


gym.register("Gated-v0", Gated, max_episode_steps=500)
