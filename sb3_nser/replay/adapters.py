"""What the learner link must know of each algorithm: which modules to watch, and how a TD error is read off.

Every entry of ``ADAPTERS`` names SB3 or sb3-contrib classes; subclasses are handled as their parents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch as th
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_nser.errors import UnsupportedError
from sb3_nser.replay._kernels import FloatArray, Kernels


@dataclass(frozen=True)
class Caught:
    """
    What a pass of the target network showed.

    :param batch: the batch it belonged to
    :param output: what the network returned
    :param inputs: what it was given: observations, and actions where the critic takes them
    :param noted: what ``Adapter.note`` had returned for that batch
    :param kernels: for arithmetic on the CPU
    """

    batch: Any
    output: Any
    inputs: tuple[Any, ...]
    noted: Any
    kernels: Kernels


TargetError = Callable[[Any, Any, th.Tensor, Caught], "th.Tensor | FloatArray"]


@dataclass(frozen=True)
class Adapter:
    """
    One family of algorithms.

    :param names: for messages
    :param classes: the algorithms
    :param critic: attribute of the model that holds the online critic
    :param target: attribute of the target network whose output ``error`` needs, or ``None``
    :param error: ``(model, batch, online output, what the target network's pass showed) -> |δ|`` of shape
        ``(batch_size,)``, an array on the CPU; ``None`` where δ is read from the gradient of a mean squared error
    :param gradient_scale: c in ``δ = c · B · ∂L/∂Q`` (1 where the loss is half the squared error, ½ where it is the whole)
    :param note: read from the model at the actor's first pass of a gradient step, before anything is updated
    :param joint: whether the critic sees the batch and its successors in one pass of ``2 · batch_size`` rows
    """

    names: str
    classes: tuple[type, ...]
    critic: str
    target: str | None = None
    error: TargetError | None = None
    gradient_scale: float = 1.0
    joint: bool = False
    note: Callable[[Any], Any] | None = None


def _discounts(model: Any, batch: Any) -> Any:
    discounts = getattr(batch, "discounts", None)
    return model.gamma if discounts is None else discounts


@lru_cache(maxsize=8)
def _as_array(discount: float, dtype: Any) -> Any:
    return np.full(1, discount, dtype)


def dqn_error(model: Any, batch: Any, online: th.Tensor, caught: Caught) -> th.Tensor | FloatArray:
    """
    ``|r + (1 − d) γ max_a Q'(s', a) − Q(s, a)|``, before the Huber loss clips it.

    :param online: Q(s, ·), shape ``(batch_size, n_actions)``
    :param caught: with Q'(s', ·), same shape
    """
    return _error(model, batch, online[:, None], caught.output[:, None], caught.kernels)


def _error(model: Any, batch: Any, online: th.Tensor, target: th.Tensor, kernels: Kernels) -> th.Tensor | FloatArray:
    discounts = _discounts(model, batch)
    if online.device.type == "cpu":  # calls of torch on a few hundred numbers cost far more than the numbers
        rewards, dones, actions = batch.rewards.numpy(), batch.dones.numpy(), batch.actions.numpy()
        factors = discounts.numpy().ravel() if isinstance(discounts, th.Tensor) else _as_array(discounts, rewards.dtype)
        read: FloatArray = kernels.greedy_errors(
            online.numpy(), target.numpy(), actions.ravel(), rewards.ravel(), dones.ravel(), factors
        )
        return read
    following = target.mean(dim=1).amax(dim=1, keepdim=True)
    wanted = batch.rewards + (1 - batch.dones) * discounts * following
    errors: th.Tensor = (wanted - online.mean(dim=1).gather(1, batch.actions.long())).abs()[:, 0]
    return errors


def qrdqn_error(model: Any, batch: Any, online: th.Tensor, caught: Caught) -> th.Tensor | FloatArray:
    """
    Mean target quantile minus mean current quantile of the action taken: the TD error of the two means (our own choice;
    the quantile loss itself has no single one).

    :param online: quantiles at s, shape ``(batch_size, n_quantiles, n_actions)``
    :param caught: with the target network's at s', same shape
    """
    return _error(model, batch, online, caught.output, caught.kernels)


def entropy_coefficient(model: Any) -> Any:
    """The entropy coefficient as this gradient step's target uses it: before the step updates it."""
    return model.ent_coef_tensor if model.log_ent_coef is None else th.exp(model.log_ent_coef.detach())


@th.no_grad()
def tqc_error(model: Any, batch: Any, online: th.Tensor, caught: Caught) -> th.Tensor:
    """
    As for QR-DQN: mean of the target quantiles that TQC keeps, entropy term included, minus the mean of all current ones.

    :param online: quantiles of (s, a), shape ``(batch_size, n_critics, n_quantiles)``
    :param caught: with the target network's at (s', a'), same shape
    """
    critic, distribution, next_actions = model.critic, model.actor.action_dist, caught.inputs[1]
    kept = critic.quantiles_total - model.top_quantiles_to_drop_per_net * critic.n_critics
    quantiles = caught.output.reshape(len(online), -1).sort(dim=1)[0][:, :kept]
    # the actor's last pass was the one for s', so its distribution still tells how likely a' was
    known = (distribution.gaussian_actions,) if hasattr(distribution, "gaussian_actions") else ()  # not with gSDE
    log_prob = distribution.log_prob(next_actions, *known)
    following = quantiles.mean(dim=1, keepdim=True) - caught.noted * log_prob.reshape(-1, 1)
    wanted = batch.rewards + (1 - batch.dones) * _discounts(model, batch) * following
    errors: th.Tensor = (wanted - online.mean(dim=(1, 2)).reshape(-1, 1)).abs().flatten()
    return errors


ADAPTERS = (
    Adapter("DQN", (DQN,), "q_net", "q_net_target", dqn_error),
    Adapter("QRDQN", (QRDQN,), "quantile_net", "quantile_net_target", qrdqn_error),
    Adapter("SAC", (SAC,), "critic"),
    Adapter("TD3, DDPG", (TD3, DDPG), "critic", gradient_scale=0.5),
    Adapter("TQC", (TQC,), "critic", "critic_target", tqc_error, note=entropy_coefficient),
    Adapter("CrossQ", (CrossQ,), "critic", joint=True),
)


def adapter_for(model: Any) -> Adapter:
    """
    :param model: an SB3 algorithm
    :raises UnsupportedError: if its class is not handled, naming those that are
    """
    for adapter in ADAPTERS:
        if isinstance(model, adapter.classes):
            return adapter
    handled = ", ".join(adapter.names for adapter in ADAPTERS)
    if not isinstance(model, OffPolicyAlgorithm):
        raise UnsupportedError(
            f"{type(model).__name__} learns from no replay buffer, so there is nothing to prioritise; use one of {handled}."
        )
    raise UnsupportedError(
        f"rule-weighted replay does not know how {type(model).__name__} learns from its replay buffer; it handles {handled} "
        "and their subclasses"
    )
