"""Prioritised replay against the prioritised buffers of other packages, each in a process of its own, taking turns."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sb3_nser.bench import own_worker, peer_worker
from sb3_nser.bench.processes import Worker
from sb3_nser.bench.report import Measurement, Target
from sb3_nser.bench.timing import Times, summarise
from sb3_nser.replay._kernels import NO_NUMBA_VARIABLE, kernels

PEERS = tuple(peer_worker.PEERS)
OURS = ("numba", "numpy")

OPERATIONS = {
    "PER: add 1": ("add", 100),
    "PER: sample 256": ("sample", 4),
    "PER: update 256": ("update", 4),
    "PER: sample + update 256": ("sample_update", 4),
    "PER: add 1 + sample + update 256": ("step", 4),
    "PER: rewrite all": ("rewrite", 4),
}
"""Name of a measurement: method of a contender, calls per turn."""

_PATH = re.compile(r"(?<!\S)/\S+")  # reports name no folders
_ONLY_PRIORITISED = ("update", "sample_update", "rewrite")
REWRITE_MS = 5.0
LEAST_ROWS = 1_000_000
"""Smaller buffers are measured, but have no limits."""

NOTES = (
    "'PER: …' compares plain prioritised replay, without rules (α 0.6, β 0.4), with other packages' buffers; every buffer has "
    "a process of its own and the turns go round. Before each turn one batch is drawn outside the clock; 'update' draws each "
    "batch outside the clock.",
    "Batches come as each package gives them: ours and SB3's as torch tensors, cpprb's and tianshou's as NumPy arrays.",
)


@dataclass(frozen=True)
class Found:
    """
    What the comparison gave.

    :param measurements: times, the ratio to SB3's buffer where that has a counterpart
    :param targets: limits, of which those against peers only where a peer was there
    :param contenders: by name: version, or why it was not measured
    :param ratios: by operation and backend of ours: median over rounds of the ratio to the fastest peer
    """

    measurements: list[Measurement]
    targets: list[Target]
    contenders: dict[str, dict[str, str | None]]
    ratios: list[dict[str, str | float | int]]

    def absent(self) -> list[str]:
        """:return: a sentence for each contender that could not be measured"""
        return [
            f"{name} was not measured: {one['not_measured']}" for name, one in self.contenders.items() if "not_measured" in one
        ]


def compare(rows: int, rounds: int, python: str | None = None, tell: Callable[[str], None] = lambda text: None) -> Found:
    """
    :param rows: transitions in every buffer
    :param rounds: turns per contender and operation
    :param python: an interpreter that has the peers; default this one
    :param tell: told what is being done
    """
    ours = [name for name in ("sb3", *OURS) if name != "numba" or kernels().name == "numba"]
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(name, rows, python or sys.executable)) for name in (*ours, *PEERS)]
        present = [worker for worker in workers if worker.wait_until_ready()]
        contenders: dict[str, dict[str, str | None]] = {}
        for worker in workers:
            why = {} if worker.ready else {"not_measured": _PATH.sub("…", worker.reason)}
            contenders[worker.name] = {"version": worker.version, **why}
        times: dict[str, Times] = {}
        for name, (method, calls) in OPERATIONS.items():
            tell(name)
            times[name] = _turns(present, method, calls, rounds if method != "rewrite" else max(3, rounds // 20))
    measurements = [one for name, found in times.items() for one in summarise(name, rows, found)]
    ratios: list[dict[str, str | float | int]] = [
        {"name": name, "backend": backend, "rows": rows, "fastest_peer": peer, "ratio": ratio}
        for name, found in times.items()
        for backend, peer, ratio in _to_fastest_peer(found)
    ]
    return Found(measurements, _targets(measurements, ratios, rows), contenders, ratios)


def _worker(name: str, rows: int, python: str) -> Worker:
    if name not in PEERS:
        command = [sys.executable, "-m", own_worker.__name__]
    else:
        command = [python, str(Path(peer_worker.__file__).resolve())]
    return Worker(name, [*command, name, str(rows)], {NO_NUMBA_VARIABLE: "1" if name == "numpy" else "0"})


def _turns(workers: Sequence[Worker], method: str, calls: int, rounds: int) -> Times:
    taking_part = [one for one in workers if one.name != "sb3" or method not in _ONLY_PRIORITISED]
    times: Times = {one.name: np.empty(rounds) for one in taking_part}
    for index in range(-1, rounds):  # the first round is thrown away
        for one in taking_part:
            spent = one.ask(do=method, calls=calls)["us"]
            if index >= 0:
                times[one.name][index] = spent
    return times


def _to_fastest_peer(times: Times) -> list[tuple[str, str, float]]:
    peers = {name: float(np.median(times[name])) for name in PEERS if name in times}
    if not peers:
        return []
    fastest = min(peers, key=peers.__getitem__)
    return [(name, fastest, float(np.median(times[name] / times[fastest]))) for name in OURS if name in times]


def _targets(measurements: Sequence[Measurement], ratios: Sequence[dict[str, str | float | int]], rows: int) -> list[Target]:
    targets: list[Target] = []
    if rows < LEAST_ROWS:
        return targets
    for one in ratios:
        if OPERATIONS[str(one["name"])][0] in ("sample", "update", "sample_update"):
            name = f"{one['name']}, ratio to {one['fastest_peer']} ({one['backend']}, {rows:,} rows)"
            targets.append(Target(name, float(one["ratio"]), 1.0 if one["backend"] == "numba" else 2.0))
    for found in measurements:
        if OPERATIONS[found.name][0] == "rewrite" and found.backend in OURS:
            targets.append(Target(f"PER: rewrite all, ms ({found.backend}, {rows:,} rows)", found.median_us / 1e3, REWRITE_MS))
    return targets
