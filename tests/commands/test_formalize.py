"""A person's own words become rules: ``sb3-nser rules formalize`` and ``hints=`` of the callback."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from fake_ollama import FakeOllama
from sb3_nser import RuleInductionCallback
from sb3_nser.cli import main
from sb3_nser.commands.environment import make_env, random_experience, vocabulary_of
from sb3_nser.errors import ConfigurationError
from sb3_nser.induction import InductionRequest
from sb3_nser.induction.formalize import as_hint, hint_request
from sb3_nser.rules import RuleBook, problems
from sb3_nser.rules.schema import parse_reply
from scripted import CARTPOLE, Scripted, dqn

DOORKEY = "MiniGrid-DoorKey-5x5-v0"
MODEL = "qwen2.5-coder:0.5b"
KEY = "IF front_object is key AND carrying is nothing THEN pickup"
KEY_REPLY = json.dumps({"rules": [{"front_object": "key", "carrying": "nothing", "key_visible": "any", "action": "pickup"}]})
Capture = pytest.CaptureFixture[str]


def question(hint: str, env_id: str, seen: bool = True) -> InductionRequest:
    env = make_env(env_id)
    vocabulary = vocabulary_of(env)
    return hint_request(vocabulary, hint, random_experience(env, vocabulary, 3) if seen else None)


def enumerated(request: InductionRequest, name: str) -> list[str]:
    part = request.schema["properties"]["rules"]["items"]["properties"][name]
    return list(part["items"]["enum"] if part["type"] == "array" else part["enum"])


def test_the_model_is_asked_only_about_what_the_hint_speaks_of() -> None:
    asked = question("pick up the key before the door", DOORKEY)
    assert enumerated(asked, "action") == ["pickup"]  # named in full
    assert set(asked.schema["properties"]["rules"]["items"]["properties"]) >= {"front_object", "carrying", "action"}
    assert "goal_direction" not in asked.messages[1]["content"].split("Task:")[1].split("\n", 1)[1]
    assert enumerated(question("open the locked door", DOORKEY), "action")[0] == "turn_left"  # none is named: all of them
    asked = question("push right when the pole leans right", "CartPole-v1")
    assert enumerated(asked, "action") == ["push_right"]
    assert {"pole_angle > 0", "pole_angle < 0"} <= set(enumerated(asked, "facts"))
    assert not any("cart_" in fact for fact in enumerated(asked, "facts"))
    # a number that the person names is the threshold, whatever was seen
    asked = question("push left when the pole angle is below -0.05", "CartPole-v1")
    assert {fact.split()[-1] for fact in enumerated(asked, "facts")} == {"-0.05"}
    asked = question("brake when the angular velocity is high", "Pendulum-v1")
    assert enumerated(asked, "action") == ["torque > 0", "torque < 0"]
    # nothing seen yet: the model finds thresholds itself
    assert "thresholds" in question("push right", "CartPole-v1", False).schema["properties"]["rules"]["items"]["properties"]


def test_a_hint_that_forbids_makes_avoid_rules_and_is_marked_as_the_users() -> None:
    vocabulary = vocabulary_of(make_env(DOORKEY))
    text = json.dumps({"rules": [{"carrying": "key", "action": "drop"}] * 2})
    for hint in ("never drop the key", "Do not drop the key", "please don't drop the key", "avoid drop while carrying"):
        (rule,) = as_hint(parse_reply(text, vocabulary), hint).rules
        assert (str(rule), rule.source, rule.why) == ("IF carrying is key THEN avoid drop", "user_hint", f"hint: {hint}")
        assert "never" not in hint_request(vocabulary, hint).messages[1]["content"]  # the model translates what is left
    (rule,) = as_hint(parse_reply(text, vocabulary), "drop the key never mind where").rules
    assert rule.polarity == "prefer"


def formalize(server: FakeOllama, *more: str, hint: str = "pick up the key before the door") -> int:
    return main(["rules", "formalize", hint, "--env", DOORKEY, "--host", server.host, "--model", "fake", *more])


def test_without_a_terminal_nothing_is_written_unless_told_to(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "rules.yaml"
    with FakeOllama(lambda exchange: exchange.reply(KEY_REPLY)) as server:
        assert formalize(server, "-o", str(out)) == 0
        text = capsys.readouterr().out
        assert KEY in text and "what the agent carries" in text and "Nothing was written" in text and not out.exists()
        assert formalize(server, "-o", str(out), "--yes") == 0
        (entry,) = RuleBook.from_yaml(out.read_text()).entries
        assert (str(entry.rule), entry.rule.source, entry.status) == (KEY, "user_hint", "waiting")
        assert entry.rule.why == "hint: pick up the key before the door"
        assert formalize(server, "-o", str(out), "--yes", "--pin") == 0  # the same rule, pinned now
        (entry,) = RuleBook.from_yaml(out.read_text()).entries
        assert entry.rule.pinned and entry.status == "admitted"
        before = out.read_text()
        assert formalize(server, "-o", str(out), "--yes") == 0 and out.read_text() == before
        assert "has it already" in capsys.readouterr().out


@pytest.mark.parametrize("indent", ["", "  "])
def test_a_handwritten_file_is_appended_to_comments_and_all(tmp_path: Path, indent: str) -> None:
    out = tmp_path / "mine.yaml"
    mine = f"# mine\nrules:\n{indent}# the first\n{indent}- IF carrying is key THEN forward  # why not\n"
    out.write_text(mine)
    with FakeOllama(lambda exchange: exchange.reply(KEY_REPLY)) as server:
        assert formalize(server, "-o", str(out), "--yes") == 0
    assert out.read_text().startswith(mine)
    assert [str(entry.rule) for entry in RuleBook.from_yaml(out.read_text()).entries] == [
        "IF carrying is key THEN forward",
        KEY,
    ]
    out.write_text("rules: [IF carrying is key THEN forward]  # in one line\n")  # cannot be appended to: written anew
    with FakeOllama(lambda exchange: exchange.reply(KEY_REPLY)) as server:
        assert formalize(server, "-o", str(out), "--yes") == 0
    assert len(RuleBook.from_yaml(out.read_text())) == 2


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_on_a_terminal_the_person_is_asked(tmp_path: Path, answer: str, written: bool) -> None:
    import pty

    with FakeOllama(lambda exchange: exchange.reply(KEY_REPLY)) as server:
        command = [sys.executable, "-m", "sb3_nser.cli", "rules", "formalize", "pick up the key", "--env", DOORKEY]
        command += ["--host", server.host, "--model", "fake", "-o", str(tmp_path / "r.yaml")]
        master, slave = pty.openpty()
        with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL) as process:
            os.close(slave)
            shown = b""
            while b"[y/N]" not in shown:
                assert select.select([master], [], [], 60)[0], shown
                shown += os.read(master, 1_000)
            os.write(master, answer.encode())
            try:
                while more := os.read(master, 1_000):
                    shown += more
            except OSError:  # the other end is closed
                pass
            assert process.wait(60) == 0
        os.close(master)
    assert KEY.encode() in shown and (tmp_path / "r.yaml").exists() == written


def test_failures_are_one_sentence_and_write_nothing(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "rules.yaml"
    empty = json.dumps({"rules": [{"front_object": "any", "carrying": "any", "action": "pickup"}]})
    for content, words in (("prose", "not JSON"), (empty, "no condition"), ('{"rules":[]}', "it is empty")):
        with FakeOllama(lambda exchange, content=content: exchange.reply(content)) as server:
            assert formalize(server, "-o", str(out), "--yes") == 1
            assert len(server.requests) == 3  # each with another seed
            assert len({body["options"]["seed"] for body in server.requests}) == 3
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("sb3-nser: fake found no rule in") and words in error
    with FakeOllama(lambda exchange: exchange.error(500, "boom")) as server:
        assert formalize(server, "--yes", "-o", str(out)) == 1
        assert "boom" in capsys.readouterr().err
        for hint, words in ((" ", "is empty"), ("key " * 400, "at most 500 characters")):
            assert formalize(server, hint=hint) == 1
            assert words in capsys.readouterr().err
        assert formalize(server, "--max-rules", "99") == 1 and "--max-rules='99'" in capsys.readouterr().err
        out.write_text("rules: [")
        assert formalize(server, "--yes", "-o", str(out)) == 1 and "not valid YAML" in capsys.readouterr().err
        assert len(server.requests) == 1  # what cannot work is told before a model is asked
    assert out.read_text() == "rules: ["


@pytest.mark.slow
def test_hints_of_a_run_are_translated_by_its_first_calls_and_judged_like_any_rule(tmp_path: Path) -> None:
    def translation(fact: str, action: str) -> str:
        return json.dumps({"rules": [{"facts": [fact], "action": action}]})

    inducer = Scripted(
        translation("pole_angular_velocity > 0", "push_right"), translation("cart_position > 0", "push_left"), CARTPOLE
    )
    hints = ["push right when the pole falls to the right", "never go left when the cart is right of the centre"]
    record = tmp_path / "calls.jsonl"
    settings = {"every": 1_000, "max_calls": 3, "blocking": True, "hints": hints}
    model = dqn(exploration_final_eps=1.0)
    callback = RuleInductionCallback(inducer=inducer, record=record, **settings)
    model.learn(1_300, callback=callback)
    assert [request.form for request in inducer.requests] == ["hint", "hint", "evidence"]
    steps = [request.step for request in inducer.requests]
    assert steps[0] == 1_000 and steps[2] < 1_100  # the hints do not make the first question of its own wait
    rule = callback.book["IF pole_angular_velocity > 0 THEN push_right"]
    assert rule.rule.source == "user_hint" and rule.status == "admitted" and rule.evidence is not None
    assert callback.book["IF cart_position > 0 THEN avoid push_left"].rule.why == f"hint: {hints[1]}"
    assert "Hints from the user:\n- push right when" in inducer.requests[2].messages[1]["content"]
    again = RuleInductionCallback(replay_record=record, **settings)  # from the record, without a model
    dqn(exploration_final_eps=1.0).learn(1_300, callback=again)
    assert again.book == callback.book
    with pytest.raises(ConfigurationError, match="hints='' is empty"):
        RuleInductionCallback(inducer=inducer, hints="")


@pytest.mark.llm
def test_a_real_model_translates_a_hint(tmp_path: Path, ollama_host: str) -> None:
    for number, (hint, env_id) in enumerate(
        [("pick up the key before the door", DOORKEY), ("push right if it leans right", "CartPole-v1")]
    ):
        out = tmp_path / f"{number}.yaml"
        arguments = ["--env", env_id, "--host", ollama_host, "--model", MODEL, "--yes", "-o", str(out)]
        assert main(["rules", "formalize", hint, *arguments]) == 0
        env = make_env(env_id)
        (entry,) = RuleBook.from_yaml(out.read_text()).entries
        assert problems(entry.rule, vocabulary_of(env)) == [] and entry.rule.source == "user_hint"
        assert entry.rule.head.action == ("pickup", "push_right")[number]  # the hint names it


def test_environments_are_made_by_id_or_told_why_not() -> None:
    assert make_env(DOORKEY).observation_space.shape == (7, 7, 3)
    assert isinstance(make_env("gymnasium.envs.classic_control:CartPole-v1"), gym.Env)
    for env_id, words in (("CartPol-v1", "cannot be made"), ("absent_module:X-v0", "absent_module")):
        with pytest.raises(ConfigurationError, match=words):
            make_env(env_id)
