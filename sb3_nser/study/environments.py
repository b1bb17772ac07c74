"""Environments and algorithms from the plain values of a cell."""

from __future__ import annotations

import copy
import importlib
import inspect
import warnings
from typing import Any

import gymnasium as gym
import torch as th
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_nser.arguments import closest
from sb3_nser.errors import ConfigurationError, printable
from sb3_nser.study.spec import ALGORITHMS

_REGISTER = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"}
_WRAPPERS = ("gymnasium.wrappers", "minigrid.wrappers", "sb3_nser.study.wrappers")


def make_env(env: dict[str, Any], training: bool = False) -> gym.Env[Any, Any]:
    """
    :param env: ``id``, ``kwargs``, ``wrappers`` and ``training_wrappers`` as in a cell
    :param training: whether the last of these are put around it
    :return: one environment
    :raises ConfigurationError: if it cannot be made
    """
    name = str(env["id"])
    module = next((module for prefix, module in _REGISTER.items() if name.startswith(prefix)), None)
    try:
        if module is not None:
            importlib.import_module(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions out of date; the user has chosen
            made = gym.make(name, **env["kwargs"])
    except Exception as error:
        unknown = isinstance(error, gym.error.Error) and "Did you mean" not in str(error)
        hint = closest(name, gym.registry) if unknown else ""
        raise ConfigurationError(f"environment {name!r} cannot be made: {printable(error, 300).rstrip('.')}.{hint}") from None
    for wrapper in [*env["wrappers"], *(env.get("training_wrappers", ()) if training else ())]:
        if not isinstance(wrapper, str) and len(wrapper) != 1:
            raise ConfigurationError(
                f"environment {name!r}: wrapper {wrapper!r:.100} must be a class or {{Class: {{argument: value}}}}."
            )
        path, arguments = (wrapper, {}) if isinstance(wrapper, str) else next(iter(wrapper.items()))
        try:
            made = _wrapper_class(str(path))(made, **(arguments or {}))
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(
                f"environment {name!r}: wrapper {path!r:.80} does not fit: {printable(error, 200)}"
            ) from None
    return made


def make_vec_env(env: dict[str, Any], normalize: bool | dict[str, Any], gamma: float) -> VecEnv:
    """
    :param env: as in a cell
    :param normalize: True or the arguments of VecNormalize
    :param gamma: discount of the algorithm, for VecNormalize
    :return: the environments to train in
    """
    made: VecEnv = DummyVecEnv([lambda: Monitor(make_env(env, training=True)) for _ in range(int(env["n_envs"]))])
    if normalize:
        made = VecNormalize(made, **{"gamma": gamma, **(normalize if isinstance(normalize, dict) else {})})
    return made


def algorithm_class(name: str) -> Any:
    """:return: the class of an algorithm in ``ALGORITHMS``"""
    return getattr(importlib.import_module(ALGORITHMS[name]), name)


def arguments_of(name: str, hyperparameters: dict[str, Any]) -> dict[str, Any]:
    """
    :param name: of the algorithm
    :param hyperparameters: as a YAML file has them
    :return: arguments for the class, copied since algorithms write into ``policy_kwargs``: numbers for texts that read as
        numbers, tuples for ``train_freq``, schedules for ``lin_1e-3``, classes for names of activation functions
    :raises ConfigurationError: for an argument that the class does not have, or that a study decides itself
    """
    known = list(inspect.signature(algorithm_class(name).__init__).parameters)[1:]
    taken = ("policy", "env", "seed", "replay_buffer_class", "replay_buffer_kwargs", "tensorboard_log")
    found: dict[str, Any] = {}
    for key, value in copy.deepcopy(hyperparameters).items():
        if key in taken:
            raise ConfigurationError(f"hyperparameters: {key!r} is decided by the study; leave it out.")
        if key not in known:
            raise ConfigurationError(f"hyperparameters: {name} has no argument {key!r:.80}.{closest(key, known)}")
        found[key] = _value(key, value)
    return found


def _value(key: str, value: Any) -> Any:
    if key == "policy_kwargs" and isinstance(value, dict) and isinstance(value.get("activation_fn"), str):
        activation = getattr(th.nn, value["activation_fn"].rpartition(".")[2], None)
        if not (inspect.isclass(activation) and issubclass(activation, th.nn.Module)):
            raise ConfigurationError(
                f"policy_kwargs: activation_fn={value['activation_fn']!r:.80} must be a class of torch.nn, such as ReLU."
            )
        return {**value, "activation_fn": activation}
    if key == "train_freq" and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str):
        return value
    if value.startswith("lin_"):
        return LinearSchedule(_number(key, value[4:]), 0.0, 1.0)
    try:
        return int(value)
    except ValueError:
        try:
            number = float(value)
        except ValueError:
            return value  # "auto", a device
        return int(number) if number.is_integer() and "." not in value and abs(number) < 2**53 else number


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"hyperparameters: {key}='lin_{text}' must be lin_ and a number, such as lin_1e-3.") from None


def _wrapper_class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    names: list[str] = []
    for place in (module,) if module else _WRAPPERS:
        try:
            found = importlib.import_module(place)
        except ImportError:
            continue
        names += [key for key, value in vars(found).items() if inspect.isclass(value)]
        if inspect.isclass(getattr(found, name, None)):
            return getattr(found, name)
    where = module or ", ".join(_WRAPPERS)
    raise ConfigurationError(f"wrappers: {path!r:.100} is no class of {where}.{closest(name, names)}")
