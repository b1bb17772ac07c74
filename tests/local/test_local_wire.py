"""A real server process and a real model, spoken to by the official ollama client."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timezone

import httpx
import ollama
import pytest
from pydantic import BaseModel, Field

from sb3_nser.local import CATALOGUE, DEFAULT_MODEL

pytestmark = pytest.mark.llm

MODEL = "smollm2:135m"
HELLO = [{"role": "user", "content": "Say hello."}]
SHORT = {"num_predict": 8, "seed": 1}
# Takes the tiny model a minute or more, whatever it would like to say: a thousand numbers are demanded.
ENDLESS = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}


@pytest.fixture(scope="module")
def client(ollama_host):
    return ollama.Client(host=ollama_host, timeout=60)


def test_the_models_are_listed(client):
    listed = {model.model: model for model in client.list().models}
    assert set(listed) == {DEFAULT_MODEL, MODEL}
    assert listed[MODEL].digest == CATALOGUE[MODEL].sha256
    assert listed[MODEL].size == CATALOGUE[MODEL].size
    assert listed[MODEL].details.parameter_size == "134.52M"
    assert listed[MODEL].details.quantization_level == "Q4_1"


def test_a_model_is_shown(client):
    shown = client.show(MODEL)
    assert shown.details.family == "llama"
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo["llama.context_length"] == 8192
    assert "message" in shown.template


def test_a_chat_has_text_reason_and_counts(client):
    answer = client.chat(MODEL, HELLO, options=SHORT)
    assert answer.model == MODEL
    assert answer.message.role == "assistant"
    assert answer.message.content
    assert answer.done
    assert answer.done_reason in ("stop", "length")
    assert 1 <= answer.eval_count <= 8
    assert answer.prompt_eval_count > 5
    assert answer.total_duration > answer.eval_duration > 0
    assert answer.load_duration > 0


def test_too_few_tokens_end_with_length(client):
    answer = client.chat(MODEL, [{"role": "user", "content": "Tell a long story."}], options={"num_predict": 3})
    assert (answer.done_reason, answer.eval_count) == ("length", 3)


def test_a_stop_text_ends_with_stop(client):
    answer = client.chat(MODEL, HELLO, options={"num_predict": 40, "temperature": 0, "stop": ["e", "o", "a", "i"]})
    assert answer.done_reason == "stop"
    assert not set("eoai") & set(answer.message.content)


def test_the_same_seed_says_the_same(client):
    texts = {client.chat(MODEL, HELLO, options={"num_predict": 12, "seed": 7}).message.content for _ in range(3)}
    assert len(texts) == 1


def test_a_prompt_with_a_known_beginning_is_read_from_there(client):
    long = "Numbers: " + " ".join(map(str, range(150)))
    first, second = (
        client.chat(MODEL, [{"role": "user", "content": f"{long} {end}"}], options={"num_predict": 1}) for end in "ab"
    )
    assert second.prompt_eval_count == pytest.approx(first.prompt_eval_count, abs=3)  # what is known counts too, but
    assert second.prompt_eval_duration < first.prompt_eval_duration / 2  # costs no time


def test_streamed_pieces_join_to_the_whole(client):
    options = {"num_predict": 12, "temperature": 0}
    pieces = list(client.chat(MODEL, HELLO, stream=True, options=options))
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == 12
    assert "".join(piece.message.content for piece in pieces) == client.chat(MODEL, HELLO, options=options).message.content


class Rule(BaseModel):
    """What the product asks a model for, in small."""

    feature: str = Field(max_length=20)
    threshold: int = Field(ge=-10, le=10)
    action: int = Field(ge=0, le=1)


class Rules(BaseModel):
    rules: list[Rule] = Field(min_length=1, max_length=2)


@pytest.mark.parametrize("model", [DEFAULT_MODEL, MODEL])
def test_a_schema_is_obeyed(client, model):
    question = [{"role": "user", "content": "Rules for balancing a pole: feature, threshold, action 0 or 1. Reply in JSON."}]
    answer = client.chat(model, question, format=Rules.model_json_schema(), options={"num_predict": 160, "seed": 3})
    assert answer.done_reason == "stop"
    assert 1 <= len(Rules.model_validate_json(answer.message.content).rules) <= 2


def test_plain_json_is_an_object(client):
    options = {"num_predict": 60, "seed": 2}
    answer = client.chat(
        DEFAULT_MODEL, [{"role": "user", "content": 'Reply {"ok": true} in JSON.'}], format="json", options=options
    )
    assert answer.message.content.lstrip().startswith("{")


def test_load_unload_and_what_runs(client):
    loaded = client.chat(MODEL, [], keep_alive="10m", options={"num_ctx": 512})
    assert (loaded.done_reason, loaded.message.content) == ("load", "")
    running = {model.model: model for model in client.ps().models}
    assert running[MODEL].context_length == 512
    left = (running[MODEL].expires_at - datetime.now(timezone.utc)).total_seconds()
    assert 590 < left <= 600
    assert client.chat(MODEL, [], keep_alive=0).done_reason == "unload"
    assert MODEL not in {model.model for model in client.ps().models}


def test_a_model_is_unloaded_when_its_time_is_over(client):
    client.chat(MODEL, HELLO, options=SHORT, keep_alive="300ms")
    until = time.monotonic() + 10
    while MODEL in {model.model for model in client.ps().models}:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_model_can_be_kept_for_ever(client):
    client.chat(MODEL, [], keep_alive=-1)
    expires = {model.model: model.expires_at for model in client.ps().models}[MODEL]
    assert expires.year > datetime.now(timezone.utc).year + 50
    client.chat(MODEL, [], keep_alive="5m")


def test_keep_alive_zero_answers_and_then_unloads(client):
    assert client.chat(MODEL, HELLO, options=SHORT, keep_alive=0).message.content
    assert MODEL not in {model.model for model in client.ps().models}


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        ({"model": "absent"}, 404, "model 'absent' not found"),
        ({"think": True}, 400, f'"{MODEL}" does not support thinking'),
        ({"options": {"seed": "one"}}, 500, 'option "seed" must be of type integer'),
        ({"keep_alive": "soon"}, 400, "keep_alive"),
        ({"format": {"type": "wat"}}, 400, "invalid JSON schema in format: at #: unrecognized type wat"),
        ({"format": {"$ref": "https://example.org/schema"}}, 400, "invalid JSON schema in format"),
        ({"messages": [{"role": "user", "content": "word " * 800}], "options": {"num_ctx": 512}}, 400, "512 tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_ollamas_status_and_one_string(client, arguments, status, part, stream):
    with pytest.raises(ollama.ResponseError) as caught:
        answer = client.chat(**{"model": MODEL, "messages": HELLO, "stream": stream, **arguments})
        list(answer)
    assert caught.value.status_code == status
    assert part in caught.value.error


def test_a_bad_format_is_a_500(ollama_host):
    body = {"model": MODEL, "messages": HELLO, "format": "yaml"}  # the official client would not send it
    response = httpx.post(f"{ollama_host}/api/chat", json=body, trust_env=False)
    assert response.status_code == 500
    assert response.json()["error"].startswith('invalid format: "yaml"')


def test_not_thinking_is_always_possible(client):
    assert client.chat(MODEL, HELLO, think=False, options=SHORT).message.thinking is None


def test_an_over_long_prompt_leaves_the_model_usable(client):
    with pytest.raises(ollama.ResponseError, match="num_ctx"):
        client.chat(MODEL, [{"role": "user", "content": "word " * 800}], options={"num_ctx": 512})
    assert client.chat(MODEL, HELLO, options={**SHORT, "num_ctx": 512}).message.content


def seconds_until_served(client) -> float:
    began = time.monotonic()
    client.chat(MODEL, HELLO, options={"num_predict": 1})
    return time.monotonic() - began


def test_a_client_that_gives_up_frees_the_model(client, ollama_host):
    seconds_until_served(client)  # so that the model is loaded
    hasty = ollama.Client(host=ollama_host, timeout=0.5)
    with pytest.raises(httpx.ReadTimeout):
        hasty.chat(MODEL, HELLO, format=ENDLESS)
    assert seconds_until_served(client) < 10


def test_a_client_that_gives_up_while_the_prompt_is_read_frees_the_model(client, ollama_host):
    seconds_until_served(client)
    hasty = ollama.Client(host=ollama_host, timeout=0.5)
    with pytest.raises(httpx.ReadTimeout):
        hasty.chat(MODEL, [{"role": "user", "content": "another " * 3800}], options={"num_predict": 1})
    assert seconds_until_served(client) < 10


def test_a_stream_that_is_closed_frees_the_model(client):
    stream = client.chat(MODEL, HELLO, stream=True, format=ENDLESS)
    next(stream)
    stream.close()
    assert seconds_until_served(client) < 10


def test_a_client_that_gives_up_in_the_queue_is_forgotten(client, ollama_host):
    stream = client.chat(MODEL, HELLO, stream=True, format=ENDLESS)
    next(stream)
    hasty = ollama.Client(host=ollama_host, timeout=0.3)
    with pytest.raises(httpx.ReadTimeout):
        hasty.chat(MODEL, HELLO, format=ENDLESS)
    stream.close()
    assert seconds_until_served(client) < 10


def test_asynchronous_calls_wait_for_each_other(ollama_host):
    async def run() -> list[str]:
        client = ollama.AsyncClient(host=ollama_host, timeout=60)
        calls = [client.chat(MODEL, HELLO, options={"num_predict": 6, "seed": seed}) for seed in range(4)]
        answers = await asyncio.gather(*calls)
        shown, listed, running = await asyncio.gather(client.show(MODEL), client.list(), client.ps())
        assert shown.details.format == "gguf"
        assert len(listed.models) == 2
        assert MODEL in {model.model for model in running.models}
        return [answer.message.content for answer in answers]

    assert all(asyncio.run(run()))


def test_asynchronous_streaming_and_cancelling(client, ollama_host):
    async def run() -> None:
        asynchronous = ollama.AsyncClient(host=ollama_host, timeout=60)
        pieces = [piece async for piece in await asynchronous.chat(MODEL, HELLO, stream=True, options=SHORT)]
        assert pieces[-1].done
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asynchronous.chat(MODEL, HELLO, format=ENDLESS), 0.5)

    asyncio.run(run())
    assert seconds_until_served(client) < 10


def test_the_environment_leads_the_client_here(ollama_host, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", ollama_host)
    assert MODEL in {model.model for model in ollama.Client().list().models}
