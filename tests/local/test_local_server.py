"""The HTTP side without a model: who is served, what is refused, queue, file headers, command line."""

from __future__ import annotations

import argparse
import json
import socket
import struct
import threading

import httpx
import pytest

from sb3_nser.errors import ConfigurationError, LLMUnavailableError, ModelFileError
from sb3_nser.local import EmbeddedServer, command, engine
from sb3_nser.local.gguf_info import human_count, read_gguf
from sb3_nser.local.server import MAX_BODY, ModelServer, is_loopback
from sb3_nser.local.turnstile import Abandoned, QueueFull, Turnstile


@pytest.fixture(scope="module")
def server():
    """A server without models."""
    server = ModelServer({})
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, trust_env=False, timeout=10) as client:
        yield client


def test_it_presents_itself_as_ollama_does(client):
    assert client.get("/").text == "Ollama is running"
    assert client.head("/").status_code == 200
    assert client.head("/api/tags").content == b""
    assert client.get("/api/version").json()["version"].count(".") == 2
    assert client.get("/api/tags").json() == {"models": []}
    assert client.get("/api/ps").json() == {"models": []}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/api/chat", 405),
        ("POST", "/api/tags", 405),
        ("POST", "/api/generate", 501),
        ("POST", "/api/embed", 501),
        ("POST", "/api/pull", 501),
        ("DELETE", "/api/delete", 501),
        ("POST", "/api/chat", 400),
        ("POST", "/api/show", 400),
        ("PATCH", "/api/chat", 501),
    ],
)
def test_what_is_not_served_says_so(client, method, path, status):
    response = client.request(method, path)
    assert response.status_code == status
    assert method == "PATCH" or response.json()["error"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/show"])
def test_unknown_models_are_named(client, path):
    response = client.post(path, json={"model": "absent"})
    assert (response.status_code, response.json()) == (404, {"error": "model 'absent' not found"})


def test_pages_from_elsewhere_are_refused(client, server):
    port = server.server_address[1]
    for host in ("evil.example", f"evil.example:{port}", "192.168.1.7", "localhost.evil.example", "["):
        response = client.get("/api/tags", headers={"Host": host})
        assert response.status_code == 403
        assert "this machine only" in response.json()["error"]
    for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}"):
        assert client.get("/api/tags", headers={"Host": host}).status_code == 200
    assert client.get("/api/tags", headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.get("/api/tags", headers={"Origin": "null"}).status_code == 403
    assert client.get("/api/tags", headers={"Origin": "http://localhost:3000"}).status_code == 200


def test_a_server_open_to_others_takes_every_host_name():
    server = ModelServer({}, host="0.0.0.0")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/api/tags"
    assert httpx.get(url, headers={"Host": "trainer.lan"}, trust_env=False).status_code == 200
    server.shutdown()
    server.server_close()


def test_bodies_have_a_limit(client):
    response = client.post("/api/chat", content=b" " * (MAX_BODY + 1))
    assert response.status_code == 413
    assert str(MAX_BODY) in response.json()["error"]
    assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [("Content-Length: -5", 400), ("Content-Length: many", 400), ("Transfer-Encoding: chunked", 411)],
)
def test_bodies_of_unknown_length_are_refused(server, head, status):
    with socket.create_connection(server.server_address, timeout=10) as connection:
        connection.sendall(f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
        answer = b""
        while data := connection.recv(4096):  # until the server closes
            answer += data
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_a_port_in_use_is_one_sentence(server):
    with pytest.raises(ConfigurationError, match=r"Port \d+ on 127.0.0.1 is taken"):
        ModelServer({}, port=server.server_address[1])


def test_loopback_addresses():
    assert all(is_loopback(host) for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "example.org", ""))


def test_the_queue_serves_in_order_of_arrival():
    turnstile, order, inside = Turnstile(), [], threading.Event()
    release = threading.Event()

    def wait(number: int) -> None:
        with turnstile.turn():
            order.append(number)
            inside.set()
            release.wait(10)

    threads = []
    for number in range(4):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        while len(turnstile._line) <= number:  # has joined the line
            pass
    assert inside.wait(10)
    release.set()
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3]
    assert not turnstile.busy


def test_the_queue_turns_away_and_forgets():
    turnstile = Turnstile(bound=1)
    with turnstile.turn():
        with turnstile.turn_if_idle() as held:
            assert not held
        with pytest.raises(Abandoned), turnstile.turn(lambda: True, poll=0.01):
            pass
        left = threading.Event()
        waiter = threading.Thread(target=lambda: _wait_until(turnstile, left))
        waiter.start()
        while len(turnstile._line) < 2:
            pass
        with pytest.raises(QueueFull), turnstile.turn():
            pass
        left.set()
        waiter.join(10)
    with turnstile.turn_if_idle() as held:
        assert held


