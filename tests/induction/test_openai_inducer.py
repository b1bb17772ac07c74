"""Any OpenAI-compatible server: the schema, deadlines, failures and records of Ollama, and a key that stays secret."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

from fake_ollama import GOOD, sleep_until
from fake_openai import Completion, FakeOpenAI
from sb3_nser import OpenAIInducer, RuleInductionCallback
from sb3_nser.errors import ConfigurationError, InductionError, LLMUnavailableError, NSERWarning
from sb3_nser.induction import InductionFailure, InductionReply, InductionRequest, read_record
from sb3_nser.rules import problems
from scripted import dqn, fingerprint

REQUEST = InductionRequest(2, 1000, ({"role": "user", "content": "rules, please"},), {"type": "object"}, 3, "names")
KEY = "sk-test-4f1d9c-secret"


@pytest.fixture(autouse=True)
def no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def ask(host: str, **settings: object) -> InductionReply:
    options: dict[str, object] = {"deadline": 5.0, "first_deadline": 5.0, **settings}
    return OpenAIInducer("fake", host, **options).propose(REQUEST)  # type: ignore[arg-type]


def failure(host: str, **settings: object) -> InductionFailure:
    with pytest.raises(InductionFailure) as caught:
        ask(host, **settings)
    return caught.value


# ---------------------------------------------------------------- what is sent and what comes back


def test_what_is_sent_and_what_is_read() -> None:
    with FakeOpenAI(lambda exchange: exchange.reply(GOOD)) as server:
        reply = ask(server.host, seed=5, num_predict=200, temperature=0.7)
        sent, path = server.requests[0], server.paths[0]
    assert path == "/v1/chat/completions"  # an address without a path gets /v1
    assert (reply.text, reply.model, reply.prompt_tokens, reply.reply_tokens, reply.notes) == (GOOD, "fake", 300, 50, ())
    assert sent["response_format"]["json_schema"]["schema"] == REQUEST.schema
    assert (sent["seed"], sent["max_tokens"], sent["temperature"], sent["stream"]) == (7, 200, 0.7, True)


@pytest.mark.parametrize("trickling", [False, True], ids=["never answers", "one space at a time"])
def test_the_whole_call_has_a_deadline(trickling: bool) -> None:
    stop = threading.Event()

    def script(exchange: Completion) -> None:
        exchange.trickle(stop) if trickling else sleep_until(stop)

    with FakeOpenAI(script) as server:
        started = time.monotonic()
        error = failure(server.host, deadline=1.0, first_deadline=1.0)
        seconds = time.monotonic() - started
        stop.set()
    assert error.cause == "deadline" and server.host in error.message
    assert seconds < 10  # not a benchmark: the server would have gone on for a minute


def start(content: str) -> dict[str, object]:
    return {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": content}}]}


TROUBLE = {
    "socket dropped": (lambda x: x.drop(), "connection"),
    "half a body": (lambda x: x.send(b'data: {"id": "x", "cho', length=500, kind="text/event-stream"), "connection"),
    "answer ends early": (lambda x: x.events(start("{"), done=False), "connection"),
    "502 html": (lambda x: x.send(b"<html>bad gateway</html>", 502, "text/html"), "server"),
    "200 html": (lambda x: x.send(b"<html>please log in</html>", 200, "text/html"), "server"),
    "error in the stream": (lambda x: x.events({"error": {"message": "something broke"}}), "server"),
    "event that is no JSON": (lambda x: x.send(b"data: {nonsense\n\n", kind="text/event-stream"), "server"),
    "404 model": (lambda x: x.error(404, "The model `fake` does not exist"), "model"),
    "400 context": (lambda x: x.error(400, "This model's maximum context length is 4096 tokens, max_tokens 600"), "context"),
    "401": (lambda x: x.error(401, "Incorrect API key provided"), "server"),
    "429": (lambda x: x.error(429, "You exceeded your current quota"), "server"),
    "endless": (lambda x: x.events(*[start("x" * 50_000)] * 200), "reply"),
}


@pytest.mark.parametrize("name", TROUBLE)
def test_every_failure_is_one_type_with_its_cause_in_words(name: str) -> None:
    script, cause = TROUBLE[name]
    with FakeOpenAI(script) as server:
        error = failure(server.host)
        assert len(server.requests) == 1  # nothing is retried behind the deadline's back
    assert error.cause == cause, error.message
    assert "fake" in error.message or server.host in error.message
    assert len(error.message) < 400


def test_port_closed_after_the_start() -> None:
    with FakeOpenAI(lambda exchange: exchange.reply(GOOD)) as server:
        host = server.host
    assert failure(host).cause == "connection"


def test_a_redirect_is_not_followed_with_the_prompt() -> None:
    with FakeOpenAI(lambda exchange: exchange.reply(GOOD)) as elsewhere:

        def script(exchange: Completion) -> None:
            exchange._handler.send_response(307)
            exchange._handler.send_header("Location", f"{elsewhere.host}/v1/chat/completions")
            exchange._handler.send_header("Content-Length", "0")
            exchange._handler.end_headers()

        with FakeOpenAI(script) as server:
            assert failure(server.host).cause == "server"
        assert elsewhere.requests == []


def test_cut_reply_names_the_setting_and_the_next_call_changes_something() -> None:
    with FakeOpenAI(lambda exchange: exchange.reply(GOOD[: len(GOOD) // 2], "length")) as server:
        inducer = OpenAIInducer("fake", server.host, num_predict=200)
        for _ in range(2):
            with pytest.raises(InductionFailure) as caught:
                inducer.propose(REQUEST)
            assert caught.value.cause == "cut" and "num_predict" in caught.value.message
        assert [request["max_tokens"] for request in server.requests] == [200, 400]


# ---------------------------------------------------------------- servers that take less, or do not care


def test_a_refused_schema_is_asked_for_less_step_by_step_and_remembered() -> None:
    def script(exchange: Completion) -> None:
        form = exchange.body.get("response_format", {}).get("type")
        exchange.error(400, f"'response_format.type' {form} is not supported") if form else exchange.reply(GOOD)

    with FakeOpenAI(script) as server:
        inducer = OpenAIInducer("fake", server.host)
        assert any("refuses the JSON schema" in note for note in inducer.propose(REQUEST).notes)
        inducer.propose(REQUEST)
        forms = [request.get("response_format", {}).get("type") for request in server.requests]
    assert forms == ["json_schema", "json_object", None, None]


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        ("max_tokens", "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."),
        ("temperature", "Unsupported value: 'temperature' does not support 0.3 with this model."),
        ("seed", "Unknown field: seed"),
        ("stream_options", "stream_options: extra fields not permitted"),
    ],
)
def test_a_parameter_that_a_server_refuses_is_left_out_or_renamed(refused: str, text: str) -> None:
    def script(exchange: Completion) -> None:
        exchange.error(400, text) if refused in exchange.body else exchange.reply(GOOD)

    with FakeOpenAI(script) as server:
        inducer = OpenAIInducer("fake", server.host)
        assert inducer.propose(REQUEST).text == GOOD and inducer.propose(REQUEST).text == GOOD
        assert len(server.requests) == 3 and refused not in server.requests[-1]
        if refused == "max_tokens":
            assert server.requests[-1]["max_completion_tokens"] == 600


def test_a_server_that_refuses_everything_is_not_asked_for_ever() -> None:
    text = "response_format, temperature, seed, stream_options and max_completion_tokens are not supported"
    with FakeOpenAI(lambda exchange: exchange.error(400, text)) as server:
        failure(server.host)
        assert len(server.requests) <= 8


@pytest.mark.parametrize(
    "wrapped",
    [
        "```json\n{}\n```",
        "Here are the rules: {} I hope they help.",
        "<think>Shall I write {{}}? {{'rules'}}</think>\n{}",
    ],
)
def test_a_server_that_ignores_the_schema_is_warned_about_once_and_read_all_the_same(wrapped: str) -> None:
    with FakeOpenAI(lambda exchange: exchange.reply(wrapped.format(GOOD))) as server:
        inducer = OpenAIInducer("fake", server.host)
        callback = RuleInductionCallback(inducer=inducer, every=300, max_calls=3, blocking=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dqn().learn(1_200, callback=callback)
    ours = [str(item.message) for item in caught if issubclass(item.category, NSERWarning)]
    assert len(ours) == 1 and "does not hold the model to the JSON schema" in ours[0] and server.host in ours[0]
    assert callback.budget.calls == 3 and callback.budget.failures == 0 and len(callback.book) == 1


def test_prose_without_rules_is_a_failure_and_training_goes_on() -> None:
    with FakeOpenAI(lambda exchange: exchange.reply("I cannot help with {that}.")) as server:
        callback = RuleInductionCallback("fake", inducer="openai", host=server.host, every=300, max_calls=2, blocking=True)
        with pytest.warns(NSERWarning, match="did not honour the schema"):
            model = dqn().learn(1_000, callback=callback)
    assert model.num_timesteps == 1_000 and callback.budget.failures == 2 and len(callback.book) == 0


# ---------------------------------------------------------------- before training


def test_check_names_what_is_wrong() -> None:
    with FakeOpenAI(lambda exchange: None, models=("small", "large")) as server:
        assert OpenAIInducer("small", server.host).check() is None
        with pytest.raises(LLMUnavailableError, match=r"has no model 'smal' \(it has: large, small\). Did you mean 'small'"):
            OpenAIInducer("smal", server.host).check()
        host = server.host
    with pytest.raises(LLMUnavailableError, match="no server answers"):
        OpenAIInducer("small", host).check()
    for status, key, text in ((401, None, "wants an API key"), (403, KEY, "refuses the API key")):
        with FakeOpenAI(lambda exchange: None, listing=(status, b'{"error": {"message": "no"}}')) as server:
            with pytest.raises(LLMUnavailableError, match=text):
                OpenAIInducer("small", server.host, api_key=key).check()
    with FakeOpenAI(lambda exchange: None, listing=(404, b"{}")) as server:
        assert "does not list its models" in (OpenAIInducer("small", server.host).check() or "")
    with FakeOpenAI(lambda exchange: None, listing=(200, b"<html>log in</html>")) as server:
        with pytest.raises(LLMUnavailableError, match="no OpenAI-compatible server"):
            OpenAIInducer("small", server.host).check()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"host": "ftp://x"}, "host"),
        ({"host": "http://"}, "host"),
        ({"host": "http://a b/v1"}, "host"),
        ({"host": f"https://me:{KEY}@x/v1"}, "OPENAI_API_KEY"),
        ({"host": f"https://x/v1?key={KEY}"}, "OPENAI_API_KEY"),
        ({"model": ""}, "llm"),
        ({"deadline": 0}, "deadline"),
        ({"num_ctx": 600}, "num_ctx"),
        ({"temperature": 3}, "temperature"),
        ({"api_key": 7}, "api_key"),
    ],
)
def test_wrong_settings_are_refused_at_construction(settings: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as caught:
        OpenAIInducer(**{"model": "fake", "host": "http://localhost:1", **settings})  # type: ignore[arg-type]
    assert KEY not in str(caught.value)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OpenAIInducer("m").host == "https://api.openai.com/v1"
    assert OpenAIInducer("m", "localhost:8000").host == "http://localhost:8000/v1"
    assert OpenAIInducer("m", "http://x/api/v3/").host == "http://x/api/v3"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there:1/v1")
    assert OpenAIInducer("m").host == "http://there:1/v1"


# ---------------------------------------------------------------- the key


@pytest.mark.parametrize("given", ["argument", "environment"])
def test_the_key_goes_to_the_server_and_nowhere_else(
    given: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that repeats the key in its replies and in its errors, and every file that a run leaves."""
    caplog.set_level(logging.DEBUG)
    if given == "environment":
        monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def script(exchange: Completion) -> None:
        if exchange.number == 1:
            rules = json.loads(GOOD)
            rules["rules"][0]["why"] = f"because {KEY}"
            exchange.reply(json.dumps(rules))
        else:
            exchange.error(401, f"Incorrect API key provided: {KEY}")

    with FakeOpenAI(script) as server:
        inducer = OpenAIInducer("fake", server.host, api_key=KEY if given == "argument" else None)
        callback = RuleInductionCallback(
            inducer=inducer,
            every=300,
            max_calls=2,
            blocking=True,
            record=tmp_path / "record.jsonl",
            save_rules=tmp_path / "rules.yaml",
            verbose=1,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = dqn(verbose=1, tensorboard_log=str(tmp_path / "board")).learn(1_000, callback=callback)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        assert set(server.authorizations) == {f"Bearer {KEY}"} and len(server.requests) == 2
        with pytest.raises(InductionFailure) as failed:
            inducer.propose(REQUEST)
    assert callback.budget.failures == 1 and len(callback.book) == 1
    (tmp_path / "pickled").write_bytes(pickle.dumps(inducer))
    if given == "argument":
        assert pickle.loads(pickle.dumps(inducer))._key == ""
    said = "".join(traceback.format_exception(failed.value)) + repr(inducer) + str(vars(inducer)) + caplog.text
    said += "".join(str(item.message) for item in caught) + "".join(capfd.readouterr())
    assert KEY not in said
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"record.jsonl", "rules.yaml", "model.zip", "buffer.pkl", "pickled"} <= {path.name for path in files}
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path
    assert "***" in (tmp_path / "record.jsonl").read_text()


