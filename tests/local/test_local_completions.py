"""OpenAI's routes of the embedded server: requests as data, and the official client against a real model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from conftest import WIRE_MODEL
from hypothesis import given
from hypothesis import strategies as st

from sb3_nser.local.api import ApiError
from sb3_nser.local.completions import parse_completion

HELLO = [{"role": "user", "content": "Say hello."}]


def parsed(**fields: Any):
    return parse_completion({"model": "m", "messages": HELLO, **fields})


def test_defaults_are_openais() -> None:
    request = parsed()
    assert not request.chat.stream and not request.usage and request.chat.format is None
    assert (request.chat.options.temperature, request.chat.options.top_p, request.chat.options.num_predict) == (1.0, 1.0, -1)


def test_parameters_are_translated() -> None:
    request = parsed(max_tokens=7, temperature=0, seed=3, stop="\n", stream=True, stream_options={"include_usage": True})
    options = request.chat.options
    assert (options.num_predict, options.temperature, options.seed, options.stop) == (7, 0.0, 3, ("\n",))
    assert request.chat.stream and request.usage
    assert parsed(max_tokens=7, max_completion_tokens=9, n=1, user="me").chat.options.num_predict == 9
    schema = {"type": "object"}
    assert parsed(response_format={"type": "json_schema", "json_schema": {"schema": schema}}).chat.format == schema
    assert parsed(response_format={"type": "json_object"}).chat.format == "json"
    assert parsed(response_format={"type": "text"}).chat.format is None


def test_messages_in_parts_and_the_developers_role() -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    request = parsed(messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}])
    assert request.chat.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."})


@pytest.mark.parametrize(
    ("fields", "status", "part"),
    [
        ({"model": None}, 400, "model is required"),
        ({"messages": []}, 400, "at least one message"),
        ({"messages": ["hi"]}, 400, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "text only"),
        ({"temperature": "hot"}, 400, '"temperature"'),
        ({"max_tokens": "7"}, 400, '"num_predict"'),
        ({"stop": [1]}, 400, '"stop"'),
        ({"response_format": {"type": "yaml"}}, 400, "response_format.type"),
        ({"response_format": "json"}, 400, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, 400, "json_schema.schema"),
        ({"tools": [{}]}, 501, "tools"),
        ({"logprobs": True}, 501, "logprobs"),
    ],
)
def test_what_cannot_be_served_is_refused(fields: dict[str, Any], status: int, part: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert caught.value.status == status and part in caught.value.message


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(["type", "role", "content"]), scalars)
KEYS = ["model", "messages", "stream", "response_format", "max_tokens", "stop", "seed", "stream_options", "tools"]


@given(st.dictionaries(st.sampled_from(KEYS), values))
def test_any_body_is_a_request_or_an_api_error(body: dict[str, Any]) -> None:
    try:
        assert parse_completion(body).chat.model
    except ApiError as error:
        assert error.status in (400, 501)


@pytest.fixture
def client(ollama_host: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{ollama_host}/v1", api_key="any", max_retries=0)


@pytest.mark.llm
def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert WIRE_MODEL in names and client.models.retrieve(WIRE_MODEL).id == WIRE_MODEL
    with pytest.raises(openai.NotFoundError, match="model 'nobody' not found"):
        client.models.retrieve("nobody")


@pytest.mark.llm
def test_a_stream_says_what_one_piece_says(client: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": WIRE_MODEL, "messages": HELLO, "temperature": 0, "seed": 1, "max_tokens": 12}
    whole = client.chat.completions.create(**ask)
    assert whole.usage is not None and 1 <= whole.usage.completion_tokens <= 12
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    bare = list(client.chat.completions.create(stream=True, **ask))
    assert all(chunk.usage is None for chunk in bare)


@pytest.mark.llm
def test_a_schema_is_kept_to(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=WIRE_MODEL,
        messages=[{"role": "user", "content": "A colour, as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "colour", "strict": True, "schema": schema}},
        max_tokens=40,
    )
    assert json.loads(answer.choices[0].message.content or "")["colour"] in ("red", "blue")


@pytest.mark.llm
def test_errors_have_openais_form(client: openai.OpenAI, ollama_host: str) -> None:
    with pytest.raises(openai.BadRequestError, match="invalid JSON schema"):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}}
        client.chat.completions.create(model=WIRE_MODEL, messages=HELLO, response_format=form)  # type: ignore[arg-type]
    answer = httpx.post(f"{ollama_host}/v1/embeddings", json={})
    assert answer.status_code == 404 and "/v1/chat/completions" in answer.json()["error"]["message"]
    assert httpx.get(f"{ollama_host}/v1/chat/completions").status_code == 405
    assert httpx.post(f"{ollama_host}/v1/chat/completions", content=b"{").json()["error"]["type"] == "invalid_request_error"


@pytest.mark.llm
def test_a_loaded_model_keeps_its_context(client: openai.OpenAI, ollama_host: str) -> None:
    httpx.post(f"{ollama_host}/api/chat", json={"model": WIRE_MODEL, "options": {"num_ctx": 1024}}, timeout=60)
    client.chat.completions.create(model=WIRE_MODEL, messages=HELLO, max_tokens=2)
    loaded = {item["name"]: item["context_length"] for item in httpx.get(f"{ollama_host}/api/ps").json()["models"]}
    assert loaded[WIRE_MODEL] == 1024
