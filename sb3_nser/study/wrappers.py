"""Wrappers that make a training environment harder than the task that is evaluated."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from sb3_nser.arguments import as_number


class RewardNoise(gym.RewardWrapper[Any, Any], gym.utils.RecordConstructorArgs):
    """
    Adds normal noise of mean 0 to each reward, drawn independently at each step.

    TD errors follow such noise, conditions on states and actions do not. The noise has a generator of its own, seeded by
    ``reset(seed=...)``, so that the environment's own chances stay what they are without it.

    :param env: any environment
    :param scale: standard deviation, at least 0, in units of the reward
    :raises ConfigurationError: if ``scale`` is no number of at least 0
    """

    def __init__(self, env: gym.Env[Any, Any], scale: float) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, scale=scale)
        super().__init__(env)
        self.scale = as_number("scale", scale, 0.0, 1e9)
        self._noise = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._noise = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def reward(self, reward: Any) -> float:
        """:return: the reward with noise"""
        return float(reward) + self.scale * float(self._noise.standard_normal())
