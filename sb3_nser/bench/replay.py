"""What prioritised, rule-weighted replay costs beside SB3's own replay buffer.

Three full buffers, each with the same transitions: SB3's, ours with compiled trees and ours with NumPy alone. Ours have
TD errors of all sizes and an active scorer, so that draws come from rules, TD errors and the uniform floor.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.utils import set_random_seed

from sb3_nser.bench import peers, rescoring
from sb3_nser.bench.report import Measurement, Report, Target
from sb3_nser.bench.timing import Progress, Times, Turn, joined, no_garbage_collection, summarise, take_turns
from sb3_nser.replay import NSERReplayBuffer, Transitions
from sb3_nser.replay._kernels import NO_NUMBA_VARIABLE, kernels

OBSERVATION_SIZE = 8
BATCH_SIZE = 256
EPISODE_LENGTH = 200
SEED = 0
LARGE = 1_000_000
SWEEPS = 6
PASSES = 3
"""Re-scorings of the whole buffer in a sweep."""

_STORY = 4096  # different transitions that a full buffer repeats
_WRITE_CHUNK = 65_536

ADD = "add 1"
ADD_ENTERED = "add 1, priority entered"
SAMPLE = "sample 256"
UPDATE = "update 256"
SAMPLE_UPDATE = "sample + update 256"
STEP = "add 1 + sample + update 256"
RESCORE_TOTAL = "full re-scoring"
RESCORE_LONGEST = "longest call of it"

OPERATIONS = (ADD, ADD_ENTERED, SAMPLE, UPDATE, SAMPLE_UPDATE, STEP)

NOTES = (
    "Each median is over rounds in which the buffers took turns; a ratio is the median over rounds of the ratio within a "
    "round, so it need not be the quotient of the medians.",
    f"'{ADD}' leaves the new transition's priority to the next call that needs it; '{ADD_ENTERED}' makes it pay at once, "
    f"and '{STEP}' (SB3: add 1 + sample 256) includes scoring it by the rules.",
    "Re-scoring uses a scorer that costs next to nothing; a real one adds its own time per chunk of rows.",
)


def cheap_scorer(transitions: Transitions) -> npt.NDArray[Any]:
    """One comparison per row; about a sixth of the rows score."""
    scores: npt.NDArray[np.bool_] = transitions.observations[:, 0] > 1.0
    return scores.astype(np.float32)


class Contender:
    """
    One full buffer and what is timed with it.

    :param backend: ``"sb3"``, ``"numba"`` or ``"numpy"``
    :param rows: size of the buffer
    """

    def __init__(self, backend: str, rows: int) -> None:
        space = spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32)
        actions = spaces.Discrete(2)
        self._ours: NSERReplayBuffer | None = None
        if backend == "sb3":
            self.buffer = ReplayBuffer(rows, space, actions, device="cpu")
        else:
            with _backend(backend):
                self.buffer = self._ours = NSERReplayBuffer(rows, space, actions, device="cpu", rule_warmup=0, seed=SEED)
        self.array_bytes = array_bytes(self.buffer)
        self._story = itertools.cycle(_transitions())
        self._td_errors = itertools.cycle(np.random.default_rng(SEED).lognormal(size=(64, BATCH_SIZE)))

    @property
    def ours(self) -> NSERReplayBuffer:
        """The buffer, which is not SB3's."""
        if self._ours is None:
            raise TypeError("SB3's own buffer has no priorities")
        return self._ours

    def fill(self) -> None:
        """Every row written, with a TD error and a score."""
        for _ in range(self.buffer.buffer_size):
            self.add()
        if self._ours is None:
            return
        rng = np.random.default_rng(SEED)
        for start in range(0, self.buffer.buffer_size, _WRITE_CHUNK):
            slots = np.arange(start, min(start + _WRITE_CHUNK, self.buffer.buffer_size))
            self.ours.update_priorities(slots, rng.lognormal(size=len(slots)))
        self.ours.set_scorer(cheap_scorer)
        self.rescore()

    def add(self) -> None:
        """One transition."""
        self.buffer.add(*next(self._story))

    def add_entered(self) -> float:
        """One transition, and its priority, which asking for the largest TD error writes."""
        self.add()
        return self.enter()

    def enter(self) -> float:
        """Whatever waits to enter the trees does."""
        return 0.0 if self._ours is None else self._ours.max_td_error

    def sample(self) -> None:
        """One batch."""
        self.buffer.sample(BATCH_SIZE)

    def update(self) -> None:
        """New TD errors for the last batch."""
        if self.ours.last_sample is not None:
            self.ours.update_last(next(self._td_errors))

    def sample_update(self) -> None:
        """One batch and its new TD errors."""
        self.sample()
        self.update()

    def step(self) -> None:
        """One step of the environment and one of the learner; SB3's own buffer has nothing to update."""
        self.add()
        self.sample()
        if self._ours is not None:
            self.update()

    def rescore(self) -> list[float]:
        """All rows scored again; microseconds of each ``sample()`` that this takes."""
        self.ours.rescore()
        spent = []
        while not self.ours.scores_complete:
            start = time.perf_counter_ns()
            self.sample()
            spent.append((time.perf_counter_ns() - start) / 1e3)
        return spent


