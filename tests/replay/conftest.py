"""Tiny networks: more than one thread only makes them slower."""

import pytest
import torch as th


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    before = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(before)
