"""One torch thread: these batches are small, and threads that wait for each other cost more than they bring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch as th


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    before = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(before)
