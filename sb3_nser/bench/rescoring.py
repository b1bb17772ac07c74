"""What it costs to score a full buffer again by real rules, in a process of its own, so that its memory is its own.

Run as ``python -m sb3_nser.bench.rescoring ROWS PASSES``; it prints one line of JSON, the fields of ``Rescoring``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch as th

from sb3_nser.bench.own_worker import filled
from sb3_nser.bench.peer_worker import OBSERVATION_SIZE, SEED, Workload
from sb3_nser.bench.report import Target
from sb3_nser.errors import NSERError
from sb3_nser.replay import NSERReplayBuffer, Scorer, Transitions
from sb3_nser.replay.records import Array

RULES = 16
LITERALS = 2
BATCH_SIZE = 256
TAU = 0.1
LEAST_ROWS = 1_000_000
TIMES_PLAIN, LONGEST_MS, EXTRA_MIB = 3.0, 50.0, 256.0


@dataclass(frozen=True)
class Rescoring:
    """
    What one run found; times are medians over passes, the longest call is the median of each pass's longest.

    :param rows: transitions
    :param rules: number of rules
    :param literals: conditions in all of them
    :param total_ms: all ``sample()`` calls of a pass
    :param draws_ms: as many ``sample()`` calls with nothing to score
    :param calls: how many they are
    :param longest_ms: longest of them
    :param plain_ms: σ((x − θ)/w) in plain NumPy, once per literal over its column of the stored observations
    :param compared_ms: x > θ instead
    :param extra_mib: how far the process grew at most, above where it stood with the buffer full
    """

    rows: int
    rules: int
    literals: int
    total_ms: float
    draws_ms: float
    calls: int
    longest_ms: float
    plain_ms: float
    compared_ms: float
    extra_mib: float

    def targets(self) -> list[Target]:
        """:return: limits and whether they are kept; smaller buffers have none"""
        if self.rows < LEAST_ROWS:
            return []
        where = f"{self.rules} rules, {self.rows:,} rows"
        return [
            Target(f"re-scoring, ratio to plain NumPy ({where})", self.total_ms / self.plain_ms, TIMES_PLAIN),
            Target(f"re-scoring, longest sample() call, ms ({where})", self.longest_ms, LONGEST_MS),
            Target(f"re-scoring, extra memory, MiB ({where})", self.extra_mib, EXTRA_MIB),
        ]

    def note(self) -> str:
        """:return: a sentence for the reader"""
        return (
            f"Re-scoring {self.rows:,} rows by {self.rules} rules ({self.literals} conditions): {self.total_ms:.0f} ms over "
            f"{self.calls} sample() calls ({self.draws_ms:.0f} ms of it for the draws), the longest {self.longest_ms:.1f} ms, "
            f"{self.extra_mib:.0f} MiB more memory at most. One NumPy pass per condition over the same columns takes "
            f"{self.plain_ms:.0f} ms with the conditions' own soft thresholds, {self.compared_ms:.0f} ms with comparisons."
        )


def measure(rows: int, passes: int) -> Rescoring:
    """
    Measure in a process of its own.

    :param rows: transitions
    :param passes: how often everything is scored again
    :raises NSERError: if the process fails
    """
    command = [sys.executable, "-m", __name__, str(rows), str(passes)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise NSERError(f"re-scoring could not be measured: {done.stderr.strip().splitlines()[-1:]}")
    return Rescoring(**json.loads(done.stdout))


def _rules(buffer: NSERReplayBuffer) -> tuple[Scorer, list[tuple[int, float]]]:
    # imported here: the trees and buffers alone are measured without the rooms of the rules
    from sb3_nser.logic import RuleBank, scorer
    from sb3_nser.rules.text import parse_rule
    from sb3_nser.vocabulary import vocabulary_for

    vocabulary = vocabulary_for(buffer.observation_space, buffer.action_space, None, "auto")
    names, actions = [feature.name for feature in vocabulary.features], vocabulary.actions.names
    rng = np.random.default_rng(SEED)
    literals, rules = [], []
    for index in range(RULES):
        columns = rng.choice(OBSERVATION_SIZE, LITERALS, replace=False).tolist()
        own = [(column, round(float(rng.uniform(0.2, 1.0)), 3)) for column in columns]
        conditions = " AND ".join(f"{names[column]} > {limit}" for column, limit in own)
        rules.append(parse_rule(f"IF {conditions} THEN {actions[index % len(actions)]}"))
        literals += own
    score = scorer(RuleBank(rules, vocabulary, {}), vocabulary)

    def score_transitions(rows: Transitions) -> Array:
        return score(rows.observations, rows.next_observations, rows.actions)

    return score_transitions, literals


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e6


def _plain(buffer: NSERReplayBuffer, literals: Sequence[tuple[int, float]], soft: bool) -> None:
    for column, limit in literals:
        x = buffer.observations[:, 0, column]
        if soft:
            1.0 / (1.0 + np.exp((np.float32(limit) - x) / np.float32(TAU)))
        else:
            np.greater(x, limit)


def _peak_kib(forget: bool = False) -> float:
    """
    :param forget: begin anew from what the process has now, where the system can (Linux)
    :return: the most memory the process has had
    """
    try:
        if forget:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return float(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)


def main(rows: int, passes: int) -> None:
    """
    Measure in this process and print the result.

    :param rows: transitions
    :param passes: how often everything is scored again
    """
    th.set_num_threads(1)
    buffer = filled(NSERReplayBuffer, Workload(rows), rule_warmup=0, seed=SEED)
    score, literals = _rules(buffer)
    buffer.mark_linked()
    buffer.sample(BATCH_SIZE)
    before = _peak_kib(forget=True)
    buffer.set_scorer(score)
    passes_found: list[tuple[float, ...]] = []
    for _ in range(passes):
        buffer.rescore()
        spent: list[float] = []
        while not buffer.scores_complete or not spent:
            spent.append(_timed(lambda: buffer.sample(BATCH_SIZE)))
        draws = sum(_timed(lambda: buffer.sample(BATCH_SIZE)) for _ in spent)
        after = _peak_kib()  # before the plain passes, whose memory is theirs
        plain, compared = (_timed(partial(_plain, buffer, literals, soft)) for soft in (True, False))
        if not passes_found:
            extra = (after - before) / 1024
        passes_found.append((sum(spent), draws, max(spent), plain, compared))
    total, draws, longest, plain, compared = np.median(passes_found, axis=0).tolist()
    calls = len(spent)
    found = Rescoring(rows, RULES, len(literals), total, draws, calls, longest, plain, compared, extra)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
