"""What an adversary found, each with its whole kind: second runs, damaged state, hostile text, foreign inducers."""

from __future__ import annotations

import gzip
import json
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from fake_ollama import Exchange, FakeOllama
from sb3_nser import NSERWarning, PriorityCallback, RuleInductionCallback
from sb3_nser.errors import ConfigurationError, LLMUnavailableError, NSERError
from sb3_nser.induction import InductionFailure, InductionReply, InductionRequest, OllamaInducer, RecordWriter, read_record
from scripted import CARTPOLE, Scripted, dqn, fingerprint

REQUEST = InductionRequest(0, 0, ({"role": "user", "content": "rules"},), {"type": "object"}, 3, "names")


# ------------------------------------------------------------------------------------------------------------ second runs


def test_a_new_run_on_the_same_buffer_asks_anew_and_keeps_the_rules() -> None:
    model = dqn()
    first, second = (RuleInductionCallback(inducer=Scripted(CARTPOLE), every=1_000, blocking=True) for _ in range(2))
    model.learn(2_100, callback=first)
    model.learn(1_100, callback=second)
    assert [request.step for request in second.inducer.requests] == [1_000]
    assert second.budget.calls == 1
    assert set(entry.key for entry in first.book.entries) <= set(entry.key for entry in second.book.entries)


def test_beta_restarts_with_a_new_run_and_goes_on_with_a_resumed_one() -> None:
    model = dqn()
    seen: list[tuple[int, float]] = []

    class Watch(PriorityCallback):
        def _on_rollout_start(self) -> None:
            seen.append((self.num_timesteps, self.buffer.beta_now))

    model.learn(400, callback=Watch())
    assert seen[0][1] == pytest.approx(0.4, abs=0.02) and seen[-1][1] > 0.9
    seen.clear()
    model.learn(400, callback=Watch())
    assert seen[0][1] == pytest.approx(0.4, abs=0.02)
    highest = model.replay_buffer.beta_now
    seen.clear()
    model.learn(400, callback=Watch(), reset_num_timesteps=False)
    betas = [beta for _, beta in seen]
    assert betas == sorted(betas) and betas[0] >= highest


