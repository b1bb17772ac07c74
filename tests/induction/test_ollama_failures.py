"""What can go wrong on the wire: every case ends in one kind of failure, with its cause in words, within the deadline."""

from __future__ import annotations

import json
import threading
import time

import pytest

from fake_ollama import GOOD, Exchange, FakeOllama, sleep_until
from sb3_nser.errors import ConfigurationError, LLMUnavailableError
from sb3_nser.induction import InductionFailure, InductionReply, InductionRequest, OllamaInducer

REQUEST = InductionRequest(0, 1000, ({"role": "user", "content": "rules, please"},), {"type": "object"}, 3, "names")


def ask(host: str, **settings: object) -> InductionReply:
    options: dict[str, object] = {"deadline": 5.0, "first_deadline": 5.0, **settings}
    return OllamaInducer("fake", host, **options).propose(REQUEST)  # type: ignore[arg-type]


def failure(host: str, **settings: object) -> InductionFailure:
    with pytest.raises(InductionFailure) as caught:
        ask(host, **settings)
    return caught.value


def test_good_reply_carries_text_tokens_and_the_models_name() -> None:
    with FakeOllama(lambda exchange: exchange.reply(GOOD)) as server:
        reply = ask(server.host)
        sent = server.requests[0]
    assert json.loads(reply.text)["rules"][0]["action"] == "push_right"
    assert (reply.model, reply.prompt_tokens, reply.reply_tokens) == ("fake", 300, 50)
    assert sent["options"]["num_ctx"] == 4096 and sent["think"] is False and sent["format"] == {"type": "object"}


@pytest.mark.parametrize("trickling", [False, True], ids=["never answers", "one space at a time"])
def test_the_whole_call_has_a_deadline(trickling: bool) -> None:
    stop = threading.Event()

    def script(exchange: Exchange) -> None:
        exchange.trickle(stop) if trickling else sleep_until(stop)

    with FakeOllama(script) as server:
        started = time.monotonic()
        error = failure(server.host, deadline=1.0, first_deadline=1.0)
        seconds = time.monotonic() - started
        stop.set()
    assert error.cause == "deadline"
    assert "fake" in error.message and server.host in error.message and "1." in error.message
    assert seconds < 10  # not a benchmark: the server would have gone on for a minute


PART = b'{"model": "fake", "message": {"role": "assistant", "content": "{"}, "done": false}\n'
TROUBLE = {
    "socket dropped": (lambda x: x.drop(), "connection"),
    "half a body": (lambda x: x.send(b'{"model": "fake", "mess', length=500), "connection"),
    "answer ends early": (lambda x: x.send(PART), "connection"),
    "502 html": (lambda x: x.send(b"<html>bad gateway</html>", 502, "text/html"), "server"),
    "200 html": (lambda x: x.send(b"<html>please log in</html>", 200, "text/html"), "server"),
    "200 error": (lambda x: x.send(b'{"error": "something broke"}\n'), "server"),
    "200 without message": (lambda x: x.send(b'{"model": "fake", "done": true}\n'), "server"),
    "404 model": (lambda x: x.error(404, "model 'fake' not found"), "model"),
    "400 context": (lambda x: x.error(400, "the request exceeds the available context size (4096 tokens)"), "context"),
    "not utf-8": (lambda x: x.send(b"\xff\xfe\x00 nonsense \xff\n"), "server"),
}


@pytest.mark.parametrize("name", TROUBLE)
def test_every_failure_is_one_type_with_its_cause_in_words(name: str) -> None:
    script, cause = TROUBLE[name]
    with FakeOllama(script) as server:
        error = failure(server.host)
    assert error.cause == cause, error.message
    assert "fake" in error.message or server.host in error.message
    assert len(error.message) < 400


def test_port_closed_after_the_start() -> None:
    with FakeOllama(lambda exchange: exchange.reply(GOOD)) as server:
        host = server.host
    assert failure(host).cause == "connection"


def test_endless_reply_is_bounded() -> None:
    line = PART.replace(b'{"}', b"x" * 50_000 + b'"}')
    with FakeOllama(lambda exchange: exchange.send(line * 200)) as server:
        assert failure(server.host).cause == "reply"


