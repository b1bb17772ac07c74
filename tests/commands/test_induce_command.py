"""``sb3-nser induce``: a saved buffer, a model, rules, and what became of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.buffers import ReplayBuffer

from fake_ollama import FakeOllama
from sb3_nser import RuleInductionCallback
from sb3_nser.cli import main
from sb3_nser.induction import read_record
from sb3_nser.rules import RuleBook, problems
from sb3_nser.vocabulary import vocabulary_for
from scripted import CARTPOLE, Scripted, dqn, reply, threshold_rule

Capture = pytest.CaptureFixture[str]
RIGHT = "IF pole_angular_velocity > 0.1 THEN push_right"
MODEL = "qwen2.5-coder:0.5b"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The buffer of a real DQN run with SB3's own class."""
    model = dqn(replay_buffer_class=ReplayBuffer, exploration_final_eps=1.0)  # at random: both actions everywhere
    model.learn(4_000)
    path = tmp_path_factory.mktemp("run") / "buffer.pkl"
    model.save_replay_buffer(path)
    return path


def induce(saved: Path, *more: str) -> int:
    return main(["induce", "--buffer", str(saved), "--env", "CartPole-v1", *more])


def test_rules_are_asked_for_judged_recorded_and_written(saved: Path, tmp_path: Path, capsys: Capture) -> None:
    out, record = tmp_path / "rules.yaml", tmp_path / "calls.jsonl"
    second = reply(threshold_rule("pole_angle", ">", 0.05, "push_right"))
    with FakeOllama(lambda exchange: exchange.reply(CARTPOLE if exchange.number == 1 else second)) as server:
        common = ["--host", server.host, "--model", "fake", "-o", str(out)]
        assert induce(saved, *common, "--calls", "2", "--record", str(record), "--seed", "7", "--no-repair") == 0
    text = capsys.readouterr().out
    assert "ReplayBuffer with 4000 transitions of 1 environment" in text and "4 rules judged" in text
    assert f"{RIGHT}\n      admitted: the data support it" in text
    book = RuleBook.from_yaml(out.read_text())
    assert book[RIGHT].status == "admitted" and book["IF pole_angular_velocity > 0.1 THEN push_left"].status != "admitted"
    # the same data count once, however many calls there are
    assert all(len(entry.history) == 1 for entry in book.entries)
    # the second question hears of the first answer's fate
    assert f"{RIGHT}: kept" in server.requests[1]["messages"][1]["content"]
    assert [body["options"]["seed"] for body in server.requests] == [7, 8]
    assert [entry.number for entry in read_record(record)] == [0, 1] and read_record(record)[0].verdicts


def test_trees_need_no_server_and_a_wrong_inducer_is_named(saved: Path, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("sklearn")
    out = tmp_path / "rules.yaml"
    assert induce(saved, "--inducer", "tree", "--calls", "1", "-o", str(out)) == 0
    rules = RuleBook.from_yaml(out.read_text()).entries
    assert rules and all(entry.rule.source == "tree" and entry.evidence is not None for entry in rules)
    for arguments, words in (
        (["--inducer", "tre"], "Did you mean 'tree'?"),
        (["--inducer", "openai"], "--inducer openai needs --model"),
    ):
        capsys.readouterr()
        assert induce(saved, *arguments, "-o", str(tmp_path / "other.yaml")) == 1
        assert words in capsys.readouterr().err


def test_verdicts_are_those_of_training_on_the_same_episodes(tmp_path: Path) -> None:
    """The path is the callback's: what it decided at its last turn, the command decides on the buffer it left behind."""
    model = dqn()
    callback = RuleInductionCallback(inducer=Scripted(CARTPOLE), every=1_000, first=3_000, max_calls=1, blocking=True)
    model.learn(3_000, callback=callback)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    with FakeOllama(lambda exchange: exchange.reply(CARTPOLE)) as server:
        out = tmp_path / "rules.yaml"
        assert induce(tmp_path / "buffer.pkl", "--host", server.host, "--model", "fake", "--calls", "1", "-o", str(out)) == 0
    book = RuleBook.from_yaml(out.read_text())
    assert len(book) == len(callback.book) >= 3
    for entry in callback.book.entries:
        assert book[entry.key].evidence == entry.evidence and book[entry.key].status == entry.status
        assert book[entry.key].lineage == entry.lineage


def test_own_rules_are_judged_without_a_model(saved: Path, tmp_path: Path, capsys: Capture) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"rules:\n- {RIGHT}\n- IF pole_angular_velocity > 0.1 THEN push_left\n")
    assert induce(saved, "--calls", "0", "--rules-file", str(mine), "-o", str(mine), "--host", "127.0.0.1:9") == 0
    assert "2 rules judged, 1 admitted" in capsys.readouterr().out
    assert RuleBook.from_yaml(mine.read_text())[RIGHT].status == "admitted"


