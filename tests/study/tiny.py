"""A study that takes seconds, to be changed by each test."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from sb3_nser.study.load import LoadedStudy, parse_study

HERE = Path(__file__).parent
RULES = ["IF pole_angular_velocity > 0.1 THEN push_right", "IF pole_angular_velocity < -0.1 THEN push_left"]
TINY: dict[str, Any] = {
    "name": "tiny",
    "environments": [{"id": "CartPole-v1", "range": [0, 500], "threshold": 100, "rules": RULES}],
    "algorithm": {
        "name": "DQN",
        "hyperparameters": {
            "learning_rate": "1e-3",
            "learning_starts": 50,
            "buffer_size": 2000,
            "policy_kwargs": {"net_arch": [8]},
        },
    },
    "buffer": {"rule_warmup": 0},
    "callback": {"every": 100},
    "variants": ["uniform", "per"],
    "seeds": 1,
    "steps": 200,
    "evaluation": {"every": 100, "episodes": 2},
    "resamples": 200,
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(TINY), **changes}


def dumped(**changes: Any) -> str:
    plain = json.loads(json.dumps(changed(**changes)))  # a list that stands twice would become an alias
    return yaml.safe_dump(plain, sort_keys=False)


def loaded(folder: Path | None = None, **changes: Any) -> LoadedStudy:
    return parse_study(dumped(**changes), folder or HERE)


def write(path: Path, **changes: Any) -> Path:
    path.write_text(dumped(**changes))
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sb3_nser.cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    """The repository and this folder, whose modules register environments, for processes of their own."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]), "COLUMNS": "200"}


def sb3_nser(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, env=environment())