def test_strict_mode_raises_without_the_key() -> None:
    with FakeOpenAI(lambda exchange: exchange.error(401, f"Incorrect API key provided: {KEY}")) as server:
        inducer = OpenAIInducer("fake", server.host, api_key=KEY)
        callback = RuleInductionCallback(inducer=inducer, every=300, blocking=True, strict=True)
        with pytest.raises(InductionError) as caught, pytest.warns(NSERWarning, match=r"status 401.*\*\*\*"):
            dqn().learn(1_000, callback=callback)
    assert KEY not in "".join(traceback.format_exception(caught.value))


# ---------------------------------------------------------------- a real model


@pytest.mark.llm
@pytest.mark.slow
def test_a_real_model_behind_the_openai_port_and_its_record(ollama_host: str, tmp_path: Path) -> None:
    record = tmp_path / "induction.jsonl"
    settings = {"every": 1_500, "max_calls": 2, "blocking": True, "inducer": "openai"}
    callback = RuleInductionCallback("qwen2.5-coder:0.5b", host=ollama_host, record=record, **settings)
    model = dqn().learn(4_000, callback=callback)
    assert callback.budget.calls == 2 and callback.budget.failures == 0 and len(callback.book) >= 1
    assert all(problems(entry.rule, callback.vocabulary) == [] for entry in callback.book.entries)
    entries = read_record(record)
    assert all(entry.reply_tokens > 10 and entry.prompt_tokens > 100 and not entry.notes for entry in entries)
    replayed = RuleInductionCallback("qwen2.5-coder:0.5b", replay_record=record, **settings)
    again = dqn().learn(4_000, callback=replayed)
    assert np.array_equal(fingerprint(model), fingerprint(again))
