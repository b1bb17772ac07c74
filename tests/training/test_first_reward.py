"""Sparse tasks: until the first success rules count on their author's word, and decide a small share of the draws at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import configure

from sb3_nser import RuleInductionCallback
from sb3_nser.errors import ConfigurationError
from scripted import dqn

RIGHT = "IF obs_0 > 0.5 THEN action_1"
WRONG = "IF obs_0 < 0.4 THEN action_1"


class Closed(gym.Env[np.ndarray, int]):
    """Action 1 is right where the number is above 0.5, else action 0; nothing is paid before ``opens``."""

    def __init__(self, opens: int = 1_000) -> None:
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (2,), np.float32), spaces.Discrete(2)
        self.opens, self.steps, self.left = opens, 0, 0

    def _look(self) -> np.ndarray:
        self.seen = self.np_random.random(2, dtype=np.float32)
        return self.seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 10
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        paid = float(self.steps >= self.opens and action == int(self.seen[0] > 0.5))
        self.steps, self.left = self.steps + 1, self.left - 1
        return self._look(), paid, self.left == 0, False, {}


class Watcher(BaseCallback):
    """What the buffer and the book say after every step."""

    def __init__(self, rules: RuleInductionCallback) -> None:
        super().__init__()
        self.rules, self.seen = rules, []

    def _on_step(self) -> bool:
        if self.num_timesteps > 1:
            active = self.rules.book.active()
            share = self.rules.buffer.rule_fraction_now
            self.seen.append((self.num_timesteps, share, {str(entry.rule): entry.on_prior for entry in active}))
        return True


def train(tmp_path: Path, rules: str, steps: int = 3_000, **settings: Any) -> tuple[list[Any], Any]:
    file = tmp_path / "rules.yaml"
    file.write_text(rules, encoding="utf-8")
    callback = RuleInductionCallback(rules_file=file, max_calls=0, every=250, vocabulary="generic", **settings)
    model = dqn(
        Closed(),
        exploration_final_eps=1.0,
        replay_buffer_kwargs={"rule_fraction": 0.3, "rule_warmup": 0, "alpha": 0.0, "uniform_fraction": 0.0},
    )
    model.set_logger(configure(str(tmp_path / "log"), ["csv"]))
    watcher = Watcher(callback)
    model.learn(steps, callback=CallbackList([callback, watcher]), log_interval=20)
    return watcher.seen, callback


def test_the_share_of_rules_is_small_until_the_first_reward(tmp_path: Path) -> None:
    seen, _ = train(tmp_path, f"rules:\n- rule: {RIGHT}\n- rule: {WRONG}\n")
    before = [(share, rules) for step, share, rules in seen if 300 < step <= 1_000]
    assert all(share == pytest.approx(0.1) for share, _ in before)
    assert all(rules == {RIGHT: True, WRONG: True} for _, rules in before)
    # the data then confirm the one and refute the other, and rules have the share that the buffer was given
    _, share, rules = seen[-1]
    assert share == pytest.approx(0.3) and rules == {RIGHT: False}
    first = next(step for step, _, rules in seen if not all(rules.values()))
    assert first > 1_000
    assert all(share <= 0.1 + 1e-9 for step, share, _ in seen if step < first)
    log = (tmp_path / "log" / "progress.csv").read_text(encoding="utf-8")
    assert "nser/rule_fraction" in log and "nser/rules_on_prior" in log


def test_a_pinned_rule_has_its_owners_word_and_the_whole_share(tmp_path: Path) -> None:
    seen, _ = train(tmp_path, f"rules:\n- rule: {RIGHT}\n  pinned: true\n", steps=600)
    assert seen[-1][1] == pytest.approx(0.3)


def test_the_bound_is_the_users_to_choose(tmp_path: Path) -> None:
    seen, _ = train(tmp_path, f"rules:\n- rule: {RIGHT}\n", steps=600, prior_rule_fraction=0.0)
    assert seen[-1][1] == 0.0 and seen[-1][2] == {RIGHT: True}
    with pytest.raises(ConfigurationError, match=r"prior_rule_fraction=1\.5|prior_rule_fraction"):
        RuleInductionCallback(prior_rule_fraction=1.5)
