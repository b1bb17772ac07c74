"""The vocabulary of MiniGrid and BabyAI: what is in front, what is carried, what is in view and where.

It needs no MiniGrid: everything is computed from the stored observations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch as th
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary import partial_view as pv
from sb3_nser.vocabulary.batches import Batch
from sb3_nser.vocabulary.features import ActionSet, Feature, Vocabulary
from sb3_nser.vocabulary.minigrid_objects import minigrid_objects
from sb3_nser.vocabulary.minigrid_tasks import Task, task_for
from sb3_nser.vocabulary.partial_view import Lookup, PartialView

ACTIONS = ("turn_left", "turn_right", "forward", "pickup", "drop", "toggle", "done")
"""MiniGrid's seven actions in index order."""

NOT_IN_VIEW_DISTANCE = 14.0
"""Distance of an object that is not in view: farther than any that is (9 at most)."""

_CODES = {"key": pv.KEY, "door": pv.DOOR, "goal": pv.GOAL, "ball": pv.BALL, "box": pv.BOX, "lava": pv.LAVA}
_DIRECTIONS = ("not_visible", "ahead", "left", "right")
_STATES = ("open", "closed", "locked", "not_visible")
_FRONT_STATES = ("none", *_STATES[:3])


def minigrid_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    Name what the agent's partial view shows. Features about objects that the task does not have are left out.

    :param observation_space: the partial view in one of the forms listed in ``partial_view.READABLE``, or a Dict with such a
        view under ``image``
    :param action_space: Discrete with MiniGrid's 7 actions, the first 3 (moving only) or the first 6 (without ``done``)
    :param env_id: selects task sentence and features; None gives all features
    :return: a vocabulary that reads this form
    :raises UnsupportedError: if the observation is not a partial view in a readable form, or the actions are others
    """
    if isinstance(observation_space, spaces.Dict) and "image" in observation_space.spaces:
        decode: Callable[[Batch], PartialView] = partial(_of_image, pv.view_form(observation_space["image"]))
    else:
        decode = pv.view_form(observation_space).decode
    task = task_for(env_id)
    actions = _actions(action_space)
    carries = "pickup" in actions.names and any(kind in task.kinds for kind in ("key", "ball", "box"))
    objects = minigrid_objects(task.kinds, _CODES)
    return Vocabulary("minigrid", task.text, _features(task, carries), actions, decode, objects)


def _of_image(form: pv.ViewForm, observations: Batch) -> PartialView:
    return form.decode(observations["image"])


def _actions(space: spaces.Space[Any]) -> ActionSet:
    if isinstance(space, spaces.Discrete) and int(space.start) == 0 and int(space.n) in (3, 6, 7):
        return ActionSet(ACTIONS[: int(space.n)])
    raise UnsupportedError(
        f"the MiniGrid vocabulary names the actions {', '.join(ACTIONS)} (all 7, the first 6 or the first 3), but found "
        f"{space}. Register a builder that calls minigrid_vocabulary(observation_space, Discrete(7), env_id) and puts "
        "an ActionSet with your names into the result with dataclasses.replace(vocabulary, actions=ActionSet(names))."
    )


def _features(task: Task, carries: bool) -> tuple[Feature, ...]:
    kinds = task.kinds
    features = [_front_object(kinds)]
    if carries:
        features.append(_carrying(kinds))
    if task.locks:
        meaning = "yes if the carried key has the colour of the door straight ahead, and so opens it"
        features.append(Feature("key_fits", "boolean", meaning, _key_fits))
    if task.sides:
        for side, cell in (("left", pv.LEFT), ("right", pv.RIGHT)):
            meaning = f"yes if nothing blocks the cell at the agent's {side} side (lava and closed doors count as blocked)"
            features.append(Feature(f"{side}_free", "boolean", meaning, partial(_free, cell)))
    for kind in kinds:
        features.append(Feature(f"{kind}_visible", "boolean", f"yes if a {kind} is in view", partial(_visible, _CODES[kind])))
    if "door" in kinds:
        meaning = "state of the nearest door in view"
        features.append(Feature("door_state", "category", meaning, _door_state, values=_STATES))
        meaning = "state of the door straight ahead, none if there is no door"
        features.append(Feature("front_door_state", "category", meaning, _front_door_state, values=_FRONT_STATES))
    for kind in kinds:
        if kind == "lava":
            continue
        meaning = f"where the nearest {kind} in view is: ahead is straight on at any distance, else the side it is on"
        features.append(
            Feature(f"{kind}_direction", "category", meaning, partial(_direction, _CODES[kind]), values=_DIRECTIONS)
        )
    if task.distances:
        for kind in kinds:
            meaning = f"steps to the nearest {kind} in view, walls ignored; {NOT_IN_VIEW_DISTANCE:.0f} if none is in view"
            features.append(
                Feature(f"{kind}_distance", "number", meaning, partial(_distance, _CODES[kind]), "cells", 1.0,
                        NOT_IN_VIEW_DISTANCE)
            )  # fmt: skip
    if task.colors:
        meaning = "colour of what is straight ahead, none if it is empty"
        features.append(Feature("front_color", "category", meaning, _front_color, values=("none", *pv.COLORS)))
    return tuple(features)


def _front_object(kinds: tuple[str, ...]) -> Feature:
    values = ["empty", "wall"]
    for kind in kinds:
        values += ["locked_door", "closed_door", "open_door"] if kind == "door" else [kind]
    table = [1.0] * (pv.N_OBJECTS * pv.N_STATES)  # whatever else stands there blocks like a wall

    def put(code: int, state: int, value: str) -> None:
        table[code * pv.N_STATES + state] = float(values.index(value))

    for state, door in enumerate(("open_door", "closed_door", "locked_door")):
        put(pv.EMPTY, state, "empty")
        put(pv.FLOOR, state, "empty")
        for kind in kinds:
            put(_CODES[kind], state, door if kind == "door" else kind)
    meaning = "what is in the cell straight ahead of the agent"
    return Feature("front_object", "category", meaning, partial(_front, Lookup(table)), values=tuple(values))


def _carrying(kinds: tuple[str, ...]) -> Feature:
    values = ("nothing", *(kind for kind in kinds if kind in ("key", "ball", "box")))
    table = [0.0] * pv.N_OBJECTS
    for code, kind in enumerate(values[1:], start=1):
        table[_CODES[kind]] = float(code)
    return Feature("carrying", "category", "what the agent carries", partial(_own, Lookup(table)), values=values)


_DIRECTION_OF_RANK = Lookup([2.0 if c // 7 < 3 else 3.0 if c // 7 > 3 else 1.0 for c in pv.BY_RANK] + [0.0])
_DISTANCE_OF_RANK = Lookup([*pv.DISTANCES, NOT_IN_VIEW_DISTANCE])
_COLOR_OF_OBJECT = Lookup([0.0 if kind in (pv.UNSEEN, pv.EMPTY) else 1.0 for kind in range(pv.N_OBJECTS)])
_FREE = Lookup([1.0 if kind in (pv.EMPTY, pv.FLOOR, pv.GOAL) else 0.0 for kind in range(pv.N_OBJECTS)])


def _front(table: Lookup, view: PartialView, _later: Any) -> th.Tensor:
    return table(view.object_at(pv.FRONT) * pv.N_STATES + view.state_at(pv.FRONT))


def _own(table: Lookup, view: PartialView, _later: Any) -> th.Tensor:
    return table(view.object_at(pv.OWN))


def _visible(kind: int, view: PartialView, _later: Any) -> th.Tensor:
    return view.nearest(kind) != pv.NOT_VISIBLE


def _direction(kind: int, view: PartialView, _later: Any) -> th.Tensor:
    return _DIRECTION_OF_RANK(view.nearest(kind))


def _distance(kind: int, view: PartialView, _later: Any) -> th.Tensor:
    return _DISTANCE_OF_RANK(view.nearest(kind))


def _door_state(view: PartialView, _later: Any) -> th.Tensor:
    return view.door_state()


def _front_door_state(view: PartialView, _later: Any) -> th.Tensor:
    return (view.object_at(pv.FRONT) == pv.DOOR) * (view.state_at(pv.FRONT) + 1)


def _free(cell: int, view: PartialView, _later: Any) -> th.Tensor:
    kind = view.object_at(cell)
    open_door = (kind == pv.DOOR) & (view.state_at(cell) == 0)
    return _FREE(kind) + open_door


def _key_fits(view: PartialView, _later: Any) -> th.Tensor:
    fits = view.color_at(pv.OWN) == view.color_at(pv.FRONT)
    return fits & (view.object_at(pv.OWN) == pv.KEY) & (view.object_at(pv.FRONT) == pv.DOOR)


def _front_color(view: PartialView, _later: Any) -> th.Tensor:
    return _COLOR_OF_OBJECT(view.object_at(pv.FRONT)) * (view.color_at(pv.FRONT) + 1)
