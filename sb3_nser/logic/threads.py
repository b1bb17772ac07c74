"""How many threads torch uses while rules are fitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch as th


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """The fit's tensors are small: more threads gain nothing, and collapse beside a model server that wants the cores too."""
    threads = th.get_num_threads()
    th.set_num_threads(1)
    try:
        yield
    finally:
        th.set_num_threads(threads)
