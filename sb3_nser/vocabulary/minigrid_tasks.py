"""What each family of MiniGrid tasks is about: its task sentence, and which objects it has."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

KINDS = ("key", "door", "goal", "ball", "box", "lava")
"""Kinds of objects in the order in which features speak of them."""

_LATER = "less the longer it takes"
_REACH = f"Reach the green goal square. Reward only on reaching it, {_LATER}; it ends the episode."


@dataclass(frozen=True)
class Task:
    """One family of MiniGrid tasks.

    :param pattern: shell-style pattern of environment ids
    :param text: the task in words: what is rewarded, when the episode ends
    :param kinds: the kinds of objects it has; features about others are left out
    :param sides: True if rules need to know whether the cells at the agent's sides are free, as in mazes without doors
    :param distances: True if rules may speak of distances
    :param colors: True if the task tells objects apart by colour
    :param locks: True if there are several keys or doors, so that a key may not fit
    """

    pattern: str
    text: str
    kinds: tuple[str, ...]
    sides: bool = False
    distances: bool = False
    colors: bool = False
    locks: bool = False


TASKS = (
    Task(
        "MiniGrid-DoorKey-*",
        "Pick up the key, open the locked door with it (toggle), go through and reach the green goal square. "
        f"Reward only on reaching the goal, {_LATER}; it ends the episode.",
        ("key", "door", "goal"),
    ),
    Task(
        "MiniGrid-Empty-*",
        _REACH,
        ("goal",),
        sides=True,
        distances=True,
    ),
    Task(
        "MiniGrid-FourRooms-*",
        f"Four rooms joined by gaps in the walls. {_REACH}",
        ("goal",),
        sides=True,
        distances=True,
    ),
    Task(
        "MiniGrid-SimpleCrossing*",
        f"Find the gaps in the walls. {_REACH}",
        ("goal",),
        sides=True,
        distances=True,
    ),
    Task(
        "MiniGrid-LavaCrossing*",
        f"{_REACH} Walking into lava ends the episode without reward: find the gaps.",
        ("goal", "lava"),
        sides=True,
        distances=True,
    ),
    Task(
        "MiniGrid-LavaGap*",
        f"{_REACH} Walking into lava ends the episode without reward: find the gap.",
        ("goal", "lava"),
        sides=True,
        distances=True,
    ),
    Task(
        "MiniGrid-DistShift*",
        f"{_REACH} Walking into lava ends the episode without reward.",
        ("goal", "lava"),
        sides=True,
        distances=True,
    ),
    Task(
        "MiniGrid-Dynamic-Obstacles-*",
        f"{_REACH} Balls move about; moving forward into a ball or a wall costs 1 and ends the episode.",
        ("goal", "ball"),
        sides=True,
        distances=True,
    ),
    Task(
        "MiniGrid-MultiRoom-*",
        "A row of rooms with closed doors: open each door (toggle), go through, and reach the green goal square "
        f"in the last room. Reward only on reaching the goal, {_LATER}; it ends the episode.",
        ("door", "goal"),
        distances=True,
    ),
    Task(
        "MiniGrid-LockedRoom-*",
        "Six rooms, one of them locked. Find the key, open the locked room's door with it (toggle) and reach the "
        f"green goal square inside. Reward only on reaching the goal, {_LATER}; it ends the episode.",
        ("key", "door", "goal"),
        locks=True,
    ),
    Task(
        "MiniGrid-Unlock-*",
        f"Pick up the key and open the locked door with it (toggle). Reward only on opening the door, {_LATER}; it"
        " ends the episode.",
        ("key", "door"),
    ),
    Task(
        "MiniGrid-UnlockPickup-*",
        "Pick up the key, open the locked door with it (toggle), drop the key and pick up the box in the other "
        f"room. Reward only on picking up the box, {_LATER}; it ends the episode.",
        ("key", "door", "box"),
    ),
    Task(
        "MiniGrid-BlockedUnlockPickup-*",
        "A ball blocks the locked door: move it away, pick up the key, open the door (toggle), drop the key and "
        f"pick up the box in the other room. Reward only on picking up the box, {_LATER}; it ends the episode.",
        ("key", "door", "ball", "box"),
    ),
    Task(
        "MiniGrid-KeyCorridor*",
        "Find the key in one of the rooms, open the locked door with it (toggle), drop the key and pick up the "
        f"ball behind. Reward only on picking up the ball, {_LATER}; it ends the episode.",
        ("key", "door", "ball"),
        locks=True,
    ),
    Task(
        "MiniGrid-ObstructedMaze-*",
        "Pick up the blue ball, which is behind locked doors. Keys may be hidden in boxes (toggle opens a box) "
        f"and doors blocked by balls. Reward only on picking up the blue ball, {_LATER}; it ends the episode.",
        ("key", "door", "ball", "box"),
        colors=True,
        locks=True,
    ),
    Task(
        "MiniGrid-RedBlueDoors-*",
        "Open the red door first (toggle), then the blue door. Reward only on opening the blue door after the red"
        f" one, {_LATER}; opening the blue door first ends the episode without reward.",
        ("door",),
        colors=True,
    ),
    Task(
        "MiniGrid-Memory*",
        "Remember whether the first room holds a key or a ball; at the end of the hallway go to the same kind of "
        f"object. Reward only on reaching the right one, {_LATER}; reaching either ends the episode.",
        ("key", "ball"),
        sides=True,
    ),
    Task(
        "MiniGrid-Fetch-*",
        f"Pick up the object that the mission names by colour and kind. Reward only on picking it up, {_LATER}; "
        "picking up another one ends the episode without reward.",
        ("key", "ball"),
        colors=True,
    ),
    Task(
        "MiniGrid-GoToDoor-*",
        "Stand next to the door of the colour that the mission names and do the action done. Reward only for "
        f"that, {_LATER}; done elsewhere, or toggle, ends the episode without reward.",
        ("door",),
        colors=True,
    ),
    Task(
        "MiniGrid-GoToObject-*",
        "Stand next to the object that the mission names by colour and kind and do the action done. Reward only "
        f"for that, {_LATER}; done elsewhere, or toggle, ends the episode without reward.",
        ("key", "ball", "box"),
        colors=True,
    ),
    Task(
        "MiniGrid-PutNear-*",
        "Pick up the object that the mission names and drop it next to the other one it names. Reward only for "
        f"that, {_LATER}; dropping it elsewhere or picking up another object ends the episode without reward.",
        ("key", "ball", "box"),
        colors=True,
    ),
    Task(
        "MiniGrid-Playground-*",
        "Rooms with doors, keys, balls and boxes to play with. There is no reward.",
        ("key", "door", "ball", "box"),
        colors=True,
        locks=True,
    ),
    Task(
        "BabyAI-*",
        "Do what the mission says: go to, pick up or put down objects, or open doors (toggle). Reward only on "
        f"doing it, {_LATER}; it ends the episode.",
        ("key", "door", "ball", "box"),
        colors=True,
        locks=True,
    ),
    Task(
        "*",
        f"Solve a gridworld task. Reward usually comes only on success, {_LATER}. Doors open with toggle, locked "
        "ones only while carrying the key of their colour.",
        KINDS,
        distances=True,
        colors=True,
        locks=True,
    ),
)
"""Looked through in order; the last one fits every id and has everything."""


def task_for(env_id: str | None) -> Task:
    """:return: the first family that fits an environment id; the one that has everything if there is no id."""
    return next(task for task in TASKS if fnmatchcase(env_id or "", task.pattern))
