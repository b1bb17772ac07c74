"""An engine over a runtime that is made here: what is asked of it, what becomes of its chunks, when it unloads."""

from __future__ import annotations

import json
import sys
import threading
import types
from datetime import datetime, timezone
from pathlib import Path

import httpx
import pytest

from sb3_nser.local.api import ApiError, ChatRequest, Options, parse_chat
from sb3_nser.local.engine import Engine, Outcome, Piece
from sb3_nser.local.gguf_info import GGUFInfo
from sb3_nser.local.server import ModelServer


def chunk(finish: str | None = None, timings: dict | None = None, **delta) -> dict:
    return {"choices": [{"delta": delta, "finish_reason": finish}], **({"timings": timings} if timings else {})}


TIMINGS = {"prompt_n": 5, "cache_n": 7, "prompt_ms": 2.0, "predicted_n": 3, "predicted_ms": 1.5}
THOUGHT = [chunk(role="assistant"), chunk(reasoning_content="hm"), [chunk(content="a"), chunk(content="b")]]
THOUGHT += [chunk("stop", TIMINGS)]


class FakeRuntime(types.ModuleType):
    """Stands in for ``xllamacpp``: records requests and plays chunks."""

    def __init__(self, chunks=THOUGHT, failure: Exception | None = None) -> None:
        super().__init__("xllamacpp")
        self.chunks, self.failure = chunks, failure
        self.requests: list[dict] = []
        self.loads: list[types.SimpleNamespace] = []
        self.played = 0

    def CommonParams(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            model=types.SimpleNamespace(), cpuparams=types.SimpleNamespace(), cpuparams_batch=types.SimpleNamespace()
        )

    def Server(self, params) -> FakeRuntime:
        self.loads.append(params)
        return self

    def handle_chat_completions(self, request, callback) -> None:
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        for item in self.chunks:
            self.played += 1
            if callback(item):
                return


@pytest.fixture
def runtime(monkeypatch):
    fake = FakeRuntime()
    monkeypatch.setitem(sys.modules, "xllamacpp", fake)
    return fake


def make_engine(template: str = "{% if enable_thinking %}") -> Engine:
    metadata = {"general.architecture": "toy", "toy.context_length": 2048, "bad": float("nan")}
    info = GGUFInfo(Path("toy.gguf"), 10, datetime.now(timezone.utc), "abc", metadata, template, 10)
    return Engine("toy:1", info)


def request(**fields) -> ChatRequest:
    return parse_chat({"model": "toy:1", "messages": [{"role": "user", "content": "Hi"}], **fields})


def generate(engine: Engine, fields: dict | None = None, on_piece=lambda piece: False) -> tuple[list[Piece], Outcome | None]:
    pieces: list[Piece] = []
    engine.load(512)
    outcome = engine.generate(request(**(fields or {})), lambda piece: pieces.append(piece) or on_piece(piece))
    return pieces, outcome


def test_thoughts_and_text_are_kept_apart(runtime):
    pieces, outcome = generate(make_engine())
    assert [(piece.thinking, piece.content) for piece in pieces] == [("", ""), ("hm", ""), ("", "a"), ("", "b"), ("", "")]
    assert outcome == Outcome("stop", prompt_tokens=12, prompt_ns=2_000_000, tokens=3, tokens_ns=1_500_000)


def test_options_reach_the_runtime_under_its_names(runtime):
    generate(make_engine(), {"options": {"num_predict": 9, "temperature": 0.1, "stop": ["x"], "seed": 4}, "format": "json"})
    sent = runtime.requests[0]
    assert (sent["n_predict"], sent["temperature"], sent["stop"], sent["seed"]) == (9, 0.1, ["x"], 4)
    assert (sent["top_k"], sent["top_p"], sent["repeat_penalty"]) == (40, 0.9, 1.0)
    assert sent["response_format"] == {"type": "json_object"}
    json.dumps(sent)


def test_without_a_limit_the_context_is_one(runtime):
    generate(make_engine())
    assert runtime.requests[0]["n_predict"] == 512


@pytest.mark.parametrize(("think", "sent"), [(None, True), (True, True), ("high", True), (False, False)])
def test_models_that_can_think_do_unless_told_not_to(runtime, think, sent):
    generate(make_engine(), {"think": think})
    assert runtime.requests[0]["chat_template_kwargs"] == {"enable_thinking": sent}
    generate(make_engine(template=""), {"think": False})
    assert "chat_template_kwargs" not in runtime.requests[1]


def test_a_schema_is_passed_on_as_it_is(runtime):
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}}
    generate(make_engine(), {"format": schema})
    assert runtime.requests[0]["response_format"]["json_schema"]["schema"] == schema


def test_true_cancels_at_once(runtime):
    pieces, outcome = generate(make_engine(), on_piece=lambda piece: bool(piece.thinking))
    assert outcome is None
    assert len(pieces) == runtime.played == 2


