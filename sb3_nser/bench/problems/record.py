"""Record the induction problems: ``python -m sb3_nser.bench.problems.record FOLDER``. Needs gymnasium[box2d] and minigrid.

The recorded files are what counts, not this script: other versions of the environments make other episodes. It is kept to say
where the files come from, and to make the next version of the set.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_nser.bench.problems import controllers
from sb3_nser.errors import ConfigurationError

ROWS = 16_000
"""Transitions per problem, about."""
FRESH = 0.4
"""Share of the episodes that no inducer and no judge sees: they only measure the outcome."""
SKILL = (0.05, 0.85)
"""Share of steps on which the controller is asked, at the beginning and at the end of a recording; the others are random."""


@dataclass(frozen=True)
class Recipe:
    """
    :param env_id: Gymnasium id
    :param half: ``development`` (prompts may be improved by it) or ``report``
    :param gamma: discount of the returns
    :param controller: makes the controller
    :param dtype: how observations are stored
    :param options: of ``gymnasium.make``
    """

    env_id: str
    half: str
    gamma: float
    controller: Callable[[gym.Env[Any, Any]], controllers.Controller]
    dtype: str = "float16"
    options: tuple[tuple[str, Any], ...] = ()


RECIPES = {
    "cartpole": Recipe("CartPole-v1", "development", 0.99, controllers.cartpole),
    "lunar_lander": Recipe("LunarLander-v3", "development", 0.99, controllers.lunar_lander),
    "pendulum": Recipe("Pendulum-v1", "development", 0.97, controllers.pendulum),
    "frozen_lake": Recipe("FrozenLake-v1", "development", 0.97, controllers.tabular, "uint8", (("is_slippery", False),)),
    "cliff_walking": Recipe("CliffWalking-v1", "development", 0.97, controllers.tabular, "uint8"),
    "doorkey": Recipe("MiniGrid-DoorKey-5x5-v0", "development", 0.97, controllers.minigrid, "uint8"),
    "mountain_car": Recipe("MountainCar-v0", "report", 0.99, controllers.mountain_car),
    "mountain_car_continuous": Recipe("MountainCarContinuous-v0", "report", 0.99, controllers.mountain_car_continuous),
    "acrobot": Recipe("Acrobot-v1", "report", 0.99, controllers.acrobot),
    "taxi": Recipe("Taxi-v4", "report", 0.97, controllers.tabular, "uint16"),
    "blackjack": Recipe("Blackjack-v1", "report", 1.0, controllers.blackjack, "uint8"),
    "unlock": Recipe("MiniGrid-Unlock-v0", "report", 0.97, controllers.minigrid, "uint8"),
}


def main(folder: str) -> None:
    """
    :param folder: where the files go; made if it is not there
    :raises ConfigurationError: if a package is missing
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for number, (name, recipe) in enumerate(RECIPES.items()):
        arrays = record(recipe, seed=1000 + number)
        np.savez_compressed(out / f"{name}.npz", **arrays)
        digest = hashlib.sha256((out / f"{name}.npz").read_bytes()).hexdigest()
        index[name] = {"env_id": recipe.env_id, "half": recipe.half, "gamma": recipe.gamma, "sha256": digest}
        lengths = arrays["lengths"]
        totals = np.add.reduceat(arrays["rewards"], np.cumsum(lengths) - lengths)
        shown = np.quantile(totals, (0.1, 0.5, 0.9)).round(2)
        print(f"{name}: {len(lengths)} episodes, {lengths.sum()} steps, returns {shown}")
    made_with = {package: version(package) for package in ("gymnasium", "minigrid", "numpy")}
    content = json.dumps({"version": 1, "made_with": made_with, "problems": index}, indent=2)
    (out / "index.json").write_text(content + "\n", encoding="utf-8")


def record(recipe: Recipe, seed: int) -> dict[str, Any]:
    """
    :return: the arrays of one file: ``observations`` (T + 1 per episode), ``actions``, ``rewards``, ``lengths``,
        ``truncated`` and ``fresh`` per episode, and the spaces
    """
    env = _make(recipe)
    rng = np.random.default_rng(seed)
    env.action_space.seed(seed)
    controller = recipe.controller(env)
    observations: list[Any] = []
    actions: list[Any] = []
    rewards: list[float] = []
    lengths: list[int] = []
    cut: list[bool] = []
    while len(rewards) < ROWS:
        skill = SKILL[0] + (SKILL[1] - SKILL[0]) * len(rewards) / ROWS
        raw, _ = env.reset(seed=seed + len(lengths))
        observations.append(_seen(env, raw))
        start, ended, truncated = len(rewards), False, False
        while not (ended or truncated):
            action = controller(raw) if rng.random() < skill else env.action_space.sample()
            raw, reward, ended, truncated, _ = env.step(action)
            observations.append(_seen(env, raw))
            actions.append(action)
            rewards.append(float(reward))
        lengths.append(len(rewards) - start)
        cut.append(bool(truncated and not ended))
    # one episode in each run of consecutive ones, so that fresh ones span the whole time
    fresh = np.zeros(len(lengths), bool)
    edges = np.linspace(0, len(lengths), round(FRESH * len(lengths)) + 1).astype(int)
    fresh[edges[:-1] + (rng.random(len(edges) - 1) * np.diff(edges)).astype(int)] = True
    return {
        "observations": np.asarray(observations).astype(recipe.dtype),
        "actions": np.asarray(actions).astype(np.float16 if isinstance(env.action_space, spaces.Box) else np.uint8),
        "rewards": np.asarray(rewards, np.float32),
        "lengths": np.asarray(lengths, np.int32),
        "truncated": np.asarray(cut),
        "fresh": fresh,
        **_space("observation", env.observation_space),
        **_space("action", env.action_space),
    }


def _make(recipe: Recipe) -> gym.Env[Any, Any]:
    if recipe.env_id.startswith("MiniGrid"):
        try:
            import minigrid.wrappers
        except ImportError:
            raise ConfigurationError("recording the MiniGrid problems needs: pip install minigrid.") from None
        env: gym.Env[Any, Any] = minigrid.wrappers.ImgObsWrapper(gym.make(recipe.env_id))  # type: ignore[no-untyped-call]
        return env
    return gym.make(recipe.env_id, **dict(recipe.options))


def _seen(env: gym.Env[Any, Any], raw: Any) -> Any:
    """:return: what SB3 would store: a Tuple observation flattened"""
    space = env.observation_space
    return spaces.flatten(space, raw) if isinstance(space, spaces.Tuple) else np.asarray(raw)


def _space(name: str, space: spaces.Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Tuple):
        space = spaces.flatten_space(space)
    if isinstance(space, spaces.Discrete):
        return {f"{name}_n": np.asarray(space.n)}
    if isinstance(space, spaces.MultiBinary):
        return {f"{name}_low": np.zeros(space.shape, np.int8), f"{name}_high": np.ones(space.shape, np.int8)}
    assert isinstance(space, spaces.Box)  # there are no others
    return {f"{name}_low": space.low, f"{name}_high": space.high}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m sb3_nser.bench.problems.record FOLDER")
    main(sys.argv[1])
