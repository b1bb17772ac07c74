"""Greedy evaluation beside training, and what one wants to know of a run to understand its curve."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from sb3_nser.callbacks import RuleInductionCallback
from sb3_nser.replay import NSERReplayBuffer
from sb3_nser.study.cells import Cell
from sb3_nser.study.environments import make_env

SIDE_BY_SIDE = 32
"""Evaluation episodes that are played at the same time."""
FIRST_ACTIONS = 20
"""Exploratory actions that are written down, to see that variants began alike."""


class Evaluator(BaseCallback):
    """
    Plays greedy episodes at step 0, every so many steps and at the end, in environments of its own. It draws no random
    numbers of the training run.

    :param cell: the run
    :param rules: the run's rule callback, None without rules
    :param progress: called with the environment steps done so far, a few times a second at most
    """

    def __init__(self, cell: Cell, rules: RuleInductionCallback | None, progress: Callable[[int], None]) -> None:
        super().__init__()
        self._cell, self._rules, self._progress = cell, rules, progress
        self._next = cell.evaluation.every
        self._next_progress = 0.0
        self._envs = [make_env(cell.env) for _ in range(min(cell.evaluation.episodes, SIDE_BY_SIDE))]
        self.rows: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.first_actions: list[Any] = []
        self._started = 0.0

    def _on_training_start(self) -> None:
        self._started = time.perf_counter()
        self._evaluate(0)

    def _on_step(self) -> bool:
        if len(self.first_actions) < FIRST_ACTIONS:
            self.first_actions.append(np.asarray(self.locals["actions"]).tolist())
        if self.num_timesteps >= self._next and self._next < self._cell.steps:
            self._evaluate(self._next)
            self._next += self._cell.evaluation.every
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + 0.5
            self._progress(min(self.num_timesteps, self._cell.steps))
        return True

    def _on_training_end(self) -> None:
        self._evaluate(self._cell.steps)
        for env in self._envs:
            env.close()

    def _evaluate(self, step: int) -> None:
        started = time.perf_counter()
        evaluation = self._cell.evaluation
        first = evaluation.seed + 1_000 * self._cell.seed
        seeds = [first + k for k in range(evaluation.episodes)]
        played: list[dict[str, float]] = []
        for at in range(0, len(seeds), len(self._envs)):
            played += self._play(seeds[at : at + len(self._envs)])
        success = [episode["success"] for episode in played if "success" in episode]
        row = {
            "step": step,
            "score": float(np.mean(success if self._cell.env["success"] is not None else [e["return"] for e in played])),
            "return": float(np.mean([e["return"] for e in played])),
            "success": float(np.mean(success)) if success else None,
            "length": float(np.mean([e["length"] for e in played])),
            "discounted_return": float(np.mean([e["discounted"] for e in played])),
            "value": float(np.mean([e["value"] for e in played])),
            "episodes": len(played),
            "updates": int(getattr(self.model, "_n_updates", 0)),
            "seconds": started - self._started - self.seconds,  # of training alone
        }
        self.rows.append({**row, **self._replay(), "rules_active": self._active()})
        self.seconds += time.perf_counter() - started

    def _play(self, seeds: list[int]) -> list[dict[str, float]]:
        gamma = float(getattr(self.model, "gamma", 0.99))
        envs = self._envs[: len(seeds)]
        observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
        values = value_estimates(self.model, self._stacked(observations))
        played = [{"return": 0.0, "discounted": 0.0, "length": 0.0, "value": float(value)} for value in values]
        running = list(range(len(seeds)))
        while running:
            actions, _ = self.model.predict(self._stacked([observations[k] for k in running]), deterministic=True)
            still = []
            for k, action in zip(running, actions, strict=True):
                observation, reward, terminated, truncated, info = envs[k].step(_action(envs[k], action))
                observations[k], episode = observation, played[k]
                episode["discounted"] += gamma ** episode["length"] * float(reward)
                episode["return"] += float(reward)
                episode["length"] += 1.0
                if not (terminated or truncated):
                    still.append(k)
                elif self._cell.env["success"] is not None:
                    episode["success"] = self._succeeded(episode["return"], info)
            running = still
        return played

    def _succeeded(self, total: float, info: dict[str, Any]) -> float:
        rule = self._cell.env["success"]
        return float(bool(info.get("is_success", False))) if rule == "is_success" else float(total > rule)

    def _stacked(self, observations: list[Any]) -> Any:
        batch: Any
        if isinstance(observations[0], dict):
            batch = {key: np.stack([np.asarray(one[key]) for one in observations]) for key in observations[0]}
        else:
            batch = np.stack([np.asarray(one) for one in observations])
        normalizer = self.model.get_vec_normalize_env()
        return batch if normalizer is None else normalizer.normalize_obs(batch)

    def _replay(self) -> dict[str, Any]:
        buffer = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, NSERReplayBuffer):
            return {}
        return {
            "ess": buffer.effective_sample_size / max(1, int(getattr(self.model, "batch_size", 1))),
            "coverage": buffer.coverage,
            "mean_score": buffer.mean_score,
            "rule_fraction": buffer.rule_fraction_now,
            "beta": buffer.beta_now,
        }

    def _active(self) -> list[str] | None:
        return None if self._rules is None else [str(entry.rule) for entry in self._rules.book.active()]


def value_estimates(model: BaseAlgorithm, observations: Any) -> np.ndarray:
    """
    What the critic expects of the greedy action; compared with the discounted return that follows, it shows over-estimation.

    :param model: one of ``ALGORITHMS``
    :param observations: a batch, as ``predict`` takes it
    :return: float, shape ``(n,)``
    """
    policy: Any = model.policy
    policy.set_training_mode(False)
    with th.no_grad():
        batch, _ = policy.obs_to_tensor(observations)
        if hasattr(policy, "quantile_net"):
            return np.asarray(policy.quantile_net(batch).mean(dim=1).max(dim=1)[0].cpu())
        if hasattr(policy, "q_net"):
            return np.asarray(policy.q_net(batch).max(dim=1)[0].cpu())
        actions = policy._predict(batch, deterministic=True)
        critics = policy.critic(batch, actions)
        if isinstance(critics, th.Tensor):  # TQC: quantiles of each critic
            return np.asarray(critics.mean(dim=(1, 2)).cpu())
        return np.asarray(th.cat(tuple(critics), dim=1).min(dim=1)[0].cpu())


def _action(env: gym.Env[Any, Any], action: Any) -> Any:
    return int(action) if isinstance(env.action_space, gym.spaces.Discrete) else action
