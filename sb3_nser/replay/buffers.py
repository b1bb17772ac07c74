"""The replay buffers that users name."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nser.arguments import as_int
from sb3_nser.errors import UnsupportedError
from sb3_nser.replay.gather import as_tensors
from sb3_nser.replay.mixin import PriorityMixin
from sb3_nser.replay.n_step import discounted, steps_taken
from sb3_nser.replay.options import PriorityOptions, refuse_unknown
from sb3_nser.replay.records import IntArray


class NSERReplayBuffer(PriorityMixin, ReplayBuffer):
    """
    SB3's replay buffer, drawn from by TD error and by rules: for the N filled slots

    ``q = λ S b/R + (1 − λ) [(1 − u) b/B + u/N]``, ``b = (|δ| + ε)^α``, ``B = Σ b``, ``R = Σ S b``,

    where S in [0, 1] is the rule score of a slot and δ its last TD error. ``b`` and the importance weights
    ``w = (N q)^−β / max w`` are prioritised experience replay (Schaul et al. 2015); the share λ of draws that rules
    decide, its cap and warm-up, the uniform floor u and the backward spread of scores are our own choice. Without a
    positive score the draw is plain prioritised replay, with ``alpha=0`` exactly uniform.

    Evidence for the defaults (docs, page "Results"; area under the curve, ten seeds, hand-written rules): larger than
    with uniform draws on DoorKey-5x5, DoorKey-6x6 and FrozenLake 8x8 (DQN); not distinguishable on Taxi, CartPole and
    Acrobot, on FrozenLake with QR-DQN and on Pendulum with SAC. Against ``rule_fraction=0`` it is larger over the two
    DoorKeys together, on single tasks not distinguishable; against ``shuffle_scores=True`` it is larger on DoorKey-6x6
    (twenty fresh seeds) and with noisy rewards on DoorKey-5x5, elsewhere not. Weighting by returns, without rules, had
    as large an area on DoorKey-6x6. What else was tried stands with its argument; other arguments were not varied by
    themselves.

    Scores, TD errors and the use of the weights come from ``RuleInductionCallback`` (or ``PriorityCallback``, without
    rules). All numbers may be given as text, as YAML files do (``"1e-3"``).

    :param buffer_size: transitions to hold; each environment gets ``buffer_size // n_envs`` rows
    :param observation_space: Box (vectors and images), Discrete, MultiDiscrete, MultiBinary, or a Dict of these
    :param action_space: the action space
    :param device: where batches go
    :param n_envs: number of parallel environments
    :param optimize_memory_usage: one array for both observations, as in SB3; not with ``handle_timeout_termination``
    :param handle_timeout_termination: time limits are not ends, as in SB3
    :param priority: ``"proportional"`` as above, or ``"lap"``, loss-adjusted prioritisation (Fujimoto et al. 2020):
        ``b = max(|δ|, 1)^α`` and no weights, so ``beta``, ``beta_final`` and ``epsilon`` have no effect. It is meant for a
        Huber loss, which DQN and the quantile algorithms have; the loss itself is never changed. The authors use
        ``alpha=0.4`` for continuous control, and no floor (``uniform_fraction=0``)
    :param alpha: 0 to 1; higher draws large TD errors more often, 0 ignores them. The default is that of Schaul et al.; 0
        did no worse with rules (DoorKey-5x5, five seeds)
    :param beta: 0 to 1, at the start of training; higher corrects more of the bias of uneven draws, and so lessens the
        effect of large priorities on the learner; 0 uses no weights, with which little was learnt, with and without rules
        (DoorKey-6x6, five seeds)
    :param beta_final: ``beta`` to 1, reached linearly at the end of training; the same as ``beta`` keeps it constant
    :param rule_fraction: λ, 0 to 1, or ``"lin_0.25"`` (falls to 0 over training), or a function of the remaining progress;
        higher lets rules decide more draws, 0 none. 0.5 with ``max_boost=9``, and all draws, did no better (DoorKey-6x6,
        five seeds)
    :param max_boost: 0 or more; higher lets a rule raise a slot further above its base share, up to ``1 + max_boost`` times.
        λ is lowered to keep to it when few slots score. 4 for all draws did no
        better than the default mixture (DoorKey-5x5 and -6x6, five seeds each)
    :param rule_warmup: 0 or more transitions after the first positive score over which λ rises from 0; higher trusts
        new rules later
    :param uniform_fraction: u, 0 to 1; higher draws more slots evenly, whatever their TD error
    :param trace_decay: ψ, 0 to 1; higher lets more of the steps that lead to a scored one share its score (``S_t ← max(S_t,
        ψ S_{t+1})`` within an episode), 0 switches it off. Without it, and with all draws boosted, learning was no faster
        (DoorKey-5x5, five seeds); 0.95 was no better (DoorKey-6x6, five seeds)
    :param epsilon: 0 or more, added to ``|δ|``; higher lets rows with no error be drawn more often; with 0 they are drawn
        by the floor alone
    :param shuffle_scores: True puts the scores, spread backwards, on other rows: the filled slots bear each other's scores in
        a random order. A control for studies, in which scores keep their distribution and lose their meaning
    :param n_steps: 1 or more; rewards that one transition sums up before the value that follows (SB3's own ``n_steps`` never
        reaches a buffer of another class); higher carries rewards back faster, at the price of more variance and of steps by
        older policies. Not with ``optimize_memory_usage``. With uniform draws three and five steps were better than one
        on DoorKey-5x5, ten on Acrobot, and three worse on FrozenLake 8x8 and Taxi (two seeds), so the default stays 1
    :param gamma: discount of these sums, 0 to 1; give the model's own. Without effect for ``n_steps=1``
    :param seed: of the buffer's own random stream; ``None`` derives it from NumPy's global state (which SB3's ``seed``
        sets) without advancing that
    :raises ConfigurationError: naming an argument that is unknown, of the wrong type or out of range
    :raises UnsupportedError: for Tuple and nested Dict observations, and for ``optimize_memory_usage`` together with
        ``n_steps`` or with a Dict
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> NSERReplayBuffer:
        """Where observations are dictionaries, an ``NSERDictReplayBuffer``, which is one too."""
        space = kwargs.get("observation_space", args[1] if len(args) > 1 else None)
        if not isinstance(space, spaces.Dict) or issubclass(cls, NSERDictReplayBuffer):
            return super().__new__(cls)
        if cls is not NSERReplayBuffer:
            raise UnsupportedError(
                f"{cls.__name__} holds no Dict observations; derive it from NSERDictReplayBuffer instead of NSERReplayBuffer"
            )
        return super().__new__(NSERDictReplayBuffer)

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
        priority: str = "proportional",
        alpha: float | str = 0.6,
        beta: float | str = 0.4,
        beta_final: float | str = 1.0,
        rule_fraction: float | str = 0.25,
        max_boost: float | str = 4.0,
        rule_warmup: int | str = 2000,
        uniform_fraction: float | str = 0.05,
        trace_decay: float | str = 0.8,
        epsilon: float | str = 1e-2,
        shuffle_scores: bool | str = False,
        n_steps: int | str = 1,
        gamma: float | str = 0.99,
        seed: int | str | None = None,
        **unknown: Any,
    ) -> None:
        refuse_unknown(type(self).__name__, unknown, _keywords(NSERReplayBuffer))
        options = PriorityOptions.parse(
            priority=priority,
            alpha=alpha,
            beta=beta,
            beta_final=beta_final,
            rule_fraction=rule_fraction,
            max_boost=max_boost,
            rule_warmup=rule_warmup,
            uniform_fraction=uniform_fraction,
            trace_decay=trace_decay,
            epsilon=epsilon,
            shuffle_scores=shuffle_scores,
            n_steps=n_steps,
            gamma=gamma,
            seed=seed,
        )
        refuse_space(type(self).__name__, observation_space, n_steps=options.n_steps, one_array=optimize_memory_usage)
        super().__init__(
            as_int("buffer_size", buffer_size, 1),
            observation_space,
            action_space,
            device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
        )
        self._init_priorities(options)

    def _gather(self, indices: IntArray, env: VecNormalize | None) -> Any:
        # what SB3's _get_samples does, for given pairs of row and environment (it draws the environment at random)
        if self.n_steps == 1:
            dones = self._take(self.dones, indices)
            if self.handle_timeout_termination:
                dones = dones * (1 - self._take(self.timeouts, indices))
            rewards = self._normalize_reward(self._take(self.rewards, indices).reshape(-1, 1), env)
            following: tuple[Any, ...] = (self._next_observations(indices), dones.reshape(-1, 1), rewards)
        else:
            following = self._n_steps_on(indices, env)
        observations = self._take_each(self.observations, indices)
        arrays = (
            self._normalize_obs(observations, env),
            self._take(self.actions, indices),
            self._normalize_obs(following[0], env),
            *following[1:],
        )
        batch = DictReplayBufferSamples if isinstance(observations, dict) else ReplayBufferSamples
        return batch(*as_tensors(arrays, self.device))

    def _n_steps_on(self, indices: IntArray, env: VecNormalize | None) -> tuple[Any, ...]:
        """Next observations, dones, returns and discounts of n-step transitions."""
        slots, stops = self._steps_after(indices, self.n_steps)
        taken = steps_taken(stops)
        last = slots[np.arange(len(slots)), taken - 1]
        dones = self._take(self.dones, last) * (1 - self._take(self.timeouts, last))
        rewards = self._normalize_reward(self._take(self.rewards, slots), env)
        return self._next_observations(last), dones.reshape(-1, 1), *discounted(rewards, taken, self.gamma)


