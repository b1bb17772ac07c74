"""The same with nothing scripted: a real model in a real server process, the official client, real training."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from stable_baselines3 import DQN

from sb3_nser import NSERReplayBuffer, RuleInductionCallback
from sb3_nser.induction import read_record
from sb3_nser.rules import problems

pytestmark = pytest.mark.llm

MODEL = "qwen2.5-coder:0.5b"


def cartpole() -> DQN:
    return DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=NSERReplayBuffer,
        exploration_fraction=1.0,
        policy_kwargs={"net_arch": [32]},
        seed=0,
        device="cpu",
    )


def test_a_real_model_proposes_valid_rules_that_are_judged_and_recorded(ollama_host: str, tmp_path: Path) -> None:
    record = tmp_path / "induction.jsonl"
    callback = RuleInductionCallback(
        MODEL, every=1_500, max_calls=2, host=ollama_host, blocking=True, record=record, save_rules=tmp_path / "rules.yaml"
    )
    cartpole().learn(4_000, callback=callback)
    assert callback.budget.calls == 2 and callback.budget.failures == 0
    assert len(callback.book) >= 1
    for entry in callback.book.entries:
        assert problems(entry.rule, callback.vocabulary) == []
        assert entry.evidence is not None  # the data have judged it
    entries = read_record(record)
    assert [entry.request_step for entry in entries] == [1_500, 3_000]
    assert all(entry.digest and entry.reply_tokens > 10 and entry.seconds > 0 for entry in entries)
    assert str(callback.book.entries[0].rule) in (tmp_path / "rules.yaml").read_text()


def test_training_goes_on_while_the_model_thinks(ollama_host: str) -> None:
    callback = RuleInductionCallback(MODEL, every=200, first=200, max_calls=1, host=ollama_host)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="training ended before the model had answered")  # it may have, or not
        model = cartpole().learn(3_000, callback=callback)
    assert model.num_timesteps == 3_000 and callback.budget.calls == 1
    # asking costs building a prompt, not waiting for an answer
    assert callback.session.seconds_waited < 5
