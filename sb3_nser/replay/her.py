"""Hindsight experience replay with priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_nser.arguments import as_int
from sb3_nser.errors import ConfigurationError, NSERError, UnsupportedError
from sb3_nser.replay.buffers import NSERDictReplayBuffer, option_defaults, refuse_space
from sb3_nser.replay.options import PriorityOptions, refuse_unknown
from sb3_nser.replay.priorities import Mixture
from sb3_nser.replay.records import FloatArray, IntArray
from sb3_nser.replay.trace import BoolArray

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


class NSERHerReplayBuffer(NSERDictReplayBuffer, HerReplayBuffer):
    """
    SB3's hindsight experience replay, drawn from as ``NSERReplayBuffer`` is.

    As in SB3, only transitions of finished episodes are drawn, and ``n_sampled_goal / (n_sampled_goal + 1)`` of a batch,
    taken at random from what was drawn, get a goal of their own episode and its reward. The choice of goals is SB3's
    (Andrychowicz et al. 2017). A transition has one priority, the TD error of its last visit, under whichever goal that
    was; rules see the goals that the agent had when it acted. Row i of a batch is slot ``last_sample.indices[i]``: real
    transitions first, virtual ones behind them. A transition enters with the largest TD error when its episode ends.

    :param buffer_size: transitions to hold; more than the longest episode for each environment
    :param observation_space: a Dict with the keys ``observation``, ``achieved_goal`` and ``desired_goal``
    :param action_space: the action space
    :param env: the training environment, whose ``compute_reward`` judges virtual transitions; SB3 passes it. It is not
        saved with the buffer: after loading, ``set_env`` gives it back (``load_replay_buffer`` does so)
    :param device: where batches go
    :param n_envs: number of parallel environments
    :param optimize_memory_usage: must be False, as in SB3
    :param handle_timeout_termination: time limits are not ends, as in SB3
    :param n_sampled_goal: 0 or more virtual transitions per real one; higher learns more from goals that were reached by
        accident
    :param goal_selection_strategy: ``"future"``, ``"final"`` or ``"episode"``
    :param copy_info_dict: whether ``compute_reward`` needs the stored ``info``; True costs time and memory
    :param options: those of ``NSERReplayBuffer``, except that ``n_steps`` must be 1
    :raises ConfigurationError: naming an argument that is unknown, of the wrong type or out of range
    :raises UnsupportedError: for another observation space, ``optimize_memory_usage`` or ``n_steps`` above 1
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int | str = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **options: Any,
    ) -> None:
        owner, defaults = type(self).__name__, option_defaults()
        own = ["n_sampled_goal", "goal_selection_strategy", "copy_info_dict"]
        refuse_unknown(owner, [name for name in options if name not in defaults], [*own, *defaults])
        parsed = PriorityOptions.parse(**{**defaults, **options})
        refuse_space(owner, observation_space, one_array=optimize_memory_usage)
        if not isinstance(observation_space, spaces.Dict) or not set(GOAL_KEYS) <= set(observation_space):
            raise UnsupportedError(
                f"{owner} needs Dict observations with the keys {', '.join(GOAL_KEYS)}, not {observation_space}; for an "
                "environment without goals use NSERReplayBuffer"
            )
        if parsed.n_steps > 1:
            raise UnsupportedError(
                f"{owner} knows no n-step returns (nor does SB3's): the steps between would need rewards for the new goal "
                "too; leave n_steps out"
            )
        if isinstance(goal_selection_strategy, str) and goal_selection_strategy.lower() not in KEY_TO_GOAL_STRATEGY:
            names = ", ".join(sorted(KEY_TO_GOAL_STRATEGY))
            raise ConfigurationError(f"goal_selection_strategy must be one of {names}, not {goal_selection_strategy!r}")
        HerReplayBuffer.__init__(
            self,
            as_int("buffer_size", buffer_size, 1),
            observation_space,
            action_space,
            env,
            device=device,
            n_envs=n_envs,
            optimize_memory_usage=optimize_memory_usage,
            handle_timeout_termination=handle_timeout_termination,
            n_sampled_goal=as_int("n_sampled_goal", n_sampled_goal, 0),
            goal_selection_strategy=goal_selection_strategy,
            copy_info_dict=copy_info_dict,
        )
        self._entered: BoolArray = np.zeros(self.n_slots, dtype=np.bool_)  # slots that have mass
        self._finished: IntArray = np.empty(0, dtype=np.int64)  # the same slots, in order
        self._truncated = False
        self._init_priorities(parsed)

    def truncate_last_trajectory(self) -> None:
        """Take the episodes that are being played as finished; see SB3's ``HerReplayBuffer``."""
        super().truncate_last_trajectory()
        self._truncated = True

    def reset(self) -> None:
        """Empty the buffer; scorer, progress and random stream stay."""
        super().reset()
        self.ep_length[:] = 0
        self._current_ep_start[:] = 0
        self._entered[:] = False
        self._finished = self._finished[:0]

    # ------------------------------------------------------------------ what can be drawn

    def _flush(self) -> None:
        if self._flushed == self._added and not self._truncated:
            return
        written = self._slots(max(self._flushed, self._first_kept()), self._added)
        self._flushed, self._truncated = self._added, False
        finished: BoolArray = (self.ep_length > 0).ravel()
        self._store.withdraw(written)
        self._entered[written] = False
        entering = np.flatnonzero(finished & ~self._entered)
        if len(entering):
            if not self._entered.any():  # nothing is left that holds a largest TD error: as at the beginning
                self._store.forget_td_errors()
            scores = self._store.scores[entering]  # they may have been scored while their episode went on
            self._store.enter(entering)
            self._store.write_scores(entering, scores)
        # the write head has reached the start of these: SB3 gives up the rest of such an episode
        self._store.withdraw(np.flatnonzero(self._entered & ~finished))
        self._entered = finished
        self._finished = np.flatnonzero(finished)

    def _n_drawable(self) -> int:
        return len(self._finished)

    def _all_drawable(self) -> bool:
        return False

    def _drawable(self, indices: IntArray) -> BoolArray:
        return self._entered[indices]

    def _require_transitions(self) -> None:
        super()._require_transitions()
        if self._n_drawable() == 0:
            raise NSERError(
                "no episode is finished yet, and hindsight replay draws from finished ones only; make learning_starts larger "
                "than the longest episode (and buffer_size much larger)"
            )

    # ------------------------------------------------------------------ the batch

    def _draw(self, mixture: Mixture, batch_size: int) -> tuple[IntArray, FloatArray, float]:
        slots, chances, smallest = self._store.draw(self._points(batch_size), mixture, floor=self._finished)
        # what was drawn is ordered by the way it was drawn; which of it becomes virtual must not depend on that
        order = self._rng.permutation(batch_size)
        return slots[order], chances[order], smallest

    def _gather(self, indices: IntArray, env: VecNormalize | None) -> Any:
        rows, envs = np.divmod(indices, self.n_envs)
        n_real = len(rows) - int(self.her_ratio * len(rows))
        real = self._get_real_samples(rows[:n_real], envs[:n_real], env)
        if n_real == len(rows):
            return real
        virtual = self._get_virtual_samples(rows[n_real:], envs[n_real:], env)
        return DictReplayBufferSamples(*(_joined(one, other) for one, other in zip(real[:5], virtual[:5], strict=True)))

    # ------------------------------------------------------------------ file

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "env"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.env = None


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {key: th.cat((first[key], second[key])) for key in first}
    return th.cat((first, second))
