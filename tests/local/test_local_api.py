"""Request parsing: what Ollama accepts is accepted, what it refuses is refused with its status."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_nser.local.api import (
    ApiError,
    Options,
    parse_chat,
    parse_duration,
    parse_format,
    parse_json,
    parse_messages,
    parse_options,
    parse_think,
)


def refused(status: int, part: str, function, *args) -> None:
    with pytest.raises(ApiError) as caught:
        function(*args)
    assert caught.value.status == status
    assert part in caught.value.message
    assert caught.value.body() == {"error": caught.value.message}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("90s", 90),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("0", 0),
        ("0s", 0),
        ("+2s", 2),
        ("-1m", math.inf),
    ],
)
def test_durations_written_as_text(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "5", "m", "5 m", "5x", "--1s", "1s!", "1m-2s", True, False, [], {}, math.nan])
def test_what_is_no_duration_is_refused(value):
    refused(400, "keep_alive", parse_duration, value)


def test_missing_duration_is_five_minutes_and_negative_is_for_ever():
    assert parse_duration(None) == 300
    assert parse_duration(-1) == math.inf
    assert parse_duration(0) == 0


@given(st.integers(0, 999), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_durations_add_up(hours, minutes, seconds, millis):
    text = f"{hours}h{minutes}m{seconds}s{millis}ms"
    assert parse_duration(text) == pytest.approx(hours * 3600 + minutes * 60 + seconds + millis / 1000)


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_400(text):
    try:
        assert parse_duration(text) >= 0
    except ApiError as error:
        assert error.status == 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["model", "messages", "stream", "format", "keep_alive", "think", "options", "tools", "logprobs"]


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_any_body_is_a_request_or_an_api_error(body):
    try:
        assert parse_chat(body).model
    except ApiError as error:
        assert error.status in (400, 500, 501)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_a_400(raw):
    try:
        assert isinstance(parse_json(raw), dict)
    except ApiError as error:
        assert error.status == 400


def test_options_have_ollamas_defaults():
    assert parse_options(None) == parse_options({}) == Options()
    assert (Options().temperature, Options().top_k, Options().top_p, Options().num_ctx) == (0.8, 40, 0.9, 4096)


def test_options_convert_json_numbers_and_ignore_the_unknown():
    options = parse_options({"seed": 3.0, "temperature": 1, "stop": ["\n"], "num_gpu": 1, "colour": "red", "top_k": None})
    assert options == Options(seed=3, temperature=1.0, stop=("\n",))


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ({"seed": "1"}, 'option "seed" must be of type integer'),
        ({"seed": True}, 'option "seed" must be of type integer'),
        ({"num_thread": "all"}, 'option "num_thread" must be of type integer'),
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"temperature": math.inf}, 'option "temperature" must be of type float32'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be an array of strings'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
    ],
)
def test_an_option_of_the_wrong_type_is_a_500_as_in_ollama(option, kind):
    refused(500, kind, parse_options, option)


def test_any_integer_is_a_seed():
    assert [parse_options({"seed": seed}).seed for seed in (-1, 0, 7, 2**40 + 3)] == [-1, 0, 7, (2**40 + 3) % (2**32 - 1)]
    assert all(0 <= parse_options({"seed": seed}).seed < 2**32 - 1 for seed in (-2, 2**32 - 1, 2**63, -(2**63)))


def test_other_integers_have_32_bits():
    refused(400, '"top_k" must lie between', parse_options, {"top_k": 2**31})
    refused(400, '"num_ctx" must lie between', parse_options, {"num_ctx": 1e300})


def test_a_context_needs_room():
    refused(400, "num_ctx", parse_options, {"num_ctx": 0})


def test_formats():
    assert parse_format(None) is None
    assert parse_format("") is None
    assert parse_format("json") == "json"
    assert parse_format({"type": "object"}) == {"type": "object"}
    refused(500, 'invalid format: "yaml"; expected "json" or a valid JSON Schema object', parse_format, "yaml")
    refused(500, "invalid format", parse_format, 3)


def test_messages_keep_role_and_content_only():
    given = [{"role": "User", "content": "hi", "images": []}, {"role": "assistant", "content": None}]
    assert parse_messages(given, "m") == ({"role": "user", "content": "hi"}, {"role": "assistant", "content": ""})


@pytest.mark.parametrize(
    ("message", "status", "part"),
    [
        ("hi", 400, "messages[0] must be an object"),
        ({"content": "hi"}, 400, "messages[0].role"),
        ({"role": "pilot", "content": "hi"}, 400, "messages[0].role must be one of system, user, assistant, tool"),
        ({"role": "user", "content": 3}, 400, "messages[0].content must be a string"),
        ({"role": "user", "content": "\ud800"}, 400, "surrogate"),
        ({"role": "user", "content": "see", "images": ["aGk="]}, 400, '"m" does not support images'),
        ({"role": "assistant", "tool_calls": [{}]}, 501, "tool calls"),
    ],
)
def test_malformed_messages_are_refused(message, status, part):
    refused(status, part, parse_messages, [message], "m")


def test_think_values():
    for value in (None, True, False, "low", "max"):
        assert parse_think(value) is value
    for value in ("very", 1, 0, []):
        refused(400, "invalid think value", parse_think, value)


def test_a_request_needs_a_model_and_leaves_tools_to_ollama():
    refused(400, "model is required", parse_chat, {})
    refused(501, "tools", parse_chat, {"model": "m", "tools": [{}]})
    refused(501, "logprobs", parse_chat, {"model": "m", "logprobs": True})
    refused(400, "stream", parse_chat, {"model": "m", "stream": "yes"})


def test_a_request_without_messages_loads_and_with_keep_alive_zero_unloads():
    assert not parse_chat({"model": "m"}).unloads
    assert not parse_chat({"model": "m", "keep_alive": "5m"}).unloads
    assert parse_chat({"model": "m", "keep_alive": 0}).unloads
    assert parse_chat({"model": "m", "messages": [], "keep_alive": "0s"}).unloads
    assert not parse_chat({"model": "m", "messages": [{"role": "user", "content": "x"}], "keep_alive": 0}).unloads


@pytest.mark.parametrize(
    ("raw", "part"), [(b"", "missing request body"), (b"{", "not JSON"), (b"[]", "must be a JSON object")]
)
def test_bodies_that_are_no_object_are_refused(raw, part):
    refused(400, part, parse_json, raw)