class NSERDictReplayBuffer(NSERReplayBuffer, DictReplayBuffer):
    """
    ``NSERReplayBuffer`` over SB3's buffer for Dict observations. Nobody needs to name it: ``NSERReplayBuffer`` becomes one
    where the observation space is a Dict. ``Transitions`` then hold dictionaries of arrays.

    Takes the arguments of ``NSERReplayBuffer``; ``n_steps`` works as for other spaces, ``optimize_memory_usage`` is refused
    (as in SB3).
    """


def refuse_space(owner: str, space: spaces.Space[Any], *, n_steps: int = 1, one_array: bool = False) -> None:
    """
    :param owner: name of the buffer class, for messages
    :param space: the observation space
    :param n_steps: steps summed up in one transition
    :param one_array: ``optimize_memory_usage``
    :raises UnsupportedError: for what cannot be stored, with the way out
    """
    within = space.spaces.values() if isinstance(space, spaces.Dict) else ()
    if isinstance(space, spaces.Tuple) or any(isinstance(one, spaces.Dict | spaces.Tuple) for one in within):
        what = "nested Dict" if isinstance(space, spaces.Dict) else "Tuple"
        raise UnsupportedError(
            f"{owner} cannot hold {what} observations (nor can SB3's policies); wrap the environment with "
            "gymnasium.wrappers.FlattenObservation and use MlpPolicy, or give a Dict of plain spaces and MultiInputPolicy"
        )
    if isinstance(space, spaces.Dict) and one_array:
        raise UnsupportedError(
            f"{owner} cannot save memory with Dict observations (nor can SB3's buffer); leave optimize_memory_usage out"
        )
    if n_steps > 1 and one_array:
        raise UnsupportedError(
            f"n_steps={n_steps} does not work with optimize_memory_usage=True (as in SB3); leave one of them out"
        )


def option_defaults() -> dict[str, Any]:
    """:return: what ``NSERReplayBuffer`` adds to SB3's arguments, with the defaults"""
    parameters = inspect.signature(NSERReplayBuffer.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _keywords(buffer_class: type) -> list[str]:
    parameters = inspect.signature(buffer_class.__init__).parameters.values()  # type: ignore[misc]
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]
