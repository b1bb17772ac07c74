"""Times of several contenders, taken turn by turn, so that a noisy neighbour disturbs all of them alike."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sb3_nser.bench.report import Measurement

Times = dict[str, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Turn:
    """
    What one contender does in its turn.

    :param run: timed
    :param before: done once before the turn, not timed
    """

    run: Callable[[], object]
    before: Callable[[], object] | None = None


def take_turns(turns: dict[str, Turn], rounds: int, calls: int) -> Times:
    """
    Every round gives each contender one turn of ``calls`` calls: A B C A B C …. A first round is thrown away.

    :param turns: by contender
    :param rounds: number of rounds; more makes medians steadier
    :param calls: calls per turn; more lets the clock's own cost count less, and interruptions more
    :return: microseconds per call, one per round, by contender
    """
    times: Times = {name: np.empty(rounds) for name in turns}
    with no_garbage_collection():
        for index in range(-1, rounds):
            for name, turn in turns.items():
                if turn.before is not None:
                    turn.before()
                run = turn.run
                start = time.perf_counter_ns()
                for _ in range(calls):
                    run()
                spent = time.perf_counter_ns() - start
                if index >= 0:
                    times[name][index] = spent / 1e3 / calls
    return times


def joined(parts: Sequence[Times]) -> Times:
    """
    :param parts: times of the same contenders
    :return: all their rounds
    """
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def summarise(name: str, rows: int, times: Times, reference: str = "sb3") -> list[Measurement]:
    """
    :param name: the operation
    :param rows: transitions in the full buffer
    :param times: microseconds by contender, rounds paired
    :param reference: the contender that ratios are taken to, where it took part
    :return: one measurement per contender
    """
    found = []
    for backend, values in times.items():
        ratio = None
        if reference in times and backend != reference:
            ratio = float(np.median(values / times[reference]))
        low, middle, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
        found.append(Measurement(name, backend, rows, middle, (low, high), ratio))
    return found


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's cyclic collector waits, as in ``timeit``."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Progress:
    """
    One line on standard error: rewritten in a terminal, else a line per step.

    :param steps: names of all steps in their order
    """

    def __init__(self, steps: Sequence[str]) -> None:
        self._steps = list(steps)
        self._done = 0
        self._terminal = sys.stderr.isatty()

    def next(self) -> None:
        """The next step begins; after the last one the line is cleared."""
        ended = self._done == len(self._steps)
        text = "" if ended else f"[{self._done + 1}/{len(self._steps)}] {self._steps[self._done]}"
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif not ended:
            print(text, file=sys.stderr, flush=True)
        self._done += 1