def test_what_the_listener_raises_comes_out_unchanged(runtime):
    def fail(piece: Piece) -> bool:
        raise BrokenPipeError("gone")

    with pytest.raises(BrokenPipeError, match="gone"):
        generate(make_engine(), on_piece=fail)
    assert runtime.played == 1


@pytest.mark.parametrize(
    ("chunks", "failure", "status", "part"),
    [
        ([{"error": {"code": 400, "message": "exceeds the context size (512 tokens)"}}], None, 400, "num_ctx"),
        ([{"error": {"message": "sick"}}], None, 500, "sick"),
        ([], None, 500, "without a result"),
        ([], ValueError("JSON schema error at #: odd"), 400, "invalid JSON schema in format: at #: odd"),
        ([], RuntimeError("broken"), 500, "broken"),
    ],
)
def test_the_runtimes_refusals_become_answers(runtime, chunks, failure, status, part):
    runtime.chunks, runtime.failure = chunks, failure
    with pytest.raises(ApiError) as caught:
        generate(make_engine(), {"format": {"type": "odd"}})
    assert caught.value.status == status
    assert part in caught.value.message


def test_it_is_loaded_anew_only_for_another_context_and_never_beyond_the_model(runtime):
    engine = make_engine()
    for num_ctx in (512, 512, 1024, 4096, 2048):
        engine.load(num_ctx)
    assert [params.n_ctx for params in runtime.loads] == [512, 1024, 2048]
    assert engine.num_ctx == 2048
    assert len(set(params.api_keys[0] for params in runtime.loads)) == 3  # the runtime's own port is locked
    assert runtime.loads[0].hostnames == ["127.0.0.1"]
    assert runtime.loads[0].cache_ram_mib == 0  # else memory grows with every new prompt


def test_it_unloads_when_due_and_idle(runtime):
    engine = make_engine()
    engine.load(512)
    assert engine.seconds_left == float("inf")
    engine.keep(100)
    engine.unload_if_due()
    assert engine.loaded
    engine.keep(1e-9)
    with engine.turnstile.turn():
        engine.unload_if_due()
        assert engine.loaded  # somebody is using it
    engine.unload_if_due()
    assert not engine.loaded
    engine.keep(100)  # nothing to keep
    assert not engine.loaded


def test_llama_threads_are_told_to_sleep_when_idle(runtime, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    make_engine().load(512)
    import os

    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # the user's own choice stands
    make_engine().load(512)
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.fixture
def served(runtime):
    engine = make_engine()
    server = ModelServer({"toy:1": engine})
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=10) as client:
        yield engine, client
    server.shutdown()
    server.server_close()


CALL = {"model": "toy:1", "messages": [{"role": "user", "content": "Hi"}]}


def test_thoughts_travel_in_their_own_field(served):
    _, client = served
    answer = client.post("/api/chat", json={**CALL, "stream": False}).json()
    assert answer["message"] == {"role": "assistant", "content": "ab", "thinking": "hm"}
    assert (answer["eval_count"], answer["prompt_eval_count"], answer["done_reason"]) == (3, 12, "stop")
    lines = [json.loads(line) for line in client.post("/api/chat", json=CALL).text.splitlines()]
    assert [line["message"].get("thinking") for line in lines] == ["hm", None, None, None]
    assert [line["done"] for line in lines] == [False, False, False, True]


def test_a_full_queue_is_a_503(served):
    engine, client = served
    engine.turnstile.bound = 0
    with engine.turnstile.turn():
        response = client.post("/api/chat", json=CALL)
    assert response.status_code == 503
    assert "busy" in response.json()["error"]


def test_an_error_in_mid_stream_is_a_line(served, runtime):
    _, client = served
    runtime.chunks = [chunk(content="a"), {"error": {"code": 500, "message": "sick"}}]
    response = client.post("/api/chat", json=CALL)
    assert response.status_code == 200
    assert json.loads(response.text.splitlines()[-1]) == {"error": "sick"}
    assert client.get("/").status_code == 200


def test_a_fault_of_the_server_is_a_500(served, runtime):
    _, client = served
    runtime.chunks = [chunk(content="a"), chunk("stop", {"prompt_n": "many"})]
    response = client.post("/api/chat", json={**CALL, "stream": False})
    assert response.status_code == 500
    assert response.json()["error"].startswith("internal error: ValueError")


def test_a_model_that_is_busy_is_listed_with_numbers_json_can_hold(served):
    _, client = served
    client.post("/api/chat", json={"model": "toy:1", "keep_alive": -1})
    assert client.get("/api/ps").json()["models"][0]["context_length"] == 2048
    assert client.post("/api/show", json={"name": "toy:1"}).json()["model_info"]["bad"] is None


def test_options_default_to_a_frozen_value():
    assert ChatRequest("m", ()).options == Options()
