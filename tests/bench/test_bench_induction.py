"""The recorded induction problems, and what the benchmark makes of answers to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fake_ollama import FakeOllama
from sb3_nser.bench.__main__ import main
from sb3_nser.bench.induction_calls import Answers, Asked
from sb3_nser.bench.induction_outcome import STEPS, Yardstick
from sb3_nser.bench.problems import HALVES, load_problem, problem_names, source
from sb3_nser.errors import ConfigurationError
from sb3_nser.induction import RandomInducer, TreeInducer
from sb3_nser.induction.ollama import OllamaInducer
from sb3_nser.rules import parse_rule


def test_half_of_the_problems_may_be_developed_on() -> None:
    development, report = (problem_names(half) for half in HALVES)
    assert len(development) == len(report) == 6 and not set(development) & set(report)
    assert {load_problem(name).env_id.split("-v")[0] for name in problem_names()} >= {
        "CartPole", "MountainCar", "LunarLander", "FrozenLake", "Taxi", "MiniGrid-DoorKey-5x5", "Acrobot",
    }  # fmt: skip


@pytest.mark.parametrize("name", problem_names())
def test_a_problem_holds_whole_episodes_of_mixed_skill_that_its_vocabulary_reads(name: str) -> None:
    problem = load_problem(name)
    rows = problem.rows
    columns = problem.vocabulary.evaluate(rows.observations, rows.next_observations)
    assert all(bool(column.isfinite().all()) for column in columns.values())
    mine, fresh = (np.concatenate([episode.indices for episode in part]) for part in (problem.episodes, problem.fresh))
    assert sorted([*mine, *fresh]) == list(range(len(rows.rewards))) and 14_000 < len(rows.rewards) < 20_000
    assert 0.25 < len(fresh) / len(rows.rewards) < 0.5
    totals = np.array([rows.rewards[episode.indices].sum() for episode in problem.episodes])
    assert np.ptp(totals) > 0.0  # neither always nor never successful
    assert len(np.unique(problem.vocabulary.actions.from_buffer(rows.actions))) > 1


def test_within_an_episode_the_next_observation_is_the_one_that_follows() -> None:
    problem = load_problem("cartpole")
    for episode in problem.episodes[:5]:
        part = problem.source().transitions(episode.indices)
        assert np.array_equal(part.observations[1:], part.next_observations[:-1])
    newest = problem.source().complete_episodes(1_000)
    assert sum(len(episode.indices) for episode in newest) <= 1_000 and len(newest) > 1
    assert newest[0].indices[-1] > newest[-1].indices[-1]


def test_files_of_another_version_and_unknown_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"'cartpol'.*cartpole"):
        load_problem("cartpol")
    folder = Path(str(source._FOLDER))
    (tmp_path / "index.json").write_text((folder / "index.json").read_text())
    (tmp_path / "cartpole.npz").write_bytes((folder / "cartpole.npz").read_bytes() + b" ")
    monkeypatch.setattr(source, "_FOLDER", tmp_path)
    with pytest.raises(ConfigurationError, match="sha256"):
        load_problem("cartpole")


def test_right_rules_are_confirmed_on_fresh_episodes_and_wrong_ones_are_not() -> None:
    yardstick = Yardstick.of(Asked.of(load_problem("blackjack")))
    right, wrong = yardstick.judge(
        [parse_rule("IF player_sum > 18 THEN stick"), parse_rule("IF player_sum > 18 THEN hit")], fitted=False
    )
    assert right.admitted and right.confirmed and right.positive
    assert not (wrong.admitted or wrong.confirmed or wrong.positive)
    assert yardstick.outcome([right, wrong]).best > 0.5  # standard deviations of the return


def test_the_fresh_episodes_are_nobody_elses() -> None:
    yardstick = Yardstick.of(Asked.of(load_problem("pendulum")))
    asked, fresh = yardstick.asked, yardstick.fresh
    learnt = int((~asked.dataset.held_out).sum())
    assert int((~fresh.held_out).sum()) == learnt and int(fresh.held_out.sum()) > 1_000
    assert np.allclose(np.sort(fresh.returns[~fresh.held_out]), np.sort(asked.dataset.returns[~asked.dataset.held_out]))


def test_each_step_builds_on_the_one_before() -> None:
    yardstick = Yardstick.of(Asked.of(load_problem("cartpole")))
    answers = Answers(RandomInducer())
    steps = yardstick.steps([answers.ask(yardstick.asked, number) for number in range(2)])
    assert tuple(steps) == STEPS
    assert steps["one call"].rules <= steps["pooled"].rules <= steps["repaired"].rules == steps["fitted"].rules
    trees = Answers(TreeInducer())
    assert yardstick.steps([trees.ask(yardstick.asked, 0)])["fitted"].confirmed > 0


def test_answers_of_a_model_are_kept_and_not_asked_for_again(tmp_path: Path) -> None:
    reply = '{"rules":[{"facts":["player_sum > 18"],"action":"stick"},{"facts":["player_sum > 18"],"action":"fly"}]}'
    asked, record = Asked.of(load_problem("blackjack")), tmp_path / "answers.jsonl"
    with FakeOllama(lambda exchange: exchange.reply(reply)) as server:
        first = Answers(OllamaInducer("fake", server.host), record).ask(asked, 0)
    assert not first.valid and first.written == 2 and [rule.key for rule in first.rules] == ["IF player_sum > 18 THEN stick"]
    again = Answers(OllamaInducer("fake", server.host), record).ask(asked, 0)  # nobody answers there any more
    assert replace(again, seconds=first.seconds) == first and again.seconds == pytest.approx(first.seconds, abs=1e-3)
    failed = Answers(OllamaInducer("fake", server.host, deadline=2.0), record).ask(asked, 1)
    assert failed.failure and not failed.valid and failed.written == 4 and failed.rules == ()


def test_the_command_writes_tables_and_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "induction.json"
    assert main(["induction", "--inducer", "tree", "--quick", "--half", "development", "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "| tree " in shown and "problems with a rule" in shown
    found = json.loads(out.read_text())
    assert found["command"].startswith("python -m sb3_nser.bench induction --inducer tree --calls 1 --half development")
    assert found["problems"] == {"version": 1, "names": ["cartpole"]} and found["targets"] == []
    assert set(found["summary"]["tree"]["development"]) == set(STEPS)


def test_a_model_that_nobody_serves_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["induction", "--model", "m", "--host", "http://127.0.0.1:9", "--quick", "--half", "report"]) == 1
    assert "no Ollama server answers" in capsys.readouterr().err


@pytest.mark.llm
def test_a_real_model_writes_valid_rules_that_are_judged(ollama_host: str, tmp_path: Path) -> None:
    out, record = tmp_path / "induction.json", tmp_path / "answers.jsonl"
    words = ["induction", "--model", "qwen2.5-coder:0.5b", "--host", ollama_host, "--quick", "--half", "development"]
    assert main([*words, "--record", str(record), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert set(found["summary"]) == {"qwen2.5-coder:0.5b", "random"}  # the control is always measured beside a model
    figures = found["summary"]["qwen2.5-coder:0.5b"]["development"]["one call"]
    assert figures["validity"] == 1.0 and figures["rules"] >= 1 and figures["tokens_per_call"] > 100
    assert len(record.read_text().splitlines()) == 1
