"""Batches of observations as a replay buffer holds them, and the ways back from what a wrapper made of them.

A batch is a tensor of shape (N, ...), or for Dict and Tuple spaces a dictionary or tuple of batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError

Batch = Any
"""A tensor of shape (N, ...), or a dictionary or tuple of batches with the same N."""


def n_rows(batch: Batch) -> int:
    """:return: N"""
    if isinstance(batch, dict):
        return n_rows(next(iter(batch.values())))
    if isinstance(batch, tuple):
        return n_rows(batch[0])
    return len(batch)


def rows_of(batch: Batch, part: slice) -> Batch:
    """:return: the same rows of every array in the batch"""
    if isinstance(batch, dict):
        return {key: rows_of(value, part) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(rows_of(value, part) for value in batch)
    return batch[part]


def as_tensors(batch: Batch) -> Batch:
    """:return: tensors without copying; float64 becomes float32, so that both say the same"""
    if isinstance(batch, dict):
        return {key: as_tensors(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(as_tensors(value) for value in batch)
    tensor = th.as_tensor(batch)
    return tensor.to(th.float32) if tensor.dtype == th.float64 else tensor


def unflatten(space: spaces.Space[Any], flat: th.Tensor) -> Batch:
    """
    Take apart what ``gymnasium.spaces.flatten`` made: one-hot codes become numbers again, keys and parts stand alone.

    :param space: the space before flattening
    :param flat: shape (N, flatdim(space))
    :return: a batch of ``space``
    :raises UnsupportedError: for spaces that have no fixed length
    """
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return flat.reshape(len(flat), *space.shape)
    if isinstance(space, spaces.Discrete):
        return flat.argmax(1, keepdim=True) + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = np.asarray(space.nvec).ravel().tolist()
        codes = th.stack([part.argmax(1) for part in th.split(flat, sizes, 1)], 1)
        start = th.as_tensor(np.asarray(getattr(space, "start", np.zeros_like(space.nvec))).ravel())
        return (codes + start).reshape(len(flat), *space.shape)
    if isinstance(space, spaces.Dict):
        parts = th.split(flat, [flat_size(part) for part in space.spaces.values()], 1)
        return {key: unflatten(space[key], part) for key, part in zip(space.spaces, parts, strict=True)}
    if isinstance(space, spaces.Tuple):
        parts = th.split(flat, [flat_size(part) for part in space.spaces], 1)
        return tuple(unflatten(inner, part) for inner, part in zip(space.spaces, parts, strict=True))
    raise UnsupportedError(f"a flattened {type(space).__name__} cannot be taken apart again.")


def flat_size(space: spaces.Space[Any]) -> int:
    """:return: how many numbers ``gymnasium.spaces.flatten`` makes of this space"""
    return int(spaces.flatdim(space))


def same_form(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """:return: whether a program could take an observation of one space for one of the other; limits do not count"""
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return set(one.spaces) == set(other.spaces) and all(same_form(one[key], other[key]) for key in one.spaces)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(same_form(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, spaces.Discrete) and isinstance(other, spaces.Discrete):
        return bool(one.n == other.n)
    return type(one) is type(other) and one.shape == other.shape
