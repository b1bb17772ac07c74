"""The demo's environments and hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from sb3_nser.errors import NSERError


@dataclass(frozen=True)
class DemoTask:
    """
    :param env_id: Gymnasium id
    :param make: builds the environment with the wrappers that an MLP needs
    :param steps: environment steps
    :param eval_every: steps between greedy evaluations
    :param model: keyword arguments of DQN
    :param buffer: keyword arguments of NSERReplayBuffer
    :param induction: keyword arguments of RuleInductionCallback
    :param score: what the curve shows, ``return`` or ``success rate``
    """

    env_id: str
    make: Callable[[], gym.Env[Any, Any]]
    steps: int
    eval_every: int
    model: dict[str, Any]
    buffer: dict[str, Any] = field(default_factory=dict)
    induction: dict[str, Any] = field(default_factory=dict)
    score: str = "return"


def _cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def _doorkey() -> gym.Env[Any, Any]:
    try:
        import minigrid
        from minigrid.wrappers import ImgObsWrapper, OneHotPartialObsWrapper
    except ImportError:
        raise NSERError("the demo needs MiniGrid: pip install 'sb3-nser[demo]'.") from None
    del minigrid  # importing it registers the environments
    env = gym.make("MiniGrid-DoorKey-5x5-v0")
    return gym.wrappers.FlattenObservation(ImgObsWrapper(OneHotPartialObsWrapper(env)))  # type: ignore[no-untyped-call]


TASKS = {
    # hyper-parameters of rl-baselines3-zoo's tuned DQN for CartPole-v1
    "CartPole-v1": DemoTask(
        "CartPole-v1",
        _cartpole,
        steps=50_000,
        eval_every=5_000,
        model={
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
        induction={"first": 2_000, "every": 8_000},
    ),
    "MiniGrid-DoorKey-5x5-v0": DemoTask(
        "MiniGrid-DoorKey-5x5-v0",
        _doorkey,
        steps=50_000,
        eval_every=5_000,
        model={
            "learning_rate": 5e-4,
            "batch_size": 64,
            "buffer_size": 50_000,
            "learning_starts": 1_000,
            "gamma": 0.97,
            "target_update_interval": 500,
            "train_freq": 4,
            "exploration_fraction": 0.4,
            "exploration_final_eps": 0.08,
            "policy_kwargs": {"net_arch": [128, 128]},
        },
        induction={"first": 1_000, "every": 8_000},
        score="success rate",
    ),
}
