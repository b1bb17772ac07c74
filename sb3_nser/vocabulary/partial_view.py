"""MiniGrid's partial view, in every form its wrappers give it: found once from the space, then read lazily.

The view is 7 x 7 cells in the agent's own frame, ``image[x, y]`` with x to the right and y towards the agent. The agent
stands at (3, 6) and looks at (3, 5). Each cell is (object, colour, state); the agent's own cell shows what it carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError

SIZE = 7
CELLS = SIZE * SIZE
OWN, FRONT, LEFT, RIGHT = 3 * SIZE + 6, 3 * SIZE + 5, 2 * SIZE + 6, 4 * SIZE + 6
"""Cells by number, x * 7 + y: the agent's own, the one before it, and those at its sides."""

UNSEEN, EMPTY, WALL, FLOOR, DOOR, KEY, BALL, BOX, GOAL, LAVA, AGENT = range(11)
"""Object codes of ``minigrid.core.constants.OBJECT_TO_IDX``."""

COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
"""In the order of ``COLOR_TO_IDX``."""

N_OBJECTS, N_COLORS, N_STATES = 11, 6, 3
N_BITS = N_OBJECTS + N_COLORS + N_STATES
MISSION_BITS = 96 * 28  # FlatObsWrapper's one-hot mission text, which follows the image

NOT_VISIBLE = CELLS - 1
"""Rank of an object that is not in view; the 48 other cells have the ranks 0 (nearest) to 47."""


