"""A scripted inducer and small models: training through the public interface, without a language model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from stable_baselines3 import DQN, SAC

from sb3_nser import NSERReplayBuffer
from sb3_nser.induction import InductionReply, InductionRequest


def reply(*rules: dict[str, Any]) -> str:
    return json.dumps({"rules": list(rules)})


def threshold_rule(feature: str, op: str, value: float, action: str) -> dict[str, Any]:
    return {
        "thresholds": [{"feature": feature, "op": op, "value": value}],
        "action": action,
        "confidence": 0.7,
        "why": "because",
    }


CARTPOLE = reply(
    threshold_rule("pole_angular_velocity", ">", 0.1, "push_right"),
    threshold_rule("pole_angular_velocity", "<", -0.1, "push_left"),
    threshold_rule("pole_angular_velocity", ">", 0.1, "push_left"),  # wrong
)


class Scripted:
    """Answers from a list, at once: an inducer as a user might write one."""

    deadline = 5.0

    def __init__(self, *answers: str) -> None:
        self.answers, self.requests = answers, []

    def describe(self) -> str:
        return "a script"

    def check(self) -> str | None:
        return None

    def propose(self, request: InductionRequest) -> InductionReply:
        self.requests.append(request)
        return InductionReply(
            self.answers[min(request.number, len(self.answers) - 1)], "script", prompt_tokens=10, reply_tokens=5
        )


def dqn(env: Any = "CartPole-v1", algorithm: Any = DQN, **settings: Any) -> Any:
    return algorithm(
        "MlpPolicy",
        env,
        **{
            "replay_buffer_class": NSERReplayBuffer,
            "learning_starts": 100,
            **({} if algorithm is SAC else {"exploration_fraction": 1.0}),
            "buffer_size": 5_000,
            "seed": 0,
            "device": "cpu",
            "policy_kwargs": {"net_arch": [16]},
            **settings,
        },
    )


def fingerprint(model: Any) -> np.ndarray:
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in model.policy.parameters()])
