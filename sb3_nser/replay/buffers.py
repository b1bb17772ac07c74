"""The replay buffers that users name."""

from __future__ import annotations

import inspect
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nser.errors import UnsupportedError
from sb3_nser.replay.gather import as_tensor, take_rows
from sb3_nser.replay.mixin import PriorityMixin
from sb3_nser.replay.options import PriorityOptions, refuse_unknown
from sb3_nser.replay.priorities import parse_integer
from sb3_nser.replay.records import IntArray


class NSERReplayBuffer(PriorityMixin, ReplayBuffer):
    """
    SB3's replay buffer, drawn from by TD error and by rules: for the N filled slots

    ``q = λ S b/R + (1 − λ) [(1 − u) b/B + u/N]``, ``b = (|δ| + ε)^α``, ``B = Σ b``, ``R = Σ S b``,

    where S in [0, 1] is the rule score of a slot and δ its last TD error. ``b`` and the importance weights
    ``w = (N q)^−β / max w`` are prioritised experience replay (Schaul et al. 2015); the share λ of draws that rules
    decide, its cap and warm-up, the uniform floor u and the backward spread of scores are our own choice. Without a
    positive score the draw is plain prioritised replay, with ``alpha=0`` exactly uniform.

    Scores, TD errors and the use of the weights come from ``RuleInductionCallback`` (or ``PriorityCallback``, without
    rules). All numbers may be given as text, as YAML files do (``"1e-3"``).

    :param buffer_size: transitions to hold; each environment gets ``buffer_size // n_envs`` rows
    :param observation_space: Box (vectors and images), Discrete, MultiDiscrete or MultiBinary
    :param action_space: the action space
    :param device: where batches go
    :param n_envs: number of parallel environments
    :param optimize_memory_usage: one array for both observations, as in SB3; not with ``handle_timeout_termination``
    :param handle_timeout_termination: time limits are not ends, as in SB3
    :param alpha: 0 to 1; higher draws large TD errors more often, 0 ignores them
    :param beta: 0 to 1, at the start of training; higher corrects more of the bias of uneven draws, and so lessens the
        effect of large priorities on the learner; 0 uses no weights
    :param beta_final: ``beta`` to 1, reached linearly at the end of training; the same as ``beta`` keeps it constant
    :param rule_fraction: λ, 0 to 1, or ``"lin_0.25"`` (falls to 0 over training), or a function of the remaining
        progress; higher lets rules decide more draws, 0 none
    :param max_boost: 0 or more; higher lets a rule raise a slot further above its base share, up to ``1 + max_boost``
        times. λ is lowered to keep to it when few slots score
    :param rule_warmup: 0 or more transitions after the first positive score over which λ rises from 0; higher trusts
        new rules later
    :param uniform_fraction: u, 0 to 1; higher draws more slots evenly, whatever their TD error
    :param trace_decay: ψ, 0 to 1; higher lets more of the steps that lead to a scored one share its score
        (``S_t ← max(S_t, ψ S_{t+1})`` within an episode), 0 switches it off
    :param epsilon: 0 or more, added to ``|δ|``; higher lets rows with no error be drawn more often; with 0 they are drawn
        by the floor alone
    :param seed: of the buffer's own random stream; ``None`` derives it from NumPy's global state (which SB3's ``seed``
        sets) without advancing that
    :raises ConfigurationError: naming an argument that is unknown, of the wrong type or out of range
    :raises UnsupportedError: for Dict and Tuple observations
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        alpha: float | str = 0.6,
        beta: float | str = 0.4,
        beta_final: float | str = 1.0,
        rule_fraction: float | str = 0.25,
        max_boost: float | str = 4.0,
        rule_warmup: int | str = 2000,
        uniform_fraction: float | str = 0.05,
        trace_decay: float | str = 0.8,
        epsilon: float | str = 1e-2,
        seed: int | str | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self).__name__, unknown, _keywords(NSERReplayBuffer))
        options = PriorityOptions.parse(
            alpha=alpha,
            beta=beta,
            beta_final=beta_final,
            rule_fraction=rule_fraction,
            max_boost=max_boost,
            rule_warmup=rule_warmup,
            uniform_fraction=uniform_fraction,
            trace_decay=trace_decay,
            epsilon=epsilon,
            seed=seed,
        )
        if isinstance(observation_space, spaces.Dict | spaces.Tuple):
            raise UnsupportedError(
                f"NSERReplayBuffer cannot hold {type(observation_space).__name__} observations; wrap the environment with "
                "gymnasium.wrappers.FlattenObservation and use MlpPolicy"
            )
        super().__init__(
            parse_integer("buffer_size", buffer_size, 1),
            observation_space,
            action_space,
            device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
        )
        self._init_priorities(options)

    def _gather(self, rows: IntArray, envs: IntArray, env: VecNormalize | None) -> ReplayBufferSamples:
        # what SB3's _get_samples does, for given pairs of row and environment (it draws the environment at random)
        slots = rows * self.n_envs + envs if self.n_envs > 1 else rows
        following = (slots + self.n_envs) % self.n_slots if self.optimize_memory_usage else slots
        dones = take_rows(self.dones, slots)
        if self.handle_timeout_termination:
            dones = dones * (1 - take_rows(self.timeouts, slots))
        rewards = take_rows(self.rewards, slots).reshape(-1, 1)
        arrays: tuple[Any, ...] = (
            self._normalize_obs(take_rows(self.observations, slots), env),
            take_rows(self.actions, slots),
            self._normalize_obs(
                take_rows(self.observations if self.optimize_memory_usage else self.next_observations, following), env
            ),
            dones.reshape(-1, 1),
            self._normalize_reward(rewards, env),
        )
        return ReplayBufferSamples(*(as_tensor(array, self.device) for array in arrays))


def _keywords(buffer_class: type) -> list[str]:
    parameters = inspect.signature(buffer_class.__init__).parameters.values()  # type: ignore[misc]
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]
