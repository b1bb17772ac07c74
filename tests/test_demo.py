"""``sb3-nser demo`` as a user runs it, and its replay without a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ENVIRONMENTS = ("CartPole-v1", "MiniGrid-DoorKey-5x5-v0")


def sb3_nser(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sb3_nser.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, "COLUMNS": "120", **env})


def table_row(output: str, name: str) -> list[str]:
    line = next(line for line in output.splitlines() if name in line)
    return [cell.strip() for cell in line.strip("│ ").split("│")][1:]


@pytest.mark.llm
@pytest.mark.slow
def test_demo_leaves_everything_behind_and_replays_bit_for_bit(ollama_host: str, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    # --blocking: so few steps would be over before the model has answered
    done = sb3_nser("demo", "--out", str(first), "--steps", "4000", "--blocking", OLLAMA_HOST=ollama_host)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"the Ollama server at {ollama_host}" in done.stdout and "the model proposed" in done.stdout
    assert int(table_row(done.stdout, "rules proposed")[0]) >= 1
    for env_id in ENVIRONMENTS:
        assert (first / env_id / "model.zip").exists()
        assert "IF " in (first / env_id / "rules.yaml").read_text() or env_id != "CartPole-v1"
        events = EventAccumulator(str(next((first / env_id / "tensorboard").iterdir())))
        events.Reload()
        assert "nser/rules_active" in events.Tags()["scalars"]
    picture = imread(first / "learning_curve.png")
    assert picture.shape[0] > 300 and np.ptp(picture) > 0.5
    replayed = sb3_nser(
        "demo",
        "--out",
        str(again),
        "--steps",
        "4000",
        "--replay-record",
        str(first / "induction.jsonl"),
        OLLAMA_HOST="127.0.0.1:9",
    )
    assert replayed.returncode == 0, replayed.stderr[-3000:]
    assert "differ" not in replayed.stderr
    for row in ("fingerprint of the weights", "greedy score", "rules proposed", "LLM calls"):
        assert table_row(replayed.stdout, row) == table_row(done.stdout, row)
    for env_id in ENVIRONMENTS:
        assert (first / env_id / "rules.yaml").read_bytes() == (again / env_id / "rules.yaml").read_bytes()


def test_bad_arguments_are_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    for arguments, words in [
        (["--steps", "10"], "--steps 10"),
        (["--out", str(other)], "holds other files"),
        (["--replay-record", str(tmp_path / "absent.jsonl"), "--out", str(tmp_path / "x")], "does not exist"),
        (["--host", "127.0.0.1:9", "--out", str(tmp_path / "x")], "no Ollama server answers at 127.0.0.1:9"),
    ]:
        done = sb3_nser("demo", *arguments)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert (other / "thesis.tex").exists()


def test_version_and_help_do_not_need_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from sb3_nser.cli import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("sb3-nser ")
