"""Vocabularies of Gymnasium's walks on a known map: FrozenLake and CliffWalking.

The observation is the number of a cell, row by row from the top left. With the map, that number tells what lies around.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_nser.errors import UnsupportedError
from sb3_nser.vocabulary.features import Feature, Vocabulary
from sb3_nser.vocabulary.parts import check_states, discrete_actions, of_state, state_numbers

LAKE_ACTIONS = ("move_left", "move_down", "move_right", "move_up")
"""FrozenLake's actions in index order."""

CLIFF_ACTIONS = ("move_up", "move_right", "move_down", "move_left")
"""CliffWalking's actions in index order; they differ from FrozenLake's."""

LAKE_MAPS = {
    "FrozenLake-v": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "FrozenLake8x8-v": (
        "SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG",
    ),
}  # fmt: skip
"""The maps that belong to Gymnasium's ids when no other is asked for: S start, F frozen, H hole, G goal."""

MAX_CELLS = 250_000
"""No map with more cells is tabulated."""

_STEPS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}
_CLIFF_MAP = ("F" * 12,) * 3 + ("S" + "C" * 10 + "G",)


def frozen_lake_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None, desc: Any = None
) -> Vocabulary:
    """
    FrozenLake: row and column and, where the map is known, what lies beside the agent and where the goal is.

    :param observation_space: Discrete, one state per cell
    :param action_space: Discrete(4)
    :param env_id: without ``desc``, the standard 4x4 or 8x8 map of this id is taken if it has as many cells
    :param desc: the map: rows of S, F, H, G as text, or the environment's own ``desc`` array of bytes
    :return: without any map, a square one is assumed and only row and column are named
    :raises UnsupportedError: if the spaces or the map are others
    """
    cells = _cells(desc) if desc is not None else _standard_map(env_id, observation_space)
    if cells is None:
        n = int(observation_space.n) if isinstance(observation_space, spaces.Discrete) else 0
        size = math.isqrt(n)
        if n < 4 or size * size != n or n > MAX_CELLS:
            raise UnsupportedError(
                f"the FrozenLake vocabulary needs the map to read {observation_space}: only square maps can do without; "
                "hand it over with frozen_lake_vocabulary(..., desc=env.unwrapped.desc)."
            )
        shape = (size, size)
    else:
        shape = (len(cells), len(cells[0]))
    check_states("FrozenLake", observation_space, shape[0] * shape[1])
    actions = discrete_actions("FrozenLake", action_space, LAKE_ACTIONS)
    features = _place(shape)
    if cells is not None:
        names = {"F": "frozen", "H": "hole", "G": "goal"}
        features = _around(np.array([list(row.replace("S", "F")) for row in cells]), names) + features
    task = (
        f"Cross a frozen lake of {shape[0]} rows and {shape[1]} columns from the top left to the goal without falling into a "
        "hole. Reaching the goal is rewarded with 1, everything else with 0; goal and holes end the episode. On slippery ice "
        "a move may go to either side of the direction asked for, each way as likely."
    )
    if cells is not None and not (cells[0][0] == "S" and "".join(cells).count("S") == 1):
        task = task.replace("from the top left", "from the start")
    return Vocabulary("frozen_lake", task, features, actions, state_numbers)


def cliff_walking_vocabulary(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], env_id: str | None = None
) -> Vocabulary:
    """
    CliffWalking: row, column, the cells beside the agent, and how far the goal is.

    :param observation_space: Discrete(48)
    :param action_space: Discrete(4)
    :param env_id: an id with ``Slippery`` in it says so in the task
    :raises UnsupportedError: if the spaces are others
    """
    check_states("CliffWalking", observation_space, 48)
    actions = discrete_actions("CliffWalking", action_space, CLIFF_ACTIONS)
    grid = np.array([list(row.replace("S", "F")) for row in _CLIFF_MAP])
    slips = " The ground is slippery: a move may go to either side." if "Slippery" in (env_id or "") else ""
    task = (
        "Walk from the bottom left corner (row 3, column 0) to the goal in the bottom right corner (row 3, column 11) of "
        "4 rows and 12 columns; the cells between them are a cliff. Every step costs 1; stepping into the cliff costs 100 "
        f"and leads back to the start. The goal ends the episode.{slips}"
    )
    features = _around(grid, {"F": "ground", "C": "cliff", "G": "goal"}) + _place((4, 12))
    return Vocabulary("cliff_walking", task, features, actions, state_numbers)


def _place(shape: tuple[int, int]) -> tuple[Feature, ...]:
    rows, columns = np.indices(shape).reshape(2, -1)
    return (
        of_state(rows, "row", f"row of the agent, 0 is the top, {shape[0] - 1} the bottom"),
        of_state(columns, "column", f"column of the agent, 0 is the left edge, {shape[1] - 1} the right edge"),
    )


def _around(grid: np.ndarray, names: dict[str, str]) -> tuple[Feature, ...]:
    """:return: what lies in the four cells beside each cell, and the nearest goal"""
    padded = np.pad(grid, 1, constant_values="#")
    rows, columns = np.indices(grid.shape).reshape(2, -1)
    letters, values = [*names, "#"], (*names.values(), "edge")
    features = []
    for side, (down, right) in _STEPS.items():
        beside = padded[rows + 1 + down, columns + 1 + right]
        codes = np.array([letters.index(letter) for letter in beside])
        features.append(of_state(codes, f"{side}_cell", f"what a move {side} leads to; edge cannot be entered", values))
    goals = np.argwhere(grid == "G")
    if 0 < len(goals) <= MAX_CELLS * 4 // grid.size:  # a map full of goals is no map
        offsets = goals[None] - np.stack([rows, columns], 1)[:, None]
        nearest = np.abs(offsets).sum(2).argmin(1)
        down, right = offsets[np.arange(len(rows)), nearest].T
        features.append(of_state(down, "goal_down", "rows from here down to the goal, negative if it lies above"))
        features.append(of_state(right, "goal_right", "columns from here right to the goal, negative if it lies to the left"))
    return tuple(features)


def _standard_map(env_id: str | None, space: spaces.Space[Any]) -> tuple[str, ...] | None:
    for prefix, cells in LAKE_MAPS.items():
        if (env_id or "").startswith(prefix) and isinstance(space, spaces.Discrete) and space.n == len(cells) ** 2:
            return cells
    return None


def _cells(desc: Any) -> tuple[str, ...]:
    try:
        rows = tuple(
            row if isinstance(row, str) else "".join(c.decode() if isinstance(c, bytes) else str(c) for c in row)
            for row in desc
        )
    except (TypeError, UnicodeDecodeError):
        rows = ()
    if not rows or len({len(row) for row in rows}) != 1 or not set("".join(rows)) <= set("SFHG") or len(rows[0]) < 1:
        raise UnsupportedError(
            f"a FrozenLake map is rows of equal length of the letters S, F, H, G, for example ['SF', 'FG'], not {desc!r:.80}."
        )
    if len(rows) * len(rows[0]) > MAX_CELLS:
        raise UnsupportedError(f"a map of {len(rows)} x {len(rows[0])} cells is too large; {MAX_CELLS} cells are the most.")
    return rows
