"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

WIRE_MODEL = "smollm2:135m"  # small and quick: for tests that do not look at what the model says


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[object]:
    """A real model server in a process of its own, serving the default model and a tiny one.

    It starts with the first test that asks for it and sets nothing global.
    """
    from sb3_nser.local import DEFAULT_MODEL, EmbeddedServer

    with EmbeddedServer([DEFAULT_MODEL, WIRE_MODEL]) as server:
        yield server


@pytest.fixture(scope="session")
def ollama_host(embedded_server: object) -> str:
    """Address of the embedded server. A test that wants ``OLLAMA_HOST`` uses ``monkeypatch.setenv``."""
    from sb3_nser.local import EmbeddedServer

    assert isinstance(embedded_server, EmbeddedServer)
    return embedded_server.host


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> Iterator[None]:
    """Small networks gain nothing from a second thread, and beside a model server two of them collapse."""
    import torch as th

    threads = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(threads)
