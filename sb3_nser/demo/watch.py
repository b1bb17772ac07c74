"""Progress, greedy evaluations and rules as they come, on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from stable_baselines3.common.callbacks import BaseCallback

from sb3_nser.induction.session import InductionRound

EVAL_EPISODES = 10
EVAL_SEED = 10_000


class Watcher(BaseCallback):
    """Evaluates greedily every so many steps and reports how far training is.

    :param env: an environment of its own for the evaluations
    :param every: steps between evaluations
    :param success: True counts episodes with a positive return, False averages returns
    :param report: called with (steps done, latest score or None)
    """

    def __init__(self, env: gym.Env[Any, Any], every: int, success: bool, report: Callable[[int, float | None], None]) -> None:
        super().__init__()
        self._env, self._every, self._success, self._report = env, every, success, report
        self._next_report = 0.0
        self.curve: list[tuple[int, float]] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        if self.num_timesteps >= len(self.curve) * self._every + self._every:
            self.curve.append((self.num_timesteps, self.evaluate()))
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + 0.2
            self._report(self.num_timesteps, self.curve[-1][1] if self.curve else None)
        return True

    def _on_training_end(self) -> None:
        if not self.curve or self.curve[-1][0] < self.num_timesteps:  # the saved model's score, not an earlier one's
            self.curve.append((self.num_timesteps, self.evaluate()))

    def evaluate(self) -> float:
        """:return: mean greedy return, or share of successes, over the same ten seeded episodes each time"""
        scores = []
        for episode in range(EVAL_EPISODES):
            observation, _ = self._env.reset(seed=EVAL_SEED + episode)
            total, over = 0.0, False
            while not over:
                action, _ = self.model.predict(observation, deterministic=True)
                observation, reward, terminated, truncated, _ = self._env.step(action)
                total, over = total + float(reward), terminated or truncated
            scores.append(float(total > 0) if self._success else total)
        return float(np.mean(scores))


class Screen:
    """A progress bar where there is a terminal, plain lines where there is none.

    :param console: where to print
    :param task: name of the environment
    :param steps: environment steps in all
    :param score: name of the score
    :param bar: False prints lines even on a terminal
    """

    def __init__(self, console: Console, task: str, steps: int, score: str, bar: bool = True) -> None:
        self._console, self._task, self._steps, self._score = console, task, steps, score
        self._bar = bar and console.is_terminal
        self._next_line = 0.1
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._id = self._progress.add_task(task, total=steps)

    def __enter__(self) -> Screen:
        if self._bar:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._progress.stop()

    def update(self, step: int, score: float | None) -> None:
        """Show that ``step`` steps are done, and the latest greedy score."""
        words = f"{self._task}  {self._score} {score:.2f}" if score is not None else self._task
        if self._bar:
            self._progress.update(self._id, completed=min(step, self._steps), description=words)
        elif step >= self._next_line * self._steps:
            self._next_line = step / self._steps + 0.1
            self._console.print(f"{words}: {step} of {self._steps} steps", highlight=False, markup=False)

    def round(self, news: InductionRound) -> None:
        """Print what became of the model's latest answer."""

        def show(text: str, style: str = "") -> None:
            self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

        first, *rest = news.lines()
        show(first, "yellow" if news.failure else "bold")
        for line in rest:
            show(f"  {line}", "cyan" if line.strip() in news.verdicts else "")
