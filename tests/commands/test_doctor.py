"""``sb3-nser doctor``: what is here, what is missing, what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_ollama import FakeOllama
from sb3_nser.cli import main
from sb3_nser.commands import doctor

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_model_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SB3_NSER_CACHE", str(tmp_path))
    monkeypatch.delenv("OLLAMA_HOST", raising=False)


def report(capsys: Capture, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
    status = main(["doctor", "--json", *more])
    return status, {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_a_server_with_models_is_all_that_is_needed(capsys: Capture, tmp_path: Path) -> None:
    with FakeOllama(lambda exchange: None, models=("b:1", "a:2")) as server:
        status, checks = report(capsys, "--host", server.host)
        assert main(["doctor", "--host", server.host]) == 0
        assert "Rules from a model can work here." in capsys.readouterr().out
    assert status == 0 and checks["model server"]["found"].endswith("has a:2, b:1")
    assert checks["torch"]["state"] == "ok" and checks["torch"]["found"][0].isdigit()
    assert (
        checks["model file smollm2:135m"]["state"] == "absent"
        and "sb3-nser serve" in checks["model file smollm2:135m"]["cure"]
    )
    (tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"not it")
    assert "damaged" in report(capsys)[1]["model file smollm2:135m"]["found"]


def test_what_is_missing_is_told_with_the_cure(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOllama(lambda exchange: None, models=()) as server:
        status, checks = report(capsys, "--host", server.host)
    assert status == 1 and "ollama pull" in checks["model server"]["cure"]
    status, checks = report(capsys, "--host", server.host)  # closed now
    assert status == 1 and "nothing answers" in checks["model server"]["found"] and "--host" in checks["model server"]["cure"]
    with FakeOllama(lambda exchange: None, page=b"<html>") as server:
        assert report(capsys, "--host", server.host)[0] == 1
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    assert report(capsys)[0] == 1
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: "" if name in ("numba", "ollama") else known(name))
    status, checks = report(capsys)
    assert checks["numba"]["state"] == "absent" and checks["numba"]["cure"] == "pip install 'sb3-nser[fast]'"
    assert checks["ollama"]["state"] == "missing" and status == 1
