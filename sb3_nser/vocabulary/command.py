"""``sb3-nser vocabulary``: what a language model would be shown of an environment."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import gymnasium as gym
from gymnasium import error as gym_error

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError, NSERError, NSERWarning, printable
from sb3_nser.vocabulary.describe import describe
from sb3_nser.vocabulary.features import Vocabulary

_PACKAGES = {
    "MiniGrid-*": ("minigrid", "minigrid"),
    "BabyAI-*": ("minigrid", "minigrid"),
    "highway-*": ("highway_env", "highway-env"),
    "merge-*": ("highway_env", "highway-env"),
    "exit-v*": ("highway_env", "highway-env"),
    "roundabout-*": ("highway_env", "highway-env"),
    "intersection-*": ("highway_env", "highway-env"),
    "parking-*": ("highway_env", "highway-env"),
    "ALE/*": ("ale_py", "ale-py"),
    "Fetch*": ("gymnasium_robotics", "gymnasium-robotics"),
}
"""Patterns of ids that packages register when they are imported: the module, and what to install."""

_EXTRAS = {"Box2D": "box2d", "box2d": "box2d", "mujoco": "mujoco", "pygame": "classic-control"}


def run_vocabulary(args: argparse.Namespace) -> int:
    """
    :param args: as ``sb3_nser.commands.vocabulary`` defines them
    :return: 0
    :raises NSERError: if the environment cannot be made, or has no vocabulary
    """
    if args.env_id is None:
        _list(args.json)
        return 0
    from sb3_nser.vocabulary import vocabulary_of

    env = _make(args.env_id)
    try:
        with _notes_on_stderr():
            vocabulary = vocabulary_of(env, args.vocabulary)
        if args.json:
            print(json.dumps({"environment": args.env_id, **as_json(vocabulary)}, indent=2, ensure_ascii=False))
        else:
            print(f"Vocabulary {vocabulary.name!r} for {args.env_id}:\n\n{describe(vocabulary)}")
    finally:
        env.close()
    return 0


def as_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """:return: everything that ``describe`` says, as plain JSON values"""
    actions = vocabulary.actions
    return {
        "vocabulary": vocabulary.name,
        "task": vocabulary.task,
        "features": [
            {
                "name": feature.name,
                "kind": feature.kind,
                "meaning": feature.meaning,
                "unit": feature.unit,
                "low": feature.low,
                "high": feature.high,
                "values": list(feature.values),
            }
            for feature in vocabulary.features
        ],
        "actions": {
            "names": list(actions.names),
            "low": None if actions.low is None else list(actions.low),
            "high": None if actions.high is None else list(actions.high),
            "units": list(actions.units),
        },
    }


def _list(as_data: bool) -> None:
    from sb3_nser.vocabulary import registered
    from sb3_nser.vocabulary.registry import GENERIC, env_ids_of

    known = {name: list(env_ids_of(name)) for name in registered()}
    if as_data:
        print(json.dumps(known, indent=2))
        return
    width = max(map(len, known))
    for name, patterns in known.items():
        where = "every other environment: numbers by their position" if name == GENERIC else ", ".join(patterns)
        print(f"{name:<{width}}  {where or 'by name only'}")
    print("\nsb3-nser vocabulary ENV_ID shows what a language model would see of an environment.")


def _make(env_id: str) -> gym.Env[Any, Any]:
    if ":" in env_id:
        sys.path.insert(0, os.getcwd())  # the user's own module, as `python -m` would find it
    for pattern, (module, package) in _PACKAGES.items():
        if fnmatchcase(env_id, pattern):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise NSERError(f"{env_id} needs {error.name}: pip install {package}.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a newer version
            return gym.make(env_id)
    except (gym_error.UnregisteredEnv, gym_error.DeprecatedEnv) as error:  # a wrong name, or an old version of one
        raise ConfigurationError(_unknown(env_id)) from error
    except (gym_error.DependencyNotInstalled, ImportError) as error:
        raise NSERError(_missing(env_id, error)) from error
    except Exception as error:  # an environment may fail in any way of its own
        raise NSERError(
            f"the environment {printable(env_id, 80)!r} could not be made ({type(error).__name__}: {printable(error, 200)})."
        ) from error


def _unknown(env_id: str) -> str:
    from sb3_nser.vocabulary import registered

    if env_id in registered():
        return f"{env_id!r} is a vocabulary; give the id of an environment, and --vocabulary {env_id} if it is not its own."
    near = closest(env_id, gym.registry) or closest(env_id.lower(), {key.lower() for key in gym.registry})
    return (
        f"no environment is registered under {printable(env_id, 80)!r}.{near} If a module of yours registers it, write "
        "MODULE:ENV_ID."
    )


def _missing(env_id: str, error: Exception) -> str:
    text = printable(error, 200).rstrip(". ")
    name = getattr(error, "name", None) or ""
    for word, extra in _EXTRAS.items():
        if word in (name or text):
            return f"{env_id} needs a package that is not installed ({text}): pip install 'gymnasium[{extra}]'."
    return f"{printable(env_id, 80)} needs a package that is not installed ({text})."


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Our own warnings as plain sentences, without a line of our code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NSERWarning)
        yield
    for warning in caught:
        print(f"sb3-nser: {warning.message}", file=sys.stderr)
