"""CartPole that ends badly: ``fragile:Fragile-v0`` raises, or ends its whole process, after 120 steps."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Fragile(CartPoleEnv):
    def __init__(self, how: str = "raise", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._how, self._steps = how, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps > 120:
            if self._how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the pole is broken")
        return super().step(action)


gym.register("Fragile-v0", Fragile, max_episode_steps=500)
