"""The Gymnasium id of an environment, whatever it is wrapped in."""

from __future__ import annotations

import re
from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper

# <Monitor<TimeLimit<...<CartPoleEnv<CartPole-v1>>>>>; an environment without a spec prints <CartPoleEnv instance>
_PRINTED_ID = re.compile(r"<[^<>]+<([^<> ]+)>>")


def env_id_of(env: Any) -> str | None:
    """
    The id under which an environment was made.

    :param env: a Gymnasium environment or a Stable-Baselines3 ``VecEnv``, wrapped or not
    :return: the id, for example ``CartPole-v1``; None if there is none or it cannot be found. Never raises.
    """
    try:
        while isinstance(env, VecEnvWrapper):
            env = env.venv
        if isinstance(env, DummyVecEnv):
            env = env.envs[0]
        if isinstance(env, SubprocVecEnv):
            # A spec holds the wrappers' arguments; one that cannot be pickled would end the worker. Text always travels.
            match = _PRINTED_ID.search(str(env.env_method("__str__", indices=0)[0]))
            return match.group(1) if match else None
        spec = env.get_attr("spec", indices=0)[0] if isinstance(env, VecEnv) else _spec_of(env)
        found = getattr(spec, "id", None)
        return found if isinstance(found, str) and found else None
    except Exception:
        return None


def _spec_of(env: Any) -> Any:
    # The wrapped environment's spec copies every wrapper's arguments; the innermost one is there already.
    inner = getattr(env, "unwrapped", env)
    spec = getattr(inner, "spec", None)
    return spec if spec is not None else getattr(env, "spec", None)
