"""``run_cell``: one run of the grid, from a description to the contents of its result files."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch as th

import sb3_nser
from sb3_nser.callbacks import RuleInductionCallback
from sb3_nser.errors import ConfigurationError
from sb3_nser.replay import PriorityCallback
from sb3_nser.rules.table import summary
from sb3_nser.study.cells import CELL_FORMAT, Cell
from sb3_nser.study.environments import algorithm_class, arguments_of, make_vec_env
from sb3_nser.study.evaluation import Evaluator
from sb3_nser.study.replays import callback_of, replay_of

PACKAGES = ("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy", "scipy", "minigrid")
RESULT = "result.json"


def run_cell(cell: Cell, progress: Callable[[int], None] = lambda step: None, record: Path | None = None) -> dict[str, bytes]:
    """
    Train one cell. It writes nothing but a temporary folder, so it may run in any process on any machine.

    :param cell: the run
    :param progress: called with the environment steps done so far
    :param record: a copy of the record that the cell names, where the cell's own path leads nowhere on this machine
    :return: file name -> contents: ``result.json`` and, with rules, ``rules.yaml`` and ``induction.jsonl``
    :raises ConfigurationError: if the cell cannot be built
    """
    th.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="sb3-nser-") as place:
        folder = Path(place)
        rounds: list[dict[str, Any]] = []
        here = cell if record is None else cell.model_copy(update={"replay_record": str(record)})
        model, callback = build(here, folder, lambda news: rounds.append(asdict(news)))
        initial = fingerprint(model)
        rules = callback if isinstance(callback, RuleInductionCallback) else None
        evaluator = Evaluator(cell, rules, progress)
        started = time.perf_counter()
        model.learn(cell.steps, callback=[callback, evaluator] if callback is not None else [evaluator])
        seconds = time.perf_counter() - started - evaluator.seconds
        result = {
            "format": CELL_FORMAT,
            "key": cell.key,
            "cell": cell.model_dump(mode="json"),
            "versions": versions(),
            "initial": initial,
            "first_actions": evaluator.first_actions,
            "final": fingerprint(model),
            "evaluations": evaluator.rows,
            "rounds": rounds,
            "rules": [] if rules is None else [_rule(entry) for entry in rules.book.entries],
            "cost": {
                "seconds": seconds,
                "evaluation_seconds": evaluator.seconds,
                "steps_per_second": _pace(evaluator.rows),
                **({} if rules is None else _cost(rules)),
            },
        }
        files = {RESULT: json.dumps(_finite(result), allow_nan=False).encode()}
        for name in ("rules.yaml", "induction.jsonl"):
            if (folder / name).is_file():
                files[name] = (folder / name).read_bytes()
        return files


def build(cell: Cell, folder: Path, on_round: Any = None, **small: Any) -> tuple[Any, PriorityCallback | None]:
    """
    :param cell: the run
    :param folder: where rules and record go
    :param on_round: called with each ``InductionRound``
    :param small: arguments of the algorithm that are replaced, to try whether a cell can be built
    :return: the algorithm and the callback that feeds its buffer
    :raises ConfigurationError: if the cell cannot be built
    """
    # the networks and the environments of all variants of a seed begin alike
    random.seed(cell.seed)
    np.random.seed(cell.seed)
    th.manual_seed(cell.seed)
    name = cell.algorithm["name"]
    arguments = {"device": "cpu", **arguments_of(name, cell.algorithm["hyperparameters"]), **small}
    gamma = float(arguments.get("gamma", 0.99))
    callback = callback_of(cell, folder, on_round)
    env = make_vec_env(cell.env, cell.algorithm["normalize"], gamma)
    try:
        replay = replay_of(cell, gamma, arguments)
        model = algorithm_class(name)(cell.algorithm["policy"], env, seed=cell.seed, **replay, **arguments)
    except (TypeError, ValueError, AssertionError, KeyError) as error:  # SB3's own complaints about arguments
        raise ConfigurationError(f"{name} on {cell.environment} cannot be built: {error}") from error
    return model, callback


def versions() -> dict[str, str | None]:
    """
    :return: exact versions of what a result depends on; ``commit`` of this package where it is a git checkout, with ``-dirty``
        if its own files differ from it
    """
    found: dict[str, str | None] = {"sb3-nser": sb3_nser.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    found["commit"] = _commit()
    return found


def fingerprint(model: Any) -> str:
    """:return: twelve hexadecimal digits over all parameters; equal for models that are equal bit for bit"""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return digest.hexdigest()[:12]


def _commit() -> str | None:
    place = Path(sb3_nser.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != place.parent.resolve():
            return None  # installed inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _rule(entry: Any) -> dict[str, Any]:
    return {**summary(entry), "first_step": entry.first_step, "history": [list(pair) for pair in entry.history]}


def _cost(rules: RuleInductionCallback) -> dict[str, float]:
    budget = rules.budget
    return {
        "llm_calls": budget.calls,
        "llm_failures": budget.failures,
        "llm_seconds": budget.seconds,
        "llm_tokens": budget.tokens,
        "seconds_waited": rules.session.seconds_waited,
    }


def _pace(rows: list[dict[str, Any]]) -> float:
    """Environment steps per second of training; what precedes the first evaluation (compilation, say) does not count."""
    first = rows[1] if len(rows) > 2 else rows[0]
    return float((rows[-1]["step"] - first["step"]) / max(rows[-1]["seconds"] - first["seconds"], 1e-9))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
