"""The server's process: it answers before ``start`` returns, says why it cannot, and never outlives its parent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import httpx
import ollama
import pytest

from sb3_nser.errors import LLMUnavailableError
from sb3_nser.local import EmbeddedServer, resolve_model, start_server

pytestmark = pytest.mark.llm

MODEL = "smollm2:135m"


def wait_for_the_end_of(pid: int, seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.05)


def test_a_model_of_ones_own_under_ones_own_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # wherever one is
    with EmbeddedServer(f"mine={resolve_model(MODEL)}") as server:
        pid = server.pid
        client = ollama.Client(host=server.host)
        assert [model.model for model in client.list().models] == ["mine:latest"]
        assert client.chat("mine", [{"role": "user", "content": "Hi"}], options={"num_predict": 1}).eval_count == 1
    wait_for_the_end_of(pid)
    with pytest.raises(ConnectionError):
        client.list()
    server.close()  # a second time does nothing


def test_close_does_not_wait_for_a_generation():
    server = start_server(MODEL)
    demand = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
    stream = ollama.Client(host=server.host).chat(MODEL, [{"role": "user", "content": "Hi"}], stream=True, format=demand)
    next(stream)
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 6
    with pytest.raises((httpx.HTTPError, ollama.ResponseError)):
        list(stream)


def test_a_process_that_dies_leaves_its_last_words(tmp_path):
    rubbish = tmp_path / "rubbish.gguf"
    rubbish.write_bytes(b"rubbish")
    with pytest.raises(
        LLMUnavailableError, match=r"ended with code 1\. Its log ends with:\n.*rubbish\.gguf is not a model file"
    ):
        start_server(f"mine={rubbish}")


def test_a_file_the_runtime_cannot_load_is_a_500(tmp_path):
    whole = resolve_model(MODEL).read_bytes()
    half = tmp_path / "half.gguf"
    half.write_bytes(whole[: len(whole) // 2])
    with EmbeddedServer(f"half={half}") as server, pytest.raises(ollama.ResponseError, match="could not be loaded") as caught:
        ollama.Client(host=server.host).chat("half", [{"role": "user", "content": "Hi"}])
    assert caught.value.status_code == 500


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_carries_no_torch(embedded_server):
    ollama.Client(host=embedded_server.host).chat(MODEL, [], options={"num_ctx": 512})
    with open(f"/proc/{embedded_server.pid}/maps") as maps:
        loaded = maps.read()
    assert "xllamacpp" in loaded
    assert "torch" not in loaded
    assert "numpy" not in loaded


def test_a_process_that_is_too_slow_is_given_up():
    with pytest.raises(LLMUnavailableError, match=r"did not answer within 0\.001 seconds"):
        EmbeddedServer(MODEL, start_timeout=0.001).start()


def test_a_port_in_use_is_said(embedded_server):
    port = int(embedded_server.host.rsplit(":", 1)[1])
    with pytest.raises(LLMUnavailableError, match=f"Port {port} on 127.0.0.1 is taken"):
        start_server(MODEL, port=port)


PARENT = """
import os, signal, sys, time
from sb3_nser.local import start_server
server = start_server("smollm2:135m")
child = os.fork() if "fork" in sys.argv else None
if child == 0:
    time.sleep(30)  # inherits the pipe to the server
    os._exit(0)
print(server.pid, child or 0, flush=True)
if "exit" in sys.argv:
    sys.exit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")
@pytest.mark.parametrize("how", [["exit"], ["kill", "fork"]])
def test_it_ends_with_its_parent(how):
    with subprocess.Popen([sys.executable, "-c", PARENT, *how], stdout=subprocess.PIPE, text=True) as parent:
        pid, child = map(int, parent.stdout.readline().split())  # not to the end: a fork keeps it open
        try:
            parent.wait(timeout=30)
            wait_for_the_end_of(pid)
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


SERVE = """
import argparse, sys
from sb3_nser.local.command import add_serve_arguments, run_serve
parser = argparse.ArgumentParser()
add_serve_arguments(parser)
sys.exit(run_serve(parser.parse_args()))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_in_the_foreground(number):
    command = [sys.executable, "-c", SERVE, "--model", MODEL, "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        assert "asks nobody for a password" in lines[0]
        assert f"Serving {MODEL} at http://0.0.0.0:" in lines[1]
        port = re.fullmatch(r"For Ollama clients: export OLLAMA_HOST=http://.*:(\d+)\n", lines[2])[1]
        client = ollama.Client(host=f"http://127.0.0.1:{port}")
        assert client.chat(MODEL, [{"role": "user", "content": "Hi"}], options={"num_predict": 1}).done
        process.send_signal(number)
        rest, errors = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == "Stopped.\n"
    assert "Traceback" not in errors
