"""Our buffer and SB3's, each in a process of its own; the protocol is that of ``peer_worker``.

Run as ``python -m sb3_nser.bench.own_worker CONTENDER ROWS``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_nser.bench.peer_worker import (
    ALPHA,
    BATCH_SIZE,
    BETA,
    EPSILON,
    OBSERVATION_SIZE,
    SEED,
    Contender,
    Workload,
    serve,
)
from sb3_nser.replay import NSERReplayBuffer


class Ours(Contender):
    """``NSERReplayBuffer`` as prioritised replay, without rules."""

    package = "sb3_nser"

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self.buffer: Any = filled(NSERReplayBuffer, work, alpha=ALPHA, beta=BETA, beta_final=BETA, epsilon=EPSILON, seed=SEED)
        self.rewrite()

    def add(self) -> None:
        """One transition."""
        self.buffer.add(*_row(self.work, self._next()))

    def sample(self) -> None:
        """A batch; weights are in ``last_sample``."""
        self.buffer.sample(BATCH_SIZE)

    def update(self) -> None:
        """As the learner link does it."""
        self.buffer.update_last(self.work.updates[self._next()])

    def rewrite(self) -> None:
        """All rows at once."""
        self.buffer.rewrite_td_errors(self.work.td_errors)


class HostBuffer(Contender):
    """SB3's own buffer: uniform, nothing to update."""

    package = "stable_baselines3"

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self.buffer: Any = filled(ReplayBuffer, work)

    def add(self) -> None:
        """One transition."""
        self.buffer.add(*_row(self.work, self._next()))

    def sample(self) -> None:
        """A uniform batch."""
        self.buffer.sample(BATCH_SIZE)

    def step(self) -> None:
        """Without priorities."""
        self.add()
        self.sample()


def filled(kind: Callable[..., Any], work: Workload, **options: Any) -> Any:
    """
    :param kind: SB3's buffer class or a subclass
    :param work: what it is filled with
    :param options: further arguments
    :return: the full buffer
    """
    space = spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32)
    buffer = kind(work.rows, space, spaces.Discrete(2), device="cpu", **options)
    for i in range(work.rows):
        buffer.add(*_row(work, i))
    return buffer


def _row(work: Workload, i: int) -> tuple[Any, ...]:
    here = slice(i, i + 1)
    return (
        work.observations[here],
        work.observations[i + 1 : i + 2],
        work.actions[here],
        work.rewards[here],
        work.dones[here],
        [{}],
    )


OWN: dict[str, type[Contender]] = {"sb3": HostBuffer, "numba": Ours, "numpy": Ours}


if __name__ == "__main__":
    serve(OWN[sys.argv[1]], int(sys.argv[2]))
