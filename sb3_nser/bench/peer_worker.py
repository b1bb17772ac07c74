"""One prioritised buffer in a process of its own, measured turn by turn on request.

Run as ``python peer_worker.py PEER ROWS`` with any interpreter that has the peer's package; it needs nothing of this one.
It answers each line of JSON on standard input by one on standard output. The first line comes unasked:
``{"ready": true, "version": …}`` or ``{"ready": false, "reason": …}``. A request is ``{"do": operation, "calls": n}``, the
answer ``{"us": microseconds per call}``.

All contenders hold the same transitions: 8 float32 observations, a full buffer, α = 0.6, β = 0.4, priorities of all sizes.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

OBSERVATION_SIZE = 8
BATCH_SIZE = 256
ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-2
SEED = 0
_ROUNDS = 64  # batches of TD errors that are used in turn


class Workload:
    """
    The numbers every contender is given.

    :param rows: transitions in the full buffer
    """

    def __init__(self, rows: int) -> None:
        import numpy as np

        rng = np.random.default_rng(SEED)
        self.rows = rows
        self.observations = rng.standard_normal((rows + 1, OBSERVATION_SIZE)).astype(np.float32)
        self.rewards = rng.standard_normal(rows).astype(np.float32)
        self.actions = rng.integers(2, size=(rows, 1))
        self.dones = np.arange(rows) % 200 == 199
        self.td_errors = rng.lognormal(size=rows)
        self.updates = rng.lognormal(size=(_ROUNDS, BATCH_SIZE))


class Contender:
    """
    What every buffer can be asked to do. ``sample`` remembers what ``update`` needs.

    :param work: the numbers
    """

    package = ""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self._at = 0

    def add(self) -> None:
        """One transition."""
        raise NotImplementedError

    def sample(self) -> None:
        """A batch with its importance weights."""
        raise NotImplementedError

    def update(self) -> None:
        """New TD errors for the last batch."""
        raise NotImplementedError

    def rewrite(self) -> None:
        """New TD errors for all rows, by the way that is fastest in this package."""
        raise NotImplementedError

    def sample_update(self) -> None:
        """One gradient step's share."""
        self.sample()
        self.update()

    def step(self) -> None:
        """One environment step and one gradient step."""
        self.add()
        self.sample()
        self.update()

    def settle(self) -> None:
        """Whatever a call has put off is done."""
        self.sample()

    def _next(self) -> int:
        self._at = (self._at + 1) % _ROUNDS
        return self._at


class Cpprb(Contender):
    """``cpprb.PrioritizedReplayBuffer``."""

    package = "cpprb"

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        import cpprb
        import numpy as np

        fields = {
            "obs": {"shape": OBSERVATION_SIZE},
            "act": {"shape": 1, "dtype": np.int64},
            "rew": {},
            "next_obs": {"shape": OBSERVATION_SIZE},
            "done": {},
        }
        self.buffer = cpprb.PrioritizedReplayBuffer(work.rows, fields, alpha=ALPHA, eps=EPSILON)
        self.buffer.add(
            obs=work.observations[:-1],
            act=work.actions,
            rew=work.rewards,
            next_obs=work.observations[1:],
            done=work.dones,
        )
        self._all = np.arange(work.rows)
        self.rewrite()

    def add(self) -> None:
        """One transition."""
        i, work = self._next(), self.work
        self.buffer.add(
            obs=work.observations[i],
            act=work.actions[i],
            rew=work.rewards[i],
            next_obs=work.observations[i + 1],
            done=work.dones[i],
        )

    def sample(self) -> None:
        """A batch, weights among its entries."""
        self._drawn = self.buffer.sample(BATCH_SIZE, beta=BETA)

    def update(self) -> None:
        """By index."""
        self.buffer.update_priorities(self._drawn["indexes"], self.work.updates[self._next()])

    def rewrite(self) -> None:
        """By index."""
        self.buffer.update_priorities(self._all, self.work.td_errors)


