"""One training run in a process of its own that goes on for some steps whenever it is asked.

Run as ``python -m sb3_nser.bench.training_worker ALGORITHM REPLAY RULES_FILE``. The protocol is that of
``peer_worker``: a first line, then ``{"steps": n}`` is answered by ``{"us": microseconds per step}``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TextIO

import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from sb3_nser import NSERReplayBuffer, PriorityCallback, RuleInductionCallback

FOREVER = 1_000_000

_ZOO_DQN: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
}


@dataclass(frozen=True)
class Task:
    """
    What is trained.

    :param algorithm: the class
    :param env: environment id
    :param options: its arguments
    :param turn: environment steps of a turn
    :param idle: environment steps before the turns count
    :param rules: rules of the rule-weighted run
    """

    algorithm: Any
    env: str
    turn: int
    idle: int
    rules: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


_CARTPOLE_RULES = (
    "IF pole_angle > 0.02 AND pole_angular_velocity > 0 THEN push_right",
    "IF pole_angle < -0.02 AND pole_angular_velocity < 0 THEN push_left",
    "IF cart_position > 1.0 AND pole_angle < 0.05 THEN push_left",
    "IF cart_position < -1.0 AND pole_angle > -0.05 THEN push_right",
)
_PENDULUM_RULES = (
    "IF angle > 0.1 AND angular_velocity > 0 THEN torque < -0.5",
    "IF angle < -0.1 AND angular_velocity < 0 THEN torque > 0.5",
)

TASKS = {
    "DQN": Task(DQN, "CartPole-v1", 512, 2048, _CARTPOLE_RULES, {**_ZOO_DQN, "policy_kwargs": {"net_arch": [256, 256]}}),
    "QRDQN": Task(
        QRDQN,
        "CartPole-v1",
        512,
        2048,
        _CARTPOLE_RULES,
        {**_ZOO_DQN, "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10}},
    ),
    "SAC": Task(SAC, "Pendulum-v1", 50, 150, _PENDULUM_RULES),
}
REPLAYS = ("uniform", "PER", "NSER")


class Turns(BaseCallback):
    """
    Stops the clock after the steps that were asked for, and waits to be asked again; the end of the input ends training.

    :param replies: where answers go
    """

    def __init__(self, replies: TextIO) -> None:
        super().__init__()
        self._replies = replies
        self._steps = 0
        self._until = 0
        self._start = 0

    def _on_step(self) -> bool:
        if self.num_timesteps < self._until:
            return True
        if self._steps:
            spent = time.perf_counter_ns() - self._start
            print(json.dumps({"us": spent / 1e3 / self._steps}), file=self._replies, flush=True)
        line = sys.stdin.readline()
        if not line:
            return False
        self._steps = int(json.loads(line)["steps"])
        self._until = self.num_timesteps + self._steps
        self._start = time.perf_counter_ns()
        return True


def build(name: str, replay: str, rules_file: str) -> tuple[Any, list[BaseCallback]]:
    """
    :param name: of ``TASKS``
    :param replay: of ``REPLAYS``
    :param rules_file: rules of the rule-weighted run
    :return: the model and the callbacks it needs
    """
    task = TASKS[name]
    options = dict(task.options)
    callbacks: list[BaseCallback] = []
    if replay != "uniform":
        options["replay_buffer_class"] = NSERReplayBuffer
        callbacks.append(PriorityCallback() if replay == "PER" else RuleInductionCallback(rules_file=rules_file, max_calls=0))
    return task.algorithm("MlpPolicy", task.env, device="cpu", seed=0, **options), callbacks


def main(name: str, replay: str, rules_file: str) -> None:
    """Train until the input ends; parameters as for ``build``."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    th.set_num_threads(1)
    model, callbacks = build(name, replay, rules_file)
    print(json.dumps({"ready": True, "version": version("sb3_nser")}), file=replies, flush=True)
    model.learn(FOREVER, callback=CallbackList([*callbacks, Turns(replies)]))


if __name__ == "__main__":
    main(*sys.argv[1:4])
