"""Rows out of an SB3 buffer's arrays, and onto a device, without copies that nobody needs."""

from __future__ import annotations

import numpy as np
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


def as_tensor(array: Array, device: th.device) -> th.Tensor:
    """
    :param array: one that nothing else refers to: on the CPU the tensor shares its memory
    :param device: where the tensor goes
    """
    tensor = th.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.to(device)
