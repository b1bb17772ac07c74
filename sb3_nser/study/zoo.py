"""Tuned hyper-parameters of rl-baselines3-zoo as plain values; its files are read, not evaluated."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import yaml

from sb3_nser.arguments import closest, require_extra
from sb3_nser.errors import ConfigurationError, printable

_APART = ("n_timesteps", "policy", "env_wrapper", "normalize", "n_envs", "frame_stack", "callback", "vec_env_wrapper")


def tuned(algorithm: str, env_id: str) -> dict[str, Any]:
    """
    :param algorithm: name of the class
    :param env_id: Gymnasium id
    :return: ``policy``, ``hyperparameters``, and where the zoo has them ``wrappers``, ``normalize`` and ``n_envs``
    :raises ConfigurationError: if the zoo is not installed, has nothing for this id, or asks for what a study cannot do
    """
    require_extra("rl_zoo3", "rl_zoo3", "zoo", "zoo: true")
    spec = importlib.util.find_spec("rl_zoo3")
    assert spec is not None and spec.origin is not None
    file = Path(spec.origin).parent / "hyperparams" / f"{algorithm.lower()}.yml"
    try:
        known = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"zoo: true: {file.name} of rl_zoo3 cannot be read ({printable(error, 120)}).") from None
    name = env_id.rpartition(":")[2]
    if name not in known:
        raise ConfigurationError(
            f"zoo: true: rl_zoo3 has no tuned {algorithm} for {name!r}; give hyperparameters instead.{closest(name, known)}"
        )
    given = dict(known[name])
    for key in ("frame_stack", "vec_env_wrapper", "noise_type"):
        if given.get(key):
            raise ConfigurationError(
                f"zoo: true: {algorithm} on {name} needs {key}, which a study does not do; give hyperparameters."
            )
    wrappers = given.get("env_wrapper") or []
    found: dict[str, Any] = {
        "policy": given.get("policy", "MlpPolicy"),
        "hyperparameters": {key: _plain(key, value) for key, value in given.items() if key not in _APART},
        "wrappers": wrappers if isinstance(wrappers, list) else [wrappers],
        "normalize": _plain("normalize", given.get("normalize", False)),
    }
    if given.get("n_envs"):
        found["n_envs"] = int(given["n_envs"])
    return found


def _plain(key: str, value: Any) -> Any:
    """``"dict(net_arch=[256, 256])"`` as a dictionary; other values as they are."""
    if not isinstance(value, str) or not value.lstrip().startswith(("dict(", "{")):
        return value
    try:
        tree = ast.parse(value.strip(), mode="eval").body
        if isinstance(tree, ast.Call) and not tree.args and all(word.arg for word in tree.keywords):
            return {str(word.arg): _literal(word.value) for word in tree.keywords}
        return ast.literal_eval(tree)
    except (SyntaxError, ValueError):
        raise ConfigurationError(f"zoo: true: {key}={value!r:.120} of rl_zoo3 holds more than plain values.") from None


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nn":
        return node.attr  # nn.ReLU; activation functions are looked up by name
    return ast.literal_eval(node)