def measure(sizes: Sequence[int], repeats: int, command: str, peers_python: str | None = None) -> Report:
    """
    :param sizes: buffer sizes
    :param repeats: rounds per operation
    :param command: what was run, for the report
    :param peers_python: an interpreter that has the other packages; default this one
    :return: times, memory and targets; limits without a size of their own are held against the largest one
    """
    backends = list(dict.fromkeys((kernels().name, "numpy")))
    shares = [-(-(repeats - index) // SWEEPS) for index in range(min(repeats, SWEEPS))]
    sweeps = [f"sweep {index + 1} of {len(shares)}" for index in range(len(shares))]
    steps = ("filling", *sweeps, "other packages", "re-scoring by rules")
    progress = Progress([f"{rows:,} rows: {what}" for rows in sizes for what in steps])
    compared: list[peers.Found] = []
    rescored: list[rescoring.Rescoring] = []
    measurements: list[Measurement] = []
    memory: dict[int, float] = {}
    set_random_seed(SEED)  # SB3's buffer draws from NumPy's global stream
    for rows in sizes:
        progress.next()
        contenders = {backend: Contender(backend, rows) for backend in ("sb3", *backends)}
        memory[rows] = (contenders["numpy"].array_bytes - contenders["sb3"].array_bytes) / rows
        for contender in contenders.values():
            contender.fill()
        parts: dict[str, list[Times]] = {}
        for rounds in shares:  # a burst of load on the machine then falls on a part of every operation, not on all of one
            progress.next()
            for name in OPERATIONS:
                parts.setdefault(name, []).append(_times(name, contenders, rounds))
            total, longest = _rescoring(contenders, passes=min(rounds, PASSES))
            parts.setdefault(RESCORE_TOTAL, []).append(total)
            parts.setdefault(RESCORE_LONGEST, []).append(longest)
        for name, times in parts.items():
            measurements += summarise(name, rows, joined(times))
        del contenders  # memory and caches are for the next ones
        progress.next()
        compared.append(peers.compare(rows, max(2, repeats // 4), peers_python))
        measurements += compared[-1].measurements
        progress.next()
        rescored.append(rescoring.measure(rows, max(1, min(5, repeats // 20))))
    progress.next()
    largest = sizes.index(max(sizes))
    return Report(
        command,
        measurements,
        [*_targets(measurements, memory, max(sizes)), *compared[largest].targets, *rescored[largest].targets()],
        {
            "memory": [{"rows": rows, "extra_bytes_per_transition": extra} for rows, extra in memory.items()],
            "contenders": compared[largest].contenders,
            "ratios_to_fastest_peer": [ratio for found in compared for ratio in found.ratios],
            "rescoring": [asdict(one) for one in rescored],
        },
        [
            *(f"Extra memory at {rows:,} rows: {extra:.2f} bytes per transition." for rows, extra in memory.items()),
            *(one.note() for one in rescored),
            *compared[largest].absent(),
            *NOTES,
            *peers.NOTES,
        ],
    )


def _times(name: str, contenders: dict[str, Contender], repeats: int) -> Times:
    # turns well below a millisecond: a scheduler that takes the core away for some would hit most of the longer ones, and
    # then their median too
    ours = {backend: one for backend, one in contenders.items() if backend != "sb3"}
    if name == ADD:  # what the last turn left to the next call is done before this one
        return take_turns({key: Turn(one.add, one.enter) for key, one in contenders.items()}, repeats, calls=100)
    if name == ADD_ENTERED:
        return take_turns({key: Turn(one.add_entered, one.enter) for key, one in contenders.items()}, repeats, calls=5)
    if name == SAMPLE:  # the one before the turn enters and scores what was added until now
        return take_turns({key: Turn(one.sample, one.sample) for key, one in contenders.items()}, repeats, calls=1)
    if name == UPDATE:
        return take_turns({key: Turn(one.update, one.sample) for key, one in ours.items()}, repeats, calls=1)
    if name == SAMPLE_UPDATE:
        return take_turns({key: Turn(one.sample_update) for key, one in ours.items()}, repeats, calls=1)
    return take_turns({key: Turn(one.step) for key, one in contenders.items()}, repeats, calls=1)


def _rescoring(contenders: dict[str, Contender], passes: int) -> tuple[Times, Times]:
    total: Times = {key: np.empty(passes) for key in contenders if key != "sb3"}
    longest: Times = {key: np.empty(passes) for key in total}
    with no_garbage_collection():
        for index in range(passes):
            for key in total:
                spent = contenders[key].rescore()
                total[key][index], longest[key][index] = sum(spent), max(spent)
    return total, longest


def _targets(measurements: Sequence[Measurement], memory: dict[int, float], largest: int) -> list[Target]:
    targets = []
    for one in measurements:
        where = f"{one.backend}, {one.rows:,} rows"
        if one.name == ADD and one.rows == largest and one.ratio_to_sb3 is not None:
            targets.append(Target(f"add, ratio to SB3 ({where})", one.ratio_to_sb3, 2.0))
        elif one.name == SAMPLE_UPDATE and one.rows == LARGE:
            targets.append(Target(f"sample + update 256 with rules, µs ({where})", one.median_us, 1000.0))
        elif one.name == RESCORE_LONGEST and one.rows == largest:
            targets.append(Target(f"longest re-scoring call with a cheap scorer, ms ({where})", one.median_us / 1e3, 50.0))
    targets.append(Target(f"extra bytes per transition ({largest:,} rows)", memory[largest], 48.0))
    return targets


def array_bytes(root: object) -> int:
    """
    :param root: any object
    :return: bytes of all NumPy arrays that can be reached through attributes, each counted once, a view as its base
    """
    seen: set[int] = set()
    waiting, total = [root], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            if isinstance(one.base, np.ndarray):
                waiting.append(one.base)
            else:
                total += one.nbytes
        elif isinstance(one, list | tuple):
            waiting += one
        elif not callable(one) and not isinstance(one, ModuleType):  # code holds no data of the buffer
            waiting += getattr(one, "__dict__", {}).values()
    return total


def _transitions() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(SEED)
    observations = rng.standard_normal((_STORY + 1, 1, OBSERVATION_SIZE)).astype(np.float32)
    rewards = rng.standard_normal((_STORY, 1)).astype(np.float32)
    actions = rng.integers(2, size=(_STORY, 1))
    dones = (np.arange(_STORY) % EPISODE_LENGTH == EPISODE_LENGTH - 1)[:, None]
    return [
        (observations[i], observations[i + 1], actions[i], rewards[i], dones[i], [{"TimeLimit.truncated": False}])
        for i in range(_STORY)
    ]


@contextmanager
def _backend(name: str) -> Iterator[None]:
    # trees ask for the switch when they are made, so buffers of both kinds can live in one process
    before = os.environ.get(NO_NUMBA_VARIABLE)
    os.environ[NO_NUMBA_VARIABLE] = "1" if name == "numpy" else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_NUMBA_VARIABLE]
        else:
            os.environ[NO_NUMBA_VARIABLE] = before