def test_cut_reply_names_the_setting_and_the_next_call_changes_something() -> None:
    with FakeOllama(lambda exchange: exchange.reply(GOOD[: len(GOOD) // 2], "length")) as server:
        inducer = OllamaInducer("fake", server.host, num_predict=200)
        for _ in range(2):
            with pytest.raises(InductionFailure) as caught:
                inducer.propose(REQUEST)
            assert caught.value.cause == "cut" and "num_predict" in caught.value.message
        limits = [request["options"]["num_predict"] for request in server.requests]
    assert limits == [200, 400]


def test_whole_reply_at_the_limit_is_used_with_a_note() -> None:
    with FakeOllama(lambda exchange: exchange.reply(GOOD, "length")) as server:
        reply = ask(server.host)
    assert any("num_predict" in note for note in reply.notes)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "invalid JSON schema in format"),
        (500, "failed to parse grammar"),
        (400, "json: cannot unmarshal object into Go struct field ChatRequest.format of type string"),
    ],
)
def test_refused_schema_falls_back_to_plain_json_once(status: int, text: str) -> None:
    def script(exchange: Exchange) -> None:
        exchange.reply(GOOD) if exchange.body["format"] == "json" else exchange.error(status, text)

    with FakeOllama(script) as server:
        inducer = OllamaInducer("fake", server.host)
        assert any("refuses the schema" in note for note in inducer.propose(REQUEST).notes)
        inducer.propose(REQUEST)
        formats = [request["format"] for request in server.requests]
    assert formats == [{"type": "object"}, "json", "json"]  # never tried again


def test_refused_schema_and_refused_json_is_not_retried_for_ever() -> None:
    with FakeOllama(lambda exchange: exchange.error(400, "invalid format")) as server:
        assert failure(server.host).cause == "schema"
        assert len(server.requests) == 2


def test_loading_model_is_asked_again() -> None:
    def script(exchange: Exchange) -> None:
        exchange.reply("", "load") if exchange.number == 1 else exchange.reply(GOOD)

    with FakeOllama(script) as server:
        assert ask(server.host).text == GOOD


def test_first_call_may_take_longer_than_later_ones() -> None:
    def script(exchange: Exchange) -> None:
        time.sleep(1.5)
        exchange.reply(GOOD)

    with FakeOllama(script) as server:
        inducer = OllamaInducer("fake", server.host, deadline=0.5, first_deadline=10.0)
        inducer.propose(REQUEST)
        with pytest.raises(InductionFailure) as caught:
            inducer.propose(REQUEST)
    assert caught.value.cause == "deadline"


def test_prompt_cut_by_the_server_is_noticed() -> None:
    long = InductionRequest(0, 0, ({"role": "user", "content": "word " * 8000},), {"type": "object"}, 3, "names")
    with FakeOllama(lambda exchange: exchange.reply(GOOD, prompt_eval_count=2050)) as server:
        reply = OllamaInducer("fake", server.host).propose(long)
    assert any("num_ctx" in note for note in reply.notes)


def test_check_names_missing_model_and_the_cure() -> None:
    with FakeOllama(lambda exchange: None, models=("qwen3:4b", "llama3:latest")) as server:
        assert OllamaInducer("llama3", server.host).check() is None  # x means x:latest
        with pytest.raises(LLMUnavailableError, match=r"ollama pull qwen3:4") as caught:
            OllamaInducer("qwen3:4", server.host).check()
    assert "qwen3:4b" in str(caught.value)


def test_check_without_a_server() -> None:
    with FakeOllama(lambda exchange: None) as server:
        host = server.host
    with pytest.raises(LLMUnavailableError, match="ollama serve"):
        OllamaInducer("fake", host).check()


@pytest.mark.parametrize(
    "settings",
    [
        {"deadline": 0},
        {"deadline": "soon"},
        {"num_ctx": 100},
        {"num_ctx": "1e3", "num_predict": 900},
        {"temperature": float("nan")},
    ],
)
def test_wrong_settings_are_refused_at_construction(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="|".join(settings)):
        OllamaInducer("fake", **settings)  # type: ignore[arg-type]


def test_numbers_as_text_are_understood() -> None:
    inducer = OllamaInducer("fake", num_ctx="8e3", deadline="30")  # type: ignore[arg-type]
    assert (inducer.num_ctx, inducer.deadline) == (8000, 30.0)
