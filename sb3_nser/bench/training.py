"""Whole training runs: environment steps per second of uniform, prioritised and rule-weighted replay, taking turns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml

from sb3_nser.bench import training_worker
from sb3_nser.bench.processes import Worker
from sb3_nser.bench.report import Measurement, Report, Target
from sb3_nser.bench.timing import Progress, Times, summarise
from sb3_nser.bench.training_worker import REPLAYS, TASKS
from sb3_nser.errors import NSERError

LEAST = {"DQN": 0.90, "QRDQN": 0.90, "SAC": 0.95}
"""Environment steps per second, as a share of those with uniform replay, that rules must leave."""

NOTES = (
    "A step is one of the environment, with its share of the gradient steps, as SB3's own loop does them; torch has one "
    "thread. Every run has a process of its own; the runs take turns of "
    + ", ".join(f"{task.turn} steps ({name})" for name, task in TASKS.items())
    + " from where learning has begun.",
    "'ratio to SB3' (uniform replay) is the median over rounds of the time's ratio within a round; targets are of speed. "
    "'overall' in the JSON is the ratio of total times: rare work (judging rules) enters, and so do interruptions.",
    "NSER here has rules from a file and no model to ask.",
)


def measure(algorithms: Sequence[str], rounds: int, command: str) -> Report:
    """
    :param algorithms: names of ``TASKS``
    :param rounds: turns per run
    :param command: what the user typed, for the report
    """
    progress = Progress(list(algorithms))
    measurements: list[Measurement] = []
    targets: list[Target] = []
    overall: list[dict[str, str | float]] = []
    with TemporaryDirectory() as folder:
        for name in algorithms:
            progress.next()
            times = _run(name, rounds, Path(folder))
            measurements += summarise(f"{name} on {TASKS[name].env}, per step", TASKS[name].turn * rounds, times, "uniform")
            for replay in REPLAYS[1:]:
                speed = float(np.median(times["uniform"] / times[replay]))
                total = float(times["uniform"].sum() / times[replay].sum())
                overall.append({"algorithm": name, "replay": replay, "speed": speed, "overall": total})
                if replay == "NSER":
                    targets.append(Target(f"{name}: steps per second, NSER to uniform", speed, LEAST[name], "higher"))
        progress.next()
    return Report(command, measurements, targets, {"speeds": overall}, NOTES, count="steps")


def _run(name: str, rounds: int, folder: Path) -> Times:
    task = TASKS[name]
    rules = folder / f"{name}.yaml"
    rules.write_text(yaml.safe_dump({"format": 1, "rules": [{"rule": one, "pinned": True} for one in task.rules]}), "utf-8")
    times: Times = {replay: np.empty(rounds) for replay in REPLAYS}
    with ExitStack() as stack:
        workers = []
        for replay in REPLAYS:
            command = [sys.executable, "-m", training_worker.__name__, name, replay, str(rules)]
            workers.append(stack.enter_context(Worker(f"{name} with {replay} replay", command)))
        for worker in workers:
            if not worker.wait_until_ready():
                raise NSERError(f"{worker.name} did not start: {worker.reason}")
            worker.ask(steps=task.idle)
        for index in range(-1, rounds):
            for replay, worker in zip(REPLAYS, workers, strict=True):
                spent = worker.ask(steps=task.turn)["us"]
                if index >= 0:
                    times[replay][index] = spent
    return times