def _distance(cell: int) -> int:
    return abs(cell // SIZE - 3) + (6 - cell % SIZE)


BY_RANK = tuple(sorted((cell for cell in range(CELLS) if cell != OWN), key=lambda cell: (_distance(cell), cell)))
"""Cells from the nearest to the farthest: steps ahead plus steps aside; of two equally near ones, the left one first."""

DISTANCES = tuple(_distance(cell) for cell in BY_RANK)


class Lookup:
    """A table of numbers that lives on whichever device its index is on.

    :param values: the table
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._tables = {th.device("cpu"): th.tensor(list(values), dtype=th.float32)}

    def __call__(self, index: th.Tensor) -> th.Tensor:
        table = self._tables.get(index.device)
        if table is None:
            table = self._tables[index.device] = self._tables[th.device("cpu")].to(index.device)
        return table[index]


@dataclass(frozen=True)
class ViewForm:
    """How a partial view is laid out in an observation.

    :param shape: shape of one observation
    :param one_hot: 20 bits per cell in place of 3 codes
    :param channels_first: (C, 7, 7), as SB3's ``VecTransposeImage`` makes it
    :param normalised: codes were divided by 255
    """

    shape: tuple[int, ...]
    one_hot: bool = False
    channels_first: bool = False
    normalised: bool = False

    def decode(self, observations: th.Tensor) -> PartialView:
        """
        :param observations: shape (N, *shape)
        :return: the view, which computes what is asked of it
        :raises UnsupportedError: if the shape is another one, or the image turns out to be a whole 7 x 7 grid
        """
        if observations.shape[1:] != self.shape:
            raise UnsupportedError(
                f"observations have shape {tuple(observations.shape[1:])}, but this vocabulary was made for {self.shape}."
            )
        depth = N_BITS if self.one_hot else 3
        if self.channels_first:
            cells = observations.flatten(2).transpose(1, 2)
        elif len(self.shape) == 1:
            cells = observations[:, : CELLS * depth].reshape(-1, CELLS, depth)
        else:
            cells = observations.flatten(1, 2)
        view = PartialView(cells, self)
        # A 7 x 7 grid seen whole has the same space as a partial view, but a wall (its border) where the agent should be.
        if len(cells) and bool((view.object_at(OWN) == WALL).all()):
            raise UnsupportedError(
                "these observations show a whole 7 x 7 grid (FullyObsWrapper), not the agent's partial view: "
                "leave that wrapper out."
            )
        return view


@dataclass
class PartialView:
    """A batch of partial views; every quantity is computed when first asked for, and once.

    :param cells: shape (N, 49, 3) or (N, 49, 20), a view of the observations
    :param form: how to read a cell
    """

    cells: th.Tensor
    form: ViewForm
    _cache: dict[Any, th.Tensor] = field(default_factory=dict)

    def object_at(self, cell: int) -> th.Tensor:
        """:return: object code of one cell, shape (N,), int64 in 0..10"""
        return self._code(cell, 0)

    def color_at(self, cell: int) -> th.Tensor:
        """:return: colour code of one cell, shape (N,), int64 in 0..5"""
        return self._code(cell, 1)

    def state_at(self, cell: int) -> th.Tensor:
        """:return: door state of one cell, shape (N,), int64: 0 open, 1 closed, 2 locked"""
        return self._code(cell, 2)

    def nearest(self, kind: int) -> th.Tensor:
        """
        :param kind: object code
        :return: rank of the nearest cell that holds such an object, shape (N,), int64; ``NOT_VISIBLE`` if none does.
            What the agent carries does not count.
        """
        rank = self._cache.get(("nearest", kind))
        if rank is None:
            if self.form.one_hot:
                found = self.cells[:, :, kind] != 0
            elif self.form.normalised:
                found = th.round(self.cells[:, :, 0] * 255) == kind
            else:
                found = self.cells[:, :, 0] == kind
            nearness = (found * _nearness(found.device)).amax(1)
            rank = self._cache["nearest", kind] = NOT_VISIBLE - nearness.long()
        return rank

    def door_state(self) -> th.Tensor:
        """:return: 0 open, 1 closed, 2 locked, 3 not in view: state of the nearest door, shape (N,), int64"""
        rank = self.nearest(DOOR)
        cell = _cell_of_rank(rank.device)[rank]
        rows = th.arange(len(rank), device=rank.device)
        state = self._codes(self.cells[rows, cell], 2)
        return th.where(rank == NOT_VISIBLE, N_STATES, state)

    def others(self, part: int) -> th.Tensor:
        """
        :param part: 0 objects, 1 colours, 2 door states
        :return: codes of the 48 cells other than the agent's own, the nearest first (``BY_RANK``), shape (N, 48), int64
        """
        codes = self._cache.get(("others", part))
        if codes is None:
            cells = self.cells[:, _cell_of_rank(self.cells.device)[:NOT_VISIBLE]]
            codes = self._cache["others", part] = self._codes(cells.flatten(0, 1), part).reshape(-1, NOT_VISIBLE)
        return codes

    def _code(self, cell: int, part: int) -> th.Tensor:
        code = self._cache.get((cell, part))
        if code is None:
            code = self._cache[cell, part] = self._codes(self.cells[:, cell], part)
        return code

    def _codes(self, cells: th.Tensor, part: int) -> th.Tensor:
        start, size = _PARTS[part]
        if self.form.one_hot:
            return cells[:, start : start + size].argmax(1)
        codes = th.round(cells[:, part] * 255) if self.form.normalised else cells[:, part]
        return codes.clamp(0, size - 1).long()  # a code nobody defines reads as the last one


_PARTS = ((0, N_OBJECTS), (N_OBJECTS, N_COLORS), (N_OBJECTS + N_COLORS, N_STATES))


@cache
def _cell_of_rank(device: th.device) -> th.Tensor:
    return th.tensor([*BY_RANK, OWN], device=device)


@cache
def _nearness(device: th.device) -> th.Tensor:
    nearness = th.zeros(CELLS, dtype=th.uint8)  # 48 for the nearest cell down to 1, and 0 for the agent's own
    nearness[list(BY_RANK)] = th.arange(NOT_VISIBLE, 0, -1, dtype=th.uint8)
    return nearness.to(device)


READABLE = (
    "(7, 7, 3) from ImgObsWrapper, (3, 7, 7) after VecTransposeImage, (147,) flattened, (2835,) from FlatObsWrapper, "
    "(7, 7, 20) from OneHotPartialObsWrapper with ImgObsWrapper, and (980,) flattened; codes as they are, or as floats "
    "divided by 255 in a Box of 0..1"
)
"""The forms that can be read, for error messages and the docs."""


def view_form(space: spaces.Space[Any]) -> ViewForm:
    """
    Find out how the partial view is laid out, from shape, type and limits of the space.

    Codes are read as they are if all limits are 0 and 10 or more, and as codes divided by 255 if the space is a float Box
    of 0..1. A one-hot view is the same in both cases.

    :param space: the observation space
    :return: its form
    :raises UnsupportedError: if it is none of those readable; the message names what was found and what can be read
    """
    if not isinstance(space, spaces.Box):
        found = f"a {type(space).__name__} space" + (
            f" with the keys {', '.join(space)}" if isinstance(space, spaces.Dict) else ""
        )
        raise UnsupportedError(f"the MiniGrid vocabulary found {found}. It reads the partial view as {READABLE}.")
    form = _form_of_shape(tuple(space.shape))
    if form is None:
        hint = ""
        if len(space.shape) == 3 and space.shape[-1] == 3:
            hint = " A whole grid (FullyObsWrapper), pixels (RGBImgObsWrapper) or another view size cannot be read."
        raise UnsupportedError(
            f"the MiniGrid vocabulary found observations of shape {space.shape}.{hint} "
            f"It reads the partial view as {READABLE}."
        )
    low, high = float(np.min(space.low)), float(np.max(space.high))
    lowest_high = float(np.min(space.high))
    if low == 0 and float(np.max(space.low)) == 0:
        if form.one_hot and lowest_high > 0:
            return form
        if lowest_high >= AGENT and np.isfinite(high):
            return form
        if high == lowest_high == 1 and np.issubdtype(space.dtype, np.floating) and form.shape != (CELLS * 3 + MISSION_BITS,):
            return ViewForm(form.shape, channels_first=form.channels_first, normalised=True)
    raise UnsupportedError(
        f"the MiniGrid vocabulary found observations of shape {space.shape} and type {space.dtype} with limits {low:g} to "
        f"{high:g}, which do not say how cells are coded. It reads the partial view as {READABLE}."
    )


def _form_of_shape(shape: tuple[int, ...]) -> ViewForm | None:
    for depth, one_hot in ((3, False), (N_BITS, True)):
        flat = CELLS * depth
        if shape in ((SIZE, SIZE, depth), (flat,), (flat + MISSION_BITS,)):
            return ViewForm(shape, one_hot)
        if shape == (depth, SIZE, SIZE):
            return ViewForm(shape, one_hot, channels_first=True)
    return None