def test_hints_are_translated_first_and_marked(saved: Path, tmp_path: Path) -> None:
    hint_reply = json.dumps({"rules": [{"facts": ["pole_angle > 0"], "action": "push_right"}]})
    with FakeOllama(lambda exchange: exchange.reply(hint_reply if exchange.number == 1 else CARTPOLE)) as server:
        out = tmp_path / "rules.yaml"
        more = ["--hints", "push right when the pole leans right", "--calls", "2", "--model", "fake", "-o", str(out)]
        assert induce(saved, "--host", server.host, *more) == 0
    assert 'Advice: "push right when the pole leans right"' in server.requests[0]["messages"][1]["content"]
    rule = RuleBook.from_yaml(out.read_text())["IF pole_angle > 0 THEN push_right"].rule
    assert (rule.source, rule.why) == ("user_hint", "hint: push right when the pole leans right")


def test_trouble_is_one_sentence(saved: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "taken.yaml"
    taken.write_text("rules: []\n")
    short = tmp_path / "short.pkl"
    model = dqn(replay_buffer_class=ReplayBuffer)
    model.learn(5)
    model.save_replay_buffer(short)
    new = ["-o", str(tmp_path / "new.yaml"), "--model", "fake"]
    with FakeOllama(lambda exchange: exchange.reply("no JSON at all")) as server:
        here = ["--host", server.host]
        cases: list[tuple[Path, list[str], str]] = [
            (saved, [*here, "--model", "fake", "-o", str(taken)], "exists"),
            (saved, [*here, "--model", "fake", "-o", str(taken), "--rules-file", str(tmp_path / "absent.yaml")], "exists"),
            (saved, [*here, "--model", "fake", "-o", str(tmp_path)], "is a folder"),
            (tmp_path / "absent.pkl", [*here, *new], "does not exist"),
            (short, [*here, *new], "no whole episode"),
            (saved, [*here, *new, "--calls", "many"], "--calls='many'"),
            (saved, [*here, *new, "--gamma", "1.5"], "--gamma='1.5'"),
            (saved, [*here, *new, "--temperature", "9"], "temperature='9'"),
            (saved, [*here, *new, "--calls", "0"], "--calls 0 asks nobody"),
            (saved, [*here, *new, "--vocabulary", "cartpol"], "Did you mean 'cartpole'"),
            (saved, [*here, *new, "--hints", " "], "--hints=' ' is empty"),
            (saved, [*here, "--model", "absent", "-o", str(tmp_path / "new.yaml")], "ollama pull absent"),
            (saved, ["--host", "http://127.0.0.1:9", *new], "no Ollama server answers"),
            (saved, [*here, *new, "--calls", "9"], "no call brought a rule"),
        ]
        for buffer, more, words in cases:
            assert induce(buffer, *more) == 1, words
            err = capsys.readouterr().err
            assert words in err and "Traceback" not in err, (words, err)
        assert len(server.requests) == 5  # after five failures in a row nobody is asked any more
    assert not (tmp_path / "new.yaml").exists() and taken.read_text() == "rules: []\n"


def test_an_unknown_id_is_told_since_it_only_chooses_names(saved: Path, tmp_path: Path, capsys: Capture) -> None:
    rules = tmp_path / "generic.yaml"
    rules.write_text("rules:\n- IF obs_3 > 0.1 THEN action_1\n")
    args = ["induce", "--buffer", str(saved), "--env", "CartPol-v1", "--calls", "0", "--rules-file", str(rules)]
    assert main([*args, "-o", str(tmp_path / "out.yaml")]) == 0
    both = capsys.readouterr()
    assert "CartPol-v1 is not registered here" in both.err and "Vocabulary: generic" in both.out


@pytest.mark.llm
def test_a_real_model_reads_a_real_buffer(saved: Path, tmp_path: Path, ollama_host: str, capsys: Capture) -> None:
    buffer = tmp_path / "copy.pkl"
    shutil.copy(saved, buffer)
    out = tmp_path / "rules.yaml"
    assert induce(buffer, "--host", ollama_host, "--model", MODEL, "--calls", "2", "-o", str(out)) == 0
    entries = RuleBook.from_yaml(out.read_text()).entries
    env: Any = dqn(replay_buffer_class=ReplayBuffer).replay_buffer
    vocabulary = vocabulary_for(env.observation_space, env.action_space, "CartPole-v1")
    assert entries and all(problems(entry.rule, vocabulary) == [] and entry.evidence is not None for entry in entries)
    assert all(str(entry.rule) in capsys.readouterr().out for entry in entries[:1])