class TorchRL(Contender):
    """``torchrl.data.ReplayBuffer`` with ``PrioritizedSampler``."""

    package = "torchrl"

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        import torch as th
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer

        sampler = PrioritizedSampler(work.rows, alpha=ALPHA, beta=BETA, eps=EPSILON)
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(work.rows), sampler=sampler, batch_size=BATCH_SIZE)
        observations = th.from_numpy(work.observations)
        columns = {
            "obs": observations[:-1],
            "act": th.from_numpy(work.actions),
            "rew": th.from_numpy(work.rewards),
            "next_obs": observations[1:],
            "done": th.from_numpy(work.dones),
        }
        self._rows = [TensorDict({name: values[i] for name, values in columns.items()}, []) for i in range(_ROUNDS)]
        self.buffer.extend(TensorDict(columns, [work.rows]))
        self._updates = th.from_numpy(work.updates).float()
        self._all, self._td_errors = th.arange(work.rows), th.from_numpy(work.td_errors).float()
        self.rewrite()

    def add(self) -> None:
        """One transition, its tensors made beforehand."""
        self.buffer.add(self._rows[self._next()])

    def sample(self) -> None:
        """A batch, weights among what is told about it."""
        _, self._drawn = self.buffer.sample(return_info=True)

    def update(self) -> None:
        """By index."""
        self.buffer.update_priority(self._drawn["index"], self._updates[self._next()])

    def rewrite(self) -> None:
        """By index."""
        self.buffer.update_priority(self._all, self._td_errors)


class Tianshou(Contender):
    """``tianshou.data.PrioritizedReplayBuffer``."""

    package = "tianshou"

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        import numpy as np
        from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

        never = np.zeros(work.rows, dtype=bool)
        columns = {
            "obs": work.observations[:-1],
            "act": work.actions,
            "rew": work.rewards,
            "terminated": work.dones,
            "truncated": never,
            "done": work.dones,
            "obs_next": work.observations[1:],
        }
        self.buffer = PrioritizedReplayBuffer(work.rows, alpha=ALPHA, beta=BETA)
        self.buffer.update(ReplayBuffer.from_data(**columns))  # its add() would take minutes for a million rows
        self._rows = [Batch(**{name: values[i] for name, values in columns.items()}, info={}) for i in range(_ROUNDS)]
        self._all = np.arange(work.rows)
        self.rewrite()

    def add(self) -> None:
        """One transition, its batch made beforehand."""
        self.buffer.add(self._rows[self._next()])

    def sample(self) -> None:
        """A batch, weights among its entries."""
        _, self._drawn = self.buffer.sample(BATCH_SIZE)

    def update(self) -> None:
        """By index."""
        self.buffer.update_weight(self._drawn, self.work.updates[self._next()])

    def rewrite(self) -> None:
        """By index."""
        self.buffer.update_weight(self._all, self.work.td_errors)


PEERS: dict[str, type[Contender]] = {"cpprb": Cpprb, "torchrl": TorchRL, "tianshou": Tianshou}


def answer(contender: Contender, request: dict[str, Any]) -> dict[str, Any]:
    """
    One turn: what was put off is done first, then ``calls`` calls are timed.

    :param contender: the buffer
    :param request: ``{"do": operation, "calls": n}``
    :return: ``{"us": microseconds per call}``
    """
    run, calls = getattr(contender, request["do"]), int(request["calls"])
    contender.settle()
    if request["do"] == "update":  # each call with a batch of its own: drawn outside the clock
        spent = 0
        for _ in range(calls):
            contender.sample()
            start = time.perf_counter_ns()
            run()
            spent += time.perf_counter_ns() - start
    else:
        start = time.perf_counter_ns()
        for _ in range(calls):
            run()
        spent = time.perf_counter_ns() - start
    return {"us": spent / 1e3 / calls}


def _one_thread() -> None:
    try:
        import torch as th
    except ImportError:  # not every peer needs it
        return
    th.set_num_threads(1)


def serve(kind: type[Contender], rows: int) -> None:
    """
    Make the contender, then answer until standard input ends.

    :param kind: what is measured
    :param rows: transitions in the full buffer
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print must not come between the answers
    try:
        if importlib.util.find_spec(kind.package) is None:
            raise ModuleNotFoundError(f"No module named {kind.package!r}")
        _one_thread()
        contender = kind(Workload(rows))
        hello = {"ready": True, "version": version(kind.package)}
    except Exception as error:  # absent, or built for another version of a library: either way it cannot be measured
        hello = {"ready": False, "reason": f"{type(error).__name__}: {error}"}
    print(json.dumps(hello), file=replies, flush=True)
    if not hello["ready"]:
        return
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        print(json.dumps(answer(contender, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # the folder of this file is no place for a peer to import from
    serve(PEERS[sys.argv[1]], int(sys.argv[2]))
