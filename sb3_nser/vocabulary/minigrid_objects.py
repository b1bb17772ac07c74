"""What MiniGrid's rules may quantify over: the objects in view (``object``) and the cells in view (``cell``)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch as th

from sb3_nser.vocabulary import partial_view as pv
from sb3_nser.vocabulary.features import Feature, ObjectSet
from sb3_nser.vocabulary.partial_view import Lookup, PartialView

_SIDES = ("ahead", "left", "right")
_STATES = ("none", "open", "closed", "locked")
_FARTHEST = float(pv.DISTANCES[-1])
_DISTANCE = th.tensor(pv.DISTANCES, dtype=th.float32)
_SIDE = th.tensor([1.0 if cell // 7 < 3 else 2.0 if cell // 7 > 3 else 0.0 for cell in pv.BY_RANK])


def minigrid_objects(kinds: tuple[str, ...], codes: dict[str, int]) -> tuple[ObjectSet, ...]:
    """
    :param kinds: the kinds of objects that the task has
    :param codes: MiniGrid's code of each
    :return: ``object``, if there are kinds, and ``cell``; what the agent carries is neither
    """
    where = (
        Feature("distance", "number", "steps to it, walls ignored", partial(_fixed, _DISTANCE), "cells", 1.0, _FARTHEST),
        Feature("side", "category", "where it is: straight ahead at any distance, else the side", partial(_fixed, _SIDE),
                values=_SIDES),
    )  # fmt: skip
    contents = ("empty", "wall", *kinds)
    in_cell = [1.0] * pv.N_OBJECTS  # whatever else stands there blocks like a wall
    in_cell[pv.EMPTY] = in_cell[pv.FLOOR] = 0.0
    for at, kind in enumerate(kinds):
        in_cell[codes[kind]] = 2.0 + at
    content = Feature("content", "category", "what is in it", partial(_looked_up, Lookup(in_cell)), values=contents)
    cells = ObjectSet("cell", "a cell in view, other than the agent's own", (content, *where), _seen)
    if not kinds:
        return (cells,)
    color = Feature("color", "category", "its colour", _color, values=pv.COLORS)
    state = Feature("state", "category", "state of a door, none for anything else", _state, values=_STATES)
    there = [0.0] * pv.N_OBJECTS
    number = [0.0] * pv.N_OBJECTS
    for at, kind in enumerate(kinds):
        there[codes[kind]], number[codes[kind]] = 1.0, float(at)
    named = kinds if len(kinds) > 1 else (*kinds, "none")  # a category has two values at least
    kind_of = Feature("kind", "category", "what it is", partial(_looked_up, Lookup(number)), values=named)
    features = (kind_of, color, *((state,) if "door" in kinds else ()), *where)
    return ObjectSet("object", "an object in view", features, partial(_is_object, Lookup(there))), cells


def _fixed(values: th.Tensor, view: PartialView, _later: Any) -> th.Tensor:
    return values.to(view.cells.device).expand(len(view.cells), -1)


def _looked_up(table: Lookup, view: PartialView, _later: Any) -> th.Tensor:
    return table(view.others(0))


def _is_object(table: Lookup, view: PartialView, _later: Any) -> th.Tensor:
    return table(view.others(0)) > 0


def _seen(view: PartialView, _later: Any) -> th.Tensor:
    return view.others(0) != pv.UNSEEN


def _color(view: PartialView, _later: Any) -> th.Tensor:
    return view.others(1)


def _state(view: PartialView, _later: Any) -> th.Tensor:
    return (view.others(0) == pv.DOOR) * (view.others(2) + 1)
