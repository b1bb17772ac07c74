"""The main job through the public interface: SB3 trains, a scripted inducer proposes, the data judge, replay follows."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EvalCallback
from stable_baselines3.common.logger import KVWriter, Logger, configure
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fake_ollama import GOOD, FakeOllama, sleep_until
from sb3_nser import NSERError, NSERWarning, PriorityCallback, RuleInductionCallback
from sb3_nser.errors import ConfigurationError, InductionError, LLMUnavailableError, UnsupportedError
from sb3_nser.induction import InductionReply, InductionRequest, read_record
from scripted import CARTPOLE, Scripted, dqn, fingerprint, reply, threshold_rule


def test_right_rules_weigh_on_replay_and_wrong_ones_do_not() -> None:
    model = dqn()
    callback = RuleInductionCallback(inducer=Scripted(CARTPOLE), every=2_000, blocking=True)
    model.learn(4_500, callback=callback)
    statuses = {str(entry.rule): entry.status for entry in callback.book.entries}
    assert statuses["IF pole_angular_velocity > 0.1 THEN push_right"] == "admitted"
    assert statuses["IF pole_angular_velocity < -0.1 THEN push_left"] == "admitted"
    assert statuses["IF pole_angular_velocity > 0.1 THEN push_left"] in ("rejected", "waiting")
    buffer = model.replay_buffer
    n = buffer.size()
    velocity, action = buffer.observations[:n, 0, 3], buffer.actions[:n, 0, 0]
    buffer.sample(32)  # scores what was collected last
    follows = ((velocity > 0.3) & (action == 1)) | ((velocity < -0.3) & (action == 0))
    against = ((velocity > 0.3) & (action == 0)) | ((velocity < -0.3) & (action == 1))
    assert buffer.scores[:n][follows].mean() > buffer.scores[:n][against].mean() + 0.05
    assert buffer.rule_fraction_now > 0
    # every rule is judged again when the model is asked again, and the model is told
    assert "IF pole_angular_velocity > 0.1 THEN push_right: kept" in callback.inducer.requests[1].messages[1]["content"]


@pytest.mark.parametrize(("algorithm", "env"), [(DQN, "CartPole-v1"), (QRDQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_all_three_algorithms_train_with_rules(algorithm: Any, env: str) -> None:
    answer = CARTPOLE
    if env == "Pendulum-v1":
        answer = reply({**threshold_rule("angular_velocity", ">", 0.5, "torque"), "action_op": "<", "action_value": -0.5})
    model = dqn(env, algorithm, train_freq=8, gradient_steps=2)
    callback = RuleInductionCallback(inducer=Scripted(answer), every=500, blocking=True)
    model.learn(1_500, callback=callback)
    assert len(callback.book) >= 1
    assert np.isfinite(fingerprint(model)).all()
    assert len(np.unique(model.replay_buffer.td_errors[: model.replay_buffer.size()])) > 10  # TD errors arrive


def test_blocking_run_is_reproducible_bit_for_bit() -> None:
    weights = []
    for _ in range(2):
        model = dqn()
        model.learn(1_500, callback=RuleInductionCallback(inducer=Scripted(CARTPOLE), every=400, blocking=True))
        weights.append(fingerprint(model))
    assert np.array_equal(*weights)


@pytest.mark.parametrize("blocking", [False, True])
def test_replayed_record_reproduces_the_run_without_a_model(tmp_path: Path, blocking: bool) -> None:
    class Slow(Scripted):
        def propose(self, request: InductionRequest) -> InductionReply:
            sleep_until(__import__("threading").Event(), 0.3)
            return super().propose(request)

    record = tmp_path / "induction.jsonl"
    runs = []
    for settings in ({"inducer": Slow(CARTPOLE), "record": record}, {"replay_record": record}):
        model = dqn()
        rules = tmp_path / f"rules{len(runs)}.yaml"
        callback = RuleInductionCallback(every=400, blocking=blocking, save_rules=rules, **settings)
        model.learn(1_500, callback=callback)
        runs.append((fingerprint(model), rules.read_text(), callback.budget.state()["calls"]))
    assert np.array_equal(runs[0][0], runs[1][0])
    assert runs[0][1:] == runs[1][1:]
    entries = read_record(record)
    assert entries[0].run == "CartPole-v1" and entries[0].verdicts and entries[0].messages


def test_record_that_belongs_to_another_run_is_named(tmp_path: Path) -> None:
    record = tmp_path / "induction.jsonl"
    dqn().learn(500, callback=RuleInductionCallback(inducer=Scripted(CARTPOLE), every=200, blocking=True, record=record))
    with pytest.raises(NSERError, match=r"CartPole-v1.*set run="):
        dqn().learn(500, callback=RuleInductionCallback(replay_record=record, run="other"))
    with pytest.warns(NSERWarning, match="differ"):
        dqn().learn(500, callback=RuleInductionCallback(replay_record=record, every=300, run="CartPole-v1"))


def test_two_runs_in_one_record_do_not_mix(tmp_path: Path) -> None:
    record = tmp_path / "induction.jsonl"
    for _ in range(2):
        dqn().learn(500, callback=RuleInductionCallback(inducer=Scripted(CARTPOLE), every=200, blocking=True, record=record))
    assert {entry.run for entry in read_record(record)} == {"CartPole-v1", "CartPole-v1#2"}


@pytest.mark.parametrize("optimize_memory_usage", [False, True])
def test_n_envs_vecnormalize_and_memory_optimisation(optimize_memory_usage: bool) -> None:
    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 4))
    kwargs: dict[str, Any] = {"handle_timeout_termination": False} if optimize_memory_usage else {}
    model = dqn(env, optimize_memory_usage=optimize_memory_usage, replay_buffer_kwargs=kwargs)
    callback = RuleInductionCallback(inducer=Scripted(CARTPOLE), every=1_000, blocking=True)
    model.learn(3_000, callback=callback)
    # thresholds are in the raw frame, whatever VecNormalize does
    assert callback.book["IF pole_angular_velocity > 0.1 THEN push_right"].status == "admitted"
    # "every 1000" with four environments triggers at 1000, 2000, ..., never skipping a multiple
    assert callback.budget.calls >= 2


def test_logger_and_tensorboard_show_what_happens(tmp_path: Path) -> None:
    model = dqn(tensorboard_log=str(tmp_path))
    model.learn(3_000, callback=RuleInductionCallback(inducer=Scripted(CARTPOLE), every=1_000, blocking=True))
    events = EventAccumulator(str(next(tmp_path.iterdir())), size_guidance={"tensors": 0})
    events.Reload()
    scalars = set(events.Tags()["scalars"])
    wanted = "beta rule_fraction ess mean_score stale_writes rules_active llm_calls llm_failures llm_seconds seconds_waited"
    assert {f"nser/{name}" for name in wanted.split()} <= scalars
    assert events.Scalars("nser/rules_active")[-1].value >= 1
    text = events.Tensors("nser/rules/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "IF pole_angular_velocity" in text


# ---------------------------------------------------------------------------------------------- trouble with the model


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("prose", "**Rule:** slow down when the angle is big", "did not honour the schema"),
        ("schema echoed", json.dumps({"type": "object", "properties": {"rules": {"type": "array"}}}), "did not honour"),
        ("empty object", "{}", "did not honour"),
    ],
)
def test_reply_that_ignores_the_schema_is_no_rule_and_asking_stops(name: str, content: str, message: str) -> None:
    with FakeOllama(lambda exchange: exchange.reply(content)) as server:
        callback = RuleInductionCallback("fake", every=100, host=server.host, blocking=True)
        with pytest.warns(NSERWarning) as caught:
            model = dqn().learn(2_000, callback=callback)
    sentences = [str(item.message) for item in caught]
    assert sum(message in sentence for sentence in sentences) == 1  # one warning per cause
    assert any(content[:20] in sentence and "fake" in sentence for sentence in sentences)
    assert any("not asked again" in sentence for sentence in sentences)
    assert callback.budget.calls == callback.budget.failures == len(server.requests) == 5
    assert len(callback.book) == 0 and model.num_timesteps == 2_000


def test_server_that_never_answers_costs_one_warning_and_no_training_step() -> None:
    with FakeOllama(lambda exchange: sleep_until(server.stop)) as server:
        callback = RuleInductionCallback("fake", every=100, host=server.host, deadline=0.3, blocking=True)
        with pytest.warns(NSERWarning, match=r"fake.*did not finish within"):
            model = dqn().learn(500, callback=callback)
    assert model.num_timesteps == 500 and callback.budget.failures >= 1


def test_failing_calls_keep_the_old_rules_and_count() -> None:
    def script(exchange: Any) -> None:
        exchange.reply(CARTPOLE) if exchange.number == 1 else exchange.error(500, "boom")

    class Written(KVWriter):
        def __init__(self) -> None:
            self.last: dict[str, Any] = {}

        def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
            self.last.update(key_values)

    written = Written()
    model = dqn()
    model.set_logger(Logger(None, [written]))
    with FakeOllama(script) as server:
        callback = RuleInductionCallback("fake", every=1_500, host=server.host, blocking=True)
        with pytest.warns(NSERWarning, match="boom"):
            model.learn(4_000, callback=callback)
    assert callback.budget.failures == 1 and len(callback.book.active()) >= 1
    assert written.last["nser/llm_failures"] == 1 and written.last["nser/llm_calls"] == 2


def test_strict_mode_raises_one_documented_type_with_the_cause() -> None:
    with FakeOllama(lambda exchange: exchange.send(b"<html>", 502, "text/html")) as server:
        with pytest.warns(NSERWarning), pytest.raises(InductionError) as caught:
            dqn().learn(500, callback=RuleInductionCallback("fake", every=100, host=server.host, blocking=True, strict=True))
    assert caught.value.__cause__ is not None


def test_model_or_server_missing_is_known_before_training() -> None:
    with FakeOllama(lambda exchange: exchange.reply(GOOD)) as server:
        model = dqn()
        with pytest.raises(LLMUnavailableError, match="ollama pull absent"):
            model.learn(500, callback=RuleInductionCallback("absent", host=server.host))
        assert model.num_timesteps == 0 and not model.q_net._forward_hooks
        host = server.host
    with pytest.raises(LLMUnavailableError, match="ollama serve"):
        dqn().learn(500, callback=RuleInductionCallback("fake", host=host))
    with pytest.warns(NSERWarning, match="ollama serve"):
        dqn().learn(300, callback=RuleInductionCallback("fake", host=host, require_llm=False))


def test_repeated_rule_stays_one_and_spacing_widens() -> None:
    inducer = Scripted(
        reply(threshold_rule("pole_angle", ">", 0.1, "push_right")),
        reply(threshold_rule("pole_angle", ">", 0.10, "push_right")),
    )
    callback = RuleInductionCallback(inducer=inducer, every=100, blocking=True)
    dqn().learn(3_000, callback=callback)
    assert len(callback.book) == 1
    steps = np.diff([request.step for request in inducer.requests])
    assert steps[-1] >= 800 > steps[0]
    assert callback.book.entries[0].times_proposed == len(inducer.requests)


# ------------------------------------------------------------------------------------------------------------ bad input


def test_wrong_arguments_are_named_with_the_cure() -> None:
    for settings, words in [
        ({"evry": 100}, "evry.*'every'"),
        ({"every": 0}, "every=0"),
        ({"every": "often"}, "every='often'"),
        ({"rules_per_call": 99}, "rules_per_call=99"),
        ({"prompt_forms": ["poem"]}, "poem"),
        ({"deadline": float("inf")}, "deadline"),
        ({"llm": 7}, "llm=7"),
        ({"blocking": "perhaps"}, "blocking='perhaps'"),
        ({"inducer": object()}, "inducer=.*RuleInducer"),
        ({"policy": "strict"}, "policy='strict'"),
        ({"save_rules": "/"}, "save_rules='/'"),
    ]:
        with pytest.raises(ConfigurationError, match=words):
            RuleInductionCallback(**settings)
    with pytest.raises(ConfigurationError, match=r"alpha.*replay_buffer_kwargs"):
        PriorityCallback(alpha=0.6)
    assert RuleInductionCallback(every="1e3").budget.every == 1000
    assert not issubclass(NSERError, ValueError | AssertionError)


def test_wrong_company_is_named_before_training() -> None:
    with pytest.raises(ConfigurationError, match=r"ReplayBuffer.*replay_buffer_class=NSERReplayBuffer"):
        dqn(replay_buffer_class=ReplayBuffer).learn(200, callback=PriorityCallback())
    with pytest.raises(UnsupportedError, match="DQN"):
        PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").learn(64, callback=PriorityCallback())
    with pytest.raises(ConfigurationError, match="cartpole"):
        dqn().learn(200, callback=RuleInductionCallback(inducer=Scripted(GOOD), vocabulary="cartpol"))
    with pytest.raises(ConfigurationError, match="exist once training has started"):
        _ = RuleInductionCallback(inducer=Scripted(GOOD)).book


def test_buffer_without_callback_works_and_says_so_once() -> None:
    with pytest.warns(NSERWarning, match="Callback") as caught:
        dqn().learn(1_500)
    assert len([item for item in caught if issubclass(item.category, NSERWarning)]) == 1


def test_question_without_an_answer_is_told_at_the_end() -> None:
    with FakeOllama(lambda exchange: sleep_until(server.stop)) as server:
        with pytest.warns(NSERWarning, match="before the model had answered") as caught:
            dqn().learn(300, callback=RuleInductionCallback("fake", every=100, host=server.host))
    assert caught[0].filename == __file__  # where the user called learn(), not somewhere inside


def test_something_that_is_not_ollama_is_known_before_training() -> None:
    with FakeOllama(lambda exchange: None, models=()) as server:
        with pytest.raises(LLMUnavailableError, match="has no model"):
            dqn().learn(300, callback=RuleInductionCallback("fake", host=server.host))
    with FakeOllama(lambda exchange: None, page=b"<html>welcome</html>") as server:
        with pytest.raises(LLMUnavailableError, match="is not Ollama"):
            dqn().learn(300, callback=RuleInductionCallback("fake", host=server.host))
    with pytest.raises(ConfigurationError, match="host=5"):
        RuleInductionCallback("fake", host=5)


def test_end_of_a_training_that_never_began_is_no_error() -> None:
    callback = RuleInductionCallback(inducer=Scripted(GOOD))
    callback.init_callback(dqn())
    callback.on_training_end()  # as rl_zoo3 does after an error at the start


def test_pinned_rules_keep_the_thresholds_their_owner_wrote(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('rules:\n- rule: "IF pole_angle > 0.05 THEN push_right"\n  pinned: true\n')
    callback = RuleInductionCallback(rules_file=file, max_calls=0, every=500)
    dqn().learn(3_000, callback=callback)
    entry = callback.book.active()[0]
    assert entry.evidence is not None and entry.fitted["theta"] == pytest.approx([0.05])
    assert callback.session.in_force()[0].startswith("IF pole_angle > 0.05 THEN push_right ")


def test_rules_file_is_read_checked_and_pinned(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('rules:\n- rule: "IF pole_angle > 0.05 THEN push_right"\n  pinned: true\n')
    callback = RuleInductionCallback(rules_file=file, max_calls=0, every=500)  # no model is needed, or asked
    dqn().learn(1_200, callback=callback)
    assert callback.budget.calls == 0 and callback.book.entries[0].evidence is not None  # judged all the same
    assert [str(entry.rule) for entry in callback.book.active()] == ["IF pole_angle > 0.05 THEN push_right"]
    file.write_text('rules:\n- rule: "IF pole_angel > 0.05 THEN push_right"\n')
    with pytest.raises(ConfigurationError, match=r"mine\.yaml.*pole_angle"):
        dqn().learn(1_000, callback=RuleInductionCallback(rules_file=file, max_calls=0))


def test_a_resumed_run_takes_its_owners_flags_from_the_file_and_keeps_what_was_learnt(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('rules:\n- rule: "IF pole_angle > 0.05 THEN push_right"\n')
    model = dqn()
    first = RuleInductionCallback(rules_file=file, max_calls=0, every=500)
    model.learn(1_200, callback=first)
    learnt = first.book.entries[0]
    assert learnt.evidence is not None and not learnt.rule.pinned
    file.write_text(
        'rules:\n- rule: "IF pole_angle > 0.05 THEN push_right"\n  pinned: true\n- IF pole_angle < -0.05 THEN push_left\n'
    )
    second = RuleInductionCallback(rules_file=file, max_calls=0, every=5_000)
    model.learn(100, callback=second, reset_num_timesteps=False)
    entry, new = second.book.entries
    assert entry.rule.pinned and entry.status == "admitted" and entry.evidence == learnt.evidence
    assert str(new.rule) == "IF pole_angle < -0.05 THEN push_left" and new.evidence is None
    file.write_text('rules:\n- rule: "IF pole_angle > 0.05 THEN push_right"\n  enabled: false\n')
    third = RuleInductionCallback(rules_file=file, max_calls=0, every=5_000)
    model.learn(100, callback=third, reset_num_timesteps=False)
    assert not third.book.active()


def test_a_pinned_rule_that_cannot_hold_is_refused_before_training(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rules:\n- rule: IF pole_angle > 1 AND pole_angle < 0 THEN push_right\n  pinned: true\n")
    with pytest.raises(ConfigurationError, match=r"mine\.yaml.*pole_angle cannot be above 1 and below 0"):
        dqn().learn(200, callback=RuleInductionCallback(rules_file=file, max_calls=0))


# --------------------------------------------------------------------------------------------------------- save and load


def test_everything_saves_without_client_or_thread_and_resumes(tmp_path: Path) -> None:
    with FakeOllama(lambda exchange: exchange.reply(CARTPOLE)) as server:
        model = dqn()
        callback = RuleInductionCallback("fake", every=1_000, host=server.host, blocking=True)
        extra = [
            CheckpointCallback(700, str(tmp_path / "checkpoints"), save_replay_buffer=True),
            EvalCallback(
                gym.make("CartPole-v1"), eval_freq=900, n_eval_episodes=1, best_model_save_path=str(tmp_path), verbose=0
            ),
        ]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not of the same type.*")
            model.learn(2_500, callback=CallbackList([callback, *extra]))
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    assert server.host.encode() not in (tmp_path / "buffer.pkl").read_bytes()
    cloudpickle.dump(model.replay_buffer, io.BytesIO())
    again = DQN.load(tmp_path / "model", env=gym.make("CartPole-v1"))
    again.load_replay_buffer(tmp_path / "buffer")
    resumed = RuleInductionCallback("fake", every=1_000, host="http://127.0.0.1:9", blocking=True, require_llm=False)
    with pytest.warns(NSERWarning):
        again.learn(600, callback=resumed, reset_num_timesteps=False)
    assert resumed.book.to_dict()["entries"][0]["rule"] == callback.book.to_dict()["entries"][0]["rule"]
    assert resumed.budget.calls >= callback.budget.calls
    assert again.num_timesteps == model.num_timesteps + 600


def test_second_learn_continues_and_reset_begins_anew() -> None:
    inducer = Scripted(CARTPOLE)
    callback = RuleInductionCallback(inducer=inducer, every=1_000, blocking=True)
    model = dqn()
    model.learn(1_200, callback=callback)
    model.learn(1_200, callback=callback, reset_num_timesteps=False)
    assert [request.step for request in inducer.requests][:2] == [1_000, 2_000]
    model.learn(1_200, callback=callback)
    assert [request.step for request in inducer.requests][-1] == 1_000 and inducer.requests[-1].number == 0


def test_own_logger_and_global_random_streams_are_left_alone() -> None:
    model = dqn()
    model.set_logger(configure(None, []))
    callback = RuleInductionCallback(inducer=Scripted(CARTPOLE), every=10**6, blocking=True)
    model._setup_learn(100, callback)
    numpy_state, torch_state = np.random.get_state()[1].copy(), th.random.get_rng_state().clone()
    model.replay_buffer.add(*(np.zeros((1, 4), np.float32),) * 2, np.zeros((1, 1)), np.zeros(1), np.zeros(1, bool), [{}])
    model.replay_buffer.sample(8)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert th.equal(th.random.get_rng_state(), torch_state)
