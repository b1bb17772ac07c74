"""``python -m sb3_nser.bench training`` runs and writes what it promises."""

import json
import math
from pathlib import Path

import pytest

from sb3_nser.bench.__main__ import TRAINED, main
from sb3_nser.bench.training import LEAST
from sb3_nser.bench.training_worker import REPLAYS, TASKS
from sb3_nser.rules import parse_rule


def test_every_run_is_timed_and_compared_with_uniform_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "training.json"
    assert main(["training", "--quick", "--algorithms", "SAC", "--json", str(file)]) == 0
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["command"] == "python -m sb3_nser.bench training --algorithms SAC --repeats 1 --json training.json"
    assert [one["backend"] for one in report["measurements"]] == list(REPLAYS)
    assert all(one["median_us"] > 0 for one in report["measurements"])
    (target,) = report["targets"]
    assert target["better"] == "higher" and target["limit"] == 0.95 and math.isfinite(target["value"])
    assert {one["replay"] for one in report["speeds"]} == {"PER", "NSER"}
    assert "| steps" in capsys.readouterr().out


def test_every_task_has_rules_and_a_limit() -> None:
    assert set(TRAINED) == set(TASKS) == set(LEAST)
    for task in TASKS.values():
        assert all(parse_rule(text) for text in task.rules)
        assert task.idle > task.options.get("learning_starts", 100)
        assert task.turn % task.options.get("train_freq", 1) == 0  # every turn has the same number of gradient steps


def test_an_unknown_algorithm_is_told_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["training", "--algorithms", "PPO"])
    assert stopped.value.code == 2
    assert "invalid choice: 'PPO'" in capsys.readouterr().err
