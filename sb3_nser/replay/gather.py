"""Rows out of an SB3 buffer's arrays, and onto a device, without copies that nobody needs."""

from __future__ import annotations

from typing import Any

import torch as th

from sb3_nser.replay.records import Array, IntArray


def take_rows(array: Array, slots: IntArray) -> Array:
    """
    :param array: shape ``(rows, n_envs, ...)``
    :param slots: flat ``row * n_envs + env``, shape ``(n,)``; valid, nothing is checked
    :return: a new array of shape ``(n, ...)``
    """
    # ``take`` copies whole rows where indexing goes number by number
    taken: Array = array.reshape(-1, *array.shape[2:]).take(slots, axis=0)
    return taken


def as_tensors(arrays: tuple[Any, ...], device: th.device) -> list[Any]:
    """
    :param arrays: arrays or dictionaries of arrays that nothing else refers to: on the CPU the tensors share their memory
    :param device: where the tensors go
    """
    onto = None if device.type == "cpu" else device
    return [
        {key: _as_tensor(one, onto) for key, one in array.items()} if isinstance(array, dict) else _as_tensor(array, onto)
        for array in arrays
    ]


def _as_tensor(array: Array, device: th.device | None) -> th.Tensor:
    tensor = th.from_numpy(array)
    return tensor if device is None else tensor.to(device)