def test_record_names_survive_resumed_runs_and_several_runs_of_one_script(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"

    def script(**settings: Any) -> np.ndarray:
        model = dqn()
        callback = RuleInductionCallback(every=300, blocking=True, **settings)
        model.learn(700, callback=callback)
        model.learn(400, callback=callback, reset_num_timesteps=False)
        model.learn(700, callback=callback)
        return fingerprint(model)

    made = script(inducer=Scripted(CARTPOLE), record=record)
    assert [entry.run for entry in read_record(record)] == ["CartPole-v1"] * 3 + ["CartPole-v1#2"] * 2
    assert np.array_equal(script(replay_record=record), made)
    script(inducer=Scripted(CARTPOLE), record=record)
    names = [entry.run for entry in read_record(record)][5:]
    assert names == ["CartPole-v1#3"] * 3 + ["CartPole-v1#4"] * 2


def test_runs_that_start_together_take_different_names(tmp_path: Path) -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(RecordWriter(tmp_path / "r.jsonl", "run").run)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 8


# -------------------------------------------------------------------------------------------------------- text from outside


@pytest.mark.parametrize("text", ["\ud800 hello", "a\u2028b\u2029c\u0085d", "\x1b[31mred\x1b[0m\x07", "\x00", "{" * 5_000])
def test_any_reply_can_be_recorded_read_back_and_replayed(text: str, tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    rule = {"thresholds": [{"feature": text, "op": ">", "value": 1}], "action": text, "why": text}
    answers = (text, json.dumps({"rules": [rule, json.loads(CARTPOLE)["rules"][0]]}))
    runs = []
    for settings in ({"inducer": Scripted(*answers), "record": record}, {"replay_record": record}):
        model = dqn()
        rounds: list[Any] = []
        with pytest.warns(NSERWarning) as caught:
            model.learn(1_000, callback=RuleInductionCallback(every=300, blocking=True, on_round=rounds.append, **settings))
        runs.append(fingerprint(model))
        shown = [str(item.message) for item in caught] + [line for news in rounds for line in news.lines()]
        assert all(line.isprintable() and len(line) < 1_100 for line in shown)
    assert np.array_equal(*runs)


@pytest.mark.parametrize("error", ["\x1b[31mboom\x1b[0m", "x" * 100_000, "two\nlines"])
def test_server_errors_are_one_printable_line(error: str) -> None:
    with FakeOllama(lambda exchange: exchange.error(500, error)) as server:
        with pytest.raises(InductionFailure) as caught:
            OllamaInducer("fake", server.host).propose(REQUEST)
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 400


def test_compressed_answers_are_refused_before_they_unfold() -> None:
    def script(exchange: Exchange) -> None:
        body = gzip.compress(b" " * 50_000_000)
        handler = exchange._handler
        assert "gzip" not in handler.headers.get("Accept-Encoding", "")
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with FakeOllama(script) as server:
        with pytest.raises(InductionFailure, match="compressed"):
            OllamaInducer("fake", server.host).propose(REQUEST)


def test_header_that_trickles_does_not_outlive_the_deadline() -> None:
    def script(exchange: Exchange) -> None:
        exchange._handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
        while not server.stop.wait(0.05):
            exchange._handler.wfile.write(b"a")
            exchange._handler.wfile.flush()

    with FakeOllama(script) as server:
        started = time.monotonic()
        with pytest.raises(InductionFailure) as caught:
            OllamaInducer("fake", server.host, deadline=1.0, first_deadline=1.0).propose(REQUEST)
        assert caught.value.cause == "deadline" and time.monotonic() - started < 10


# ----------------------------------------------------------------------------------------------------- foreign and damaged


@pytest.mark.parametrize(
    "answer",
    [None, "text", InductionReply(None), InductionReply(b"{}"), InductionReply("{}", prompt_tokens="5"),  # type: ignore[arg-type]
     InductionReply("", rules=("IF x",)), InductionReply("{}", seconds=float("nan"))],  # type: ignore[arg-type]
)  # fmt: skip
def test_inducers_that_break_their_contract_are_failures_not_crashes(answer: Any) -> None:
    class Odd(Scripted):
        def propose(self, request: InductionRequest) -> Any:
            return answer

    callback = RuleInductionCallback(inducer=Odd(""), every=100, blocking=True)
    with pytest.warns(NSERWarning, match="propose|InductionReply"):
        dqn().learn(300, callback=callback)
    assert callback.budget.failures >= 1


DAMAGED: list[Any] = [
    {},
    [1],
    {"book": 5, "budget": {}},
    {"book": {"version": 1, "entries": 5}, "budget": {}},
    {"book": {"version": 9}, "budget": {}},
    {"book": {"version": 1}, "budget": {"next_step": "x"}},
    {"book": {"version": 1}, "budget": {"calls": float("nan")}},
]


@pytest.mark.parametrize("state", DAMAGED)
def test_damaged_rule_state_is_one_sentence_at_training_start(state: Any) -> None:
    model = dqn()
    model.replay_buffer.rule_state = state
    with pytest.raises(ConfigurationError, match="saved with the replay buffer"):
        model.learn(200, callback=RuleInductionCallback(inducer=Scripted(CARTPOLE)))
    assert not model.q_net._forward_hooks


def test_nan_reward_costs_its_episode_and_nothing_else() -> None:
    class Broken(gym.Wrapper):
        steps = 0

        def step(self, action: Any) -> Any:
            self.steps += 1
            observation, reward, *rest = self.env.step(action)
            return (observation, float("nan") if self.steps == 150 else reward, *rest)

    model = dqn(Broken(gym.make("CartPole-v1")), learning_starts=10**6)
    callback = RuleInductionCallback(inducer=Scripted(CARTPOLE), every=400, blocking=True, vocabulary="cartpole")
    model.learn(1_000, callback=callback)
    assert all(entry.evidence is not None for entry in callback.book.entries)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"run": 5}, "run=5"),
        ({"task": 5}, "task=5"),
        ({"hints": 5}, "hints=5"),
        ({"rules_file": 5}, "rules_file=5"),
        ({"on_round": "x"}, "on_round='x'"),
        ({"seed": 10**400}, "seed="),
        ({"deadline": 10**400}, "deadline="),
    ],
)
def test_whatever_can_be_known_early_is_said_early(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        RuleInductionCallback(**settings)
    assert RuleInductionCallback(seed=2**53 + 1).settings.seed == 2**53 + 1


def test_prompt_that_cannot_fit_is_known_before_training() -> None:
    model = dqn()
    with FakeOllama(lambda exchange: exchange.reply(CARTPOLE)) as server:
        with pytest.raises(ConfigurationError, match="num_ctx"):
            model.learn(500, callback=RuleInductionCallback("fake", host=server.host, task="x " * 6_000))
    assert model.num_timesteps == 0


def test_demo_keeps_the_last_results_until_it_can_run(tmp_path: Path) -> None:
    from sb3_nser.cli import main

    out = tmp_path / "out"
    out.mkdir()
    (out / ".sb3-nser-demo").touch()
    (out / "precious.txt").touch()
    assert main(["demo", "--out", str(out), "--host", "127.0.0.1:9"]) == 1
    with FakeOllama(lambda exchange: None) as server:
        assert main(["demo", "--out", str(out), "--host", server.host, "--llm", "absent"]) == 1
    assert (out / "precious.txt").exists()
    (out / ".sb3-nser-demo").write_text("1")  # a process that lives
    assert main(["demo", "--out", str(out), "--replay-record", str(tmp_path / "none.jsonl")]) == 1
    assert (out / "precious.txt").exists()


def test_errors_of_ours_are_neither_value_nor_assertion_errors() -> None:
    for kind in (ConfigurationError, LLMUnavailableError, NSERError):
        assert not issubclass(kind, ValueError | AssertionError)


# ------------------------------------------------------------------------------------------------- training on without us


def test_training_on_without_the_callback_is_warned_about() -> None:
    model = dqn()
    model.learn(400, callback=PriorityCallback())
    with pytest.warns(NSERWarning, match="no callback feeds it"):
        model.learn(1_000, reset_num_timesteps=False)
    model.learn(300, callback=PriorityCallback(), reset_num_timesteps=False)
    with pytest.warns(NSERWarning, match="no callback feeds it"):
        model.train(gradient_steps=150, batch_size=32)


@pytest.mark.parametrize("another", [False, True])
def test_another_environment_does_not_continue_the_last_episode(another: bool) -> None:
    model = dqn("MountainCar-v0", learning_starts=10**6)
    model.learn(130, callback=PriorityCallback())
    if another:
        model.set_env(gym.make("MountainCar-v0"))
    model.learn(300, callback=PriorityCallback(), reset_num_timesteps=False)
    lengths = [len(episode.indices) for episode in model.replay_buffer.complete_episodes()]
    assert max(lengths) <= 200  # the time limit: nothing was stitched together
    assert sum(lengths) == 400 if not another else sum(lengths) in (200, 330)