def _wait_until(turnstile: Turnstile, left: threading.Event) -> None:
    with pytest.raises(Abandoned), turnstile.turn(left.is_set, poll=0.01):
        pass


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(tensors=((64, 32), (100,)), version=3) -> bytes:
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("toy"),
        text("toy.context_length") + struct.pack("<II", 4, 2048),
        text("general.file_type") + struct.pack("<II", 4, 15),
        text("tokenizer.chat_template") + struct.pack("<I", 8) + text("{{ messages }}{% if enable_thinking %}"),
        text("words") + struct.pack("<IIQ", 9, 8, 50) + text("word") * 50,
        text("numbers") + struct.pack("<IIQ", 9, 4, 1000) + b"\0" * 4000,
        text("few") + struct.pack("<IIQiii", 9, 5, 3, -1, 0, 1),
    ]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    for index, shape in enumerate(tensors):
        head += text(f"tensor{index}") + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + b"\0" * 12
    return head


def test_a_model_file_describes_itself(tmp_path):
    path = tmp_path / "toy.gguf"
    path.write_bytes(gguf())
    info = read_gguf(path, "abc")
    assert info.parameter_count == 64 * 32 + 100
    assert info.context_length == 2048
    assert info.thinks
    assert info.capabilities == ["completion", "thinking"]
    assert info.metadata == {
        "general.architecture": "toy", "toy.context_length": 2048, "general.file_type": 15, "few": [-1, 0, 1]
    }  # fmt: skip
    assert info.details()["quantization_level"] == "Q4_K_M"
    assert info.details()["family"] == "toy"


@pytest.mark.parametrize("content", [b"", b"PK\3\4rubbish", gguf()[:200], gguf(version=1), b"GGUF" + b"\xff" * 64])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"other\.gguf is not a model file"):
        read_gguf(path, "abc")


def test_sizes_for_people():
    assert human_count(134_515_008) == "134.52M"
    assert human_count(1_543_714_304) == "1.5B"


def serve_arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_serve_arguments(parser)
    return parser.parse_args(words)


def test_the_command_line_has_defaults():
    args = serve_arguments()
    assert (args.model, args.host, args.port, args.threads) == (None, "127.0.0.1", 11434, 1)
    assert serve_arguments("--model", "a:1", "--model", "b=/x.gguf").model == ["a:1", "b=/x.gguf"]


@pytest.mark.parametrize("words", [["--model", "nobody:7b"], ["--model", "own="], ["--model", "a=x", "--model", "a=y"]])
def test_wrong_models_on_the_command_line_are_one_sentence(words):
    with pytest.raises(ConfigurationError) as caught:
        command.run_serve(serve_arguments(*words))
    assert "\n" not in str(caught.value)


def test_a_wrong_name_is_told_before_another_model_is_fetched(monkeypatch):
    monkeypatch.setattr(command, "resolve_model", lambda *arguments: pytest.fail("it was fetched"))
    with pytest.raises(ConfigurationError, match="nobody:7b"):
        command.resolve_models(["smollm2:135m", "nobody:7b"])


def test_a_missing_runtime_is_found_before_anything_is_downloaded(monkeypatch):
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    for start in (lambda: command.run_serve(serve_arguments()), EmbeddedServer().start):
        with pytest.raises(ConfigurationError, match=r"sb3-nser\[local\]"):
            start()


def test_wrong_numbers_are_refused():
    with pytest.raises(ConfigurationError, match="threads"):
        EmbeddedServer(threads=0)
    with pytest.raises(ConfigurationError, match="at least one model"):
        EmbeddedServer([])
    with pytest.raises(ConfigurationError, match="port"):
        command.build_server({}, port=70000)
    with pytest.raises(ConfigurationError, match="threads"):
        command.build_server({}, threads=0)


def test_a_server_that_is_not_running_has_no_address():
    server = EmbeddedServer()
    server.close()
    with pytest.raises(LLMUnavailableError, match="not running"):
        _ = server.host


def test_an_error_body_is_json_with_one_string(client):
    body = json.loads(client.post("/api/chat", json={"model": "m", "options": {"seed": "x"}}).content)
    assert body == {"error": 'option "seed" must be of type integer'}
