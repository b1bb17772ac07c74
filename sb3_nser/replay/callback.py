"""The callback for priorities alone; rules know it as the parent of theirs."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_nser.arguments import as_int
from sb3_nser.errors import ConfigurationError
from sb3_nser.replay.buffers import NSERReplayBuffer
from sb3_nser.replay.learner import LearnerLink

LOG_EVERY = 500
"""Environment steps between two records of the replay scalars."""


class PriorityCallback(BaseCallback):
    """Prioritised replay for any supported off-policy algorithm: TD errors become priorities, weights scale the loss.

    SB3's ``train()`` stays as it is; hooks on the critic do both (see ``LearnerLink``). They are
    installed when training starts and removed when it ends. The model must use ``NSERReplayBuffer``.

    :param verbose: 0 silent, 1 information, 2 debug
    :raises ConfigurationError: for an unknown keyword; at training start, if the model uses another buffer class
    :raises UnsupportedError: at training start, if the algorithm is not supported
    """

    def __init__(self, verbose: int = 0, **unknown: Any) -> None:
        super().__init__(as_int("verbose", verbose, 0))
        if unknown:
            name = next(iter(unknown))
            raise ConfigurationError(
                f"PriorityCallback has no argument {name!r}; what is replayed is set on the buffer: "
                f"DQN(..., replay_buffer_kwargs={{{name!r}: ...}})."
            )
        self._link: LearnerLink | None = None
        self._next_log = 0

    @property
    def buffer(self) -> NSERReplayBuffer:
        """The model's replay buffer, looked up afresh: ``load_replay_buffer`` replaces it."""
        buffer = getattr(self.model, "replay_buffer", None)
        assert isinstance(buffer, NSERReplayBuffer)  # LearnerLink.install has checked it
        return buffer

    def _on_training_start(self) -> None:
        self._link = LearnerLink(self.model)
        self._link.install()
        fresh = self.num_timesteps == 0
        self.buffer.set_progress(self._progress(), restart=fresh)
        if not fresh:
            self.buffer.mark_break_unless_continued()  # set_env() may have put another environment in place
        self._next_log = self.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        # the last moment before train(): everything collected so far is stored
        buffer = self.buffer
        buffer.set_progress(self._progress())
        if self.num_timesteps < self._next_log:
            return
        self._next_log = self.num_timesteps + LOG_EVERY
        self.logger.record("nser/beta", buffer.beta_now)
        self.logger.record("nser/rule_fraction", buffer.rule_fraction_now)
        self.logger.record("nser/ess", buffer.effective_sample_size)
        self.logger.record("nser/coverage", buffer.coverage)
        self.logger.record("nser/mean_score", buffer.mean_score)
        self.logger.record("nser/stale_writes", buffer.stale_writes)

    def _on_training_end(self) -> None:
        if self._link is not None:
            self._link.remove()

    def _progress(self) -> float:
        # SB3's own figure still holds the last call's value when training starts
        return min(1.0, self.num_timesteps / max(1, int(self.model._total_timesteps)))
