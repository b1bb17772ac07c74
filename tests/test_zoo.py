"""rl-baselines3-zoo's own command line with the example configuration, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stable_baselines3 import DQN

pytest.importorskip("rl_zoo3")
ROOT = Path(__file__).parent.parent


def train(folder: Path, *more: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rl_zoo3.train", "--algo", "dqn", "--env", "CartPole-v1", "--num-threads", "1"]
    command += ["-conf", str(ROOT / "examples/zoo/dqn.yml"), "-f", str(folder), "--eval-freq", "-1", "--seed", "1", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=folder, env={**os.environ, **env})


@pytest.mark.llm
def test_zoo_trains_with_rules_from_the_example_configuration(ollama_host: str, tmp_path: Path) -> None:
    done = train(tmp_path, "-n", "4500", env={"OLLAMA_HOST": ollama_host})
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    saved = next(tmp_path.glob("dqn/CartPole-v1_1/CartPole-v1.zip"))
    model = DQN.load(saved)
    assert model.replay_buffer_class.__module__.startswith("sb3_nser")
    assert model.replay_buffer_kwargs["rule_fraction"] == 0.25
    assert "nser/rules_active" in done.stdout or "rules_active" in done.stdout


def test_zoo_shows_a_missing_server_before_training(tmp_path: Path) -> None:
    done = train(tmp_path, "-n", "2000", env={"OLLAMA_HOST": "http://127.0.0.1:9"})
    assert done.returncode != 0
    assert "no Ollama server answers at http://127.0.0.1:9" in done.stderr
    assert "ollama serve" in done.stderr
