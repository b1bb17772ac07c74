"""Half-skilled players of the rule benchmark's environments, and their experience in a replay buffer.

Each player is a scripted controller that acts at random with probability ε; ε falls linearly over the steps, as the
exploration of a training run does. The behaviour is so from random to middling, and the same for the same seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from sb3_nser.errors import NSERError
from sb3_nser.replay import NSERReplayBuffer

FIRST_EPSILON, LAST_EPSILON = 1.0, 0.3
"""Share of random actions in the first step and in the last."""

Player = Callable[[gym.Env[Any, Any], Any], int]
"""From the environment and its observation to an action."""


def make_env(env_id: str) -> gym.Env[Any, Any]:
    """
    :param env_id: one of the benchmark's environments
    :raises NSERError: if a package that it needs is missing
    """
    if env_id.startswith("MiniGrid"):
        try:
            import minigrid
            from minigrid.wrappers import ImgObsWrapper
        except ImportError:
            raise NSERError(f"{env_id} needs minigrid: pip install minigrid.") from None
        del minigrid  # importing it registers the environments
        world: gym.Env[Any, Any] = ImgObsWrapper(gym.make(env_id))  # type: ignore[no-untyped-call]
        return world
    try:
        # without a limit a random walker beside the cliff hardly ever ends an episode
        return gym.make(env_id, max_episode_steps=200 if env_id.startswith("CliffWalking") else None)
    except gym.error.DependencyNotInstalled as error:
        raise NSERError(f"{env_id} needs a package: {error}") from None


def play(env_id: str, steps: int, seed: int, pause: int) -> Iterator[tuple[int, NSERReplayBuffer, gym.Env[Any, Any]]]:
    """
    Fill a buffer; stop now and then to let it be looked at.

    :param env_id: one of ``PLAYERS``
    :param steps: environment steps in all
    :param seed: of environment, actions and buffer
    :param pause: steps between stops
    :return: at each stop the steps made so far, the buffer and the environment
    """
    env, player, rng = make_env(env_id), PLAYERS[env_id], np.random.default_rng(seed)
    buffer = NSERReplayBuffer(steps, env.observation_space, env.action_space, device="cpu", seed=seed)
    n_actions = int(env.action_space.n)  # type: ignore[attr-defined]
    observation, _ = env.reset(seed=seed)
    epsilons = np.linspace(FIRST_EPSILON, LAST_EPSILON, steps)
    random, choices = rng.random(steps), rng.integers(n_actions, size=steps)
    for step in range(steps):
        at_random = random[step] < epsilons[step]
        action = int(choices[step]) if at_random else player(env, observation)
        after, reward, terminated, truncated, info = env.step(action)
        cut = truncated and not terminated
        done = np.array([terminated or truncated])
        buffer.add(
            np.asarray(observation)[None],
            np.asarray(after)[None],
            np.array([[action]]),
            np.array([float(reward)]),
            done,
            [{**info, "TimeLimit.truncated": cut}],
        )
        observation = env.reset()[0] if done[0] else after
        if (step + 1) % pause == 0 or step + 1 == steps:
            yield step + 1, buffer, env
    env.close()


def balance(env: gym.Env[Any, Any], seen: Any) -> int:
    """CartPole: push towards where the pole falls; nothing keeps the cart on the track."""
    return int(seen[2] + 0.4 * seen[3] > 0.0)


def swing(env: gym.Env[Any, Any], seen: Any) -> int:
    """MountainCar: push the way the car moves."""
    return 2 if seen[1] > 0.0 else 0


def land(env: gym.Env[Any, Any], seen: Any) -> int:
    """LunarLander: keep the lean that leads back above the pad, brake the fall."""
    x, height, x_speed, speed, lean, turn, *legs = (float(value) for value in seen)
    wanted_lean = np.clip(0.5 * x + x_speed, -0.4, 0.4)
    turning = 0.5 * (wanted_lean - lean) - turn
    braking = 0.5 * (0.55 * abs(x) - height) - 0.5 * speed
    if any(legs):
        turning, braking = 0.0, -0.5 * speed
    if braking > abs(turning) and braking > 0.05:
        return 2
    return 3 if turning < -0.05 else 1 if turning > 0.05 else 0


def cross(env: gym.Env[Any, Any], seen: Any) -> int:
    """FrozenLake: the best action for this map on slippery ice."""
    return int(_lake_actions(env)[int(seen)])


def drive(env: gym.Env[Any, Any], seen: Any) -> int:
    """Taxi: straight towards the target, north and south first; walls are found out by bumping into them."""
    row, column, passenger, destination = env.unwrapped.decode(int(seen))  # type: ignore[attr-defined]
    places = env.unwrapped.locs  # type: ignore[attr-defined]
    goal = places[destination] if passenger == 4 else places[passenger]
    if (row, column) == tuple(goal):
        return 5 if passenger == 4 else 4
    if row != goal[0] and column == goal[1]:
        return 0 if goal[0] > row else 1
    # the middle row has no walls
    if row != 2:
        return 0 if row < 2 else 1
    return 2 if goal[1] > column else 3


def open_door(env: gym.Env[Any, Any], seen: Any) -> int:
    """DoorKey: the shortest way to the key, the door, the goal, by the whole map."""
    world: Any = env.unwrapped
    grid = world.grid
    things = {
        grid.get(i, j).type: (i, j)
        for i in range(grid.width)
        for j in range(grid.height)
        if grid.get(i, j) is not None and grid.get(i, j).type != "wall"
    }
    door = grid.get(*things["door"])
    carried = world.carrying is not None
    if door.is_locked and not carried:
        target, last = things["key"], 3
    elif not door.is_open:
        target, last = things["door"], 5
    else:
        target, last = things["goal"], 2
    return _way(world, target, last)


def reach(env: gym.Env[Any, Any], seen: Any) -> int:
    """Empty: the shortest way to the goal in the corner."""
    world: Any = env.unwrapped
    return _way(world, (world.grid.width - 2, world.grid.height - 2), 2)


def walk(env: gym.Env[Any, Any], seen: Any) -> int:
    """CliffWalking: up, along the edge of the cliff, down."""
    row, column = divmod(int(seen), 12)
    if column == 11:
        return 2
    return 0 if row == 3 else 1


def _way(world: Any, target: tuple[int, int], last: int) -> int:
    """:return: the first action on the shortest way to facing the target, ``last`` if the agent faces it already"""
    grid, start = world.grid, (int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir))
    moves = ((1, 0), (0, 1), (-1, 0), (0, -1))
    queue: deque[tuple[tuple[int, int, int], int]] = deque([(start, -1)])
    known = {start}
    while queue:
        (x, y, heading), first = queue.popleft()
        ahead = (x + moves[heading][0], y + moves[heading][1])
        if ahead == target:
            return last if first < 0 else first
        cell = grid.get(*ahead)
        steps = [(0, (x, y, (heading - 1) % 4)), (1, (x, y, (heading + 1) % 4))]
        if cell is None or cell.can_overlap():
            steps.append((2, (*ahead, heading)))
        for action, state in steps:
            if state not in known:
                known.add(state)
                queue.append((state, action if first < 0 else first))
    return 0


def _lake_actions(env: gym.Env[Any, Any], gamma: float = 0.99) -> np.ndarray:
    world: Any = env.unwrapped
    known: np.ndarray | None = getattr(world, "_best_actions", None)
    if known is None:
        value = np.zeros(len(world.P))
        for _ in range(500):
            q = action_values(world.P, value, gamma)
            value = q.max(axis=1)
        known = world._best_actions = q.argmax(axis=1)
    return known


def action_values(model: Any, value: np.ndarray, gamma: float) -> np.ndarray:
    """
    :param model: ``P`` of a toy-text environment: state -> action -> (probability, next state, reward, terminated)
    :param value: shape (states,)
    :param gamma: discount
    :return: shape (states, actions)
    """
    return np.array(
        [
            [sum(p * (r + gamma * value[after] * (not ended)) for p, after, r, ended in model[s][a]) for a in model[s]]
            for s in range(len(model))
        ]
    )


PLAYERS: dict[str, Player] = {
    "CartPole-v1": balance,
    "MountainCar-v0": swing,
    "LunarLander-v3": land,
    "FrozenLake-v1": cross,
    "Taxi-v4": drive,
    "MiniGrid-DoorKey-5x5-v0": open_door,
    "CliffWalking-v1": walk,
    "MiniGrid-Empty-6x6-v0": reach,
}
