"""Scripted controllers of mid skill for the recorded environments, written down by hand or planned from the environment's own
model. They only make the episodes; no benchmark judges rules by them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

Controller = Callable[[Any], Any]
"""Takes the raw observation of the innermost environment and returns an action."""


def cartpole(env: gym.Env[Any, Any]) -> Controller:
    """:return: pushes to the side to which the pole is about to fall"""
    return lambda obs: int(obs[2] + 0.4 * obs[3] + 0.02 * obs[1] > 0.0)


def mountain_car(env: gym.Env[Any, Any]) -> Controller:
    """:return: pushes the way the car moves"""
    return lambda obs: 2 if obs[1] > 0.0 else 0


def mountain_car_continuous(env: gym.Env[Any, Any]) -> Controller:
    """:return: the same with three quarters of the force"""
    return lambda obs: np.array([0.75 if obs[1] > 0.0 else -0.75], np.float32)


def acrobot(env: gym.Env[Any, Any]) -> Controller:
    """:return: swings the lower link with the upper one"""
    return lambda obs: 0 if obs[4] > 0.0 else 2


def pendulum(env: gym.Env[Any, Any]) -> Controller:
    """:return: pumps energy far from the top and balances near it"""

    def act(obs: Any) -> Any:
        cosine, sine, speed = (float(value) for value in obs)
        if cosine > 0.85:
            torque = -10.0 * sine - 2.0 * speed
        else:
            torque = 2.0 if speed * (10.0 * (1.0 - cosine) - 0.5 * speed**2 * 0.3) > 0.0 else -2.0
        return np.clip(np.array([torque], np.float32), -2.0, 2.0)

    return act


def lunar_lander(env: gym.Env[Any, Any]) -> Controller:
    """:return: the heuristic that Gymnasium ships"""
    from gymnasium.envs.box2d.lunar_lander import heuristic

    return lambda obs: heuristic(env.unwrapped, obs)  # type: ignore[no-untyped-call]


def blackjack(env: gym.Env[Any, Any]) -> Controller:
    """:return: hits below 17, or below 13 if the dealer's card is weak"""
    return lambda obs: int(obs[0] < (13 if 2 <= obs[1] <= 6 and not obs[2] else 17))


def tabular(env: gym.Env[Any, Any]) -> Controller:
    """:return: greedy on values that value iteration finds in the environment's own table"""
    table: Any = env.unwrapped.P  # type: ignore[attr-defined]
    count, actions = len(table), len(table[0])
    values = np.zeros(count)

    def gains(state: int) -> list[float]:
        return [
            sum(p * (reward + 0.97 * values[later] * (not done)) for p, later, reward, done in table[state][action])
            for action in range(actions)
        ]

    for _ in range(200):
        values = np.array([max(gains(state)) for state in range(count)])
    best = [int(np.argmax(gains(state))) for state in range(count)]
    return lambda obs: best[int(obs)]


_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def minigrid(env: gym.Env[Any, Any]) -> Controller:
    """:return: the first action of a shortest plan: fetch the key, open the door, reach the goal (if there is one)"""

    def act(_: Any) -> int:
        world: Any = env.unwrapped
        cells = {(x, y): world.grid.get(x, y) for x in range(world.width) for y in range(world.height)}
        kinds = {place: cell.type for place, cell in cells.items() if cell is not None}
        goal = next((place for place, kind in kinds.items() if kind == "goal"), None)
        door = next((place for place, kind in kinds.items() if kind == "door"), None)
        key = next((place for place, kind in kinds.items() if kind == "key"), None)
        opened = door is None or bool(cells[door].is_open)
        start = (tuple(int(part) for part in world.agent_pos), int(world.agent_dir), world.carrying is not None, opened)
        queue: deque[Any] = deque([(start, -1)])
        seen = {start}
        while queue:
            state, first = queue.popleft()
            place, heading, holds, is_open = state
            if (place == goal) if goal is not None else is_open:
                return int(max(first, 0))
            ahead = (place[0] + _STEPS[heading][0], place[1] + _STEPS[heading][1])
            kind = kinds.get(ahead)
            free = kind in (None, "goal") or (ahead == door and is_open) or (ahead == key and holds)
            moves = [(0, (place, (heading - 1) % 4, holds, is_open)), (1, (place, (heading + 1) % 4, holds, is_open))]
            moves += [(2, (ahead, heading, holds, is_open))] * free
            moves += [(3, (place, heading, True, is_open))] * (ahead == key and not holds)
            moves += [(5, (place, heading, holds, True))] * (ahead == door and holds and not is_open)
            for action, later in moves:
                if later not in seen:
                    seen.add(later)
                    queue.append((later, action if first < 0 else first))
        return 0

    return act
