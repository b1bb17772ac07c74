"""The bodies of Ollama's model-listing responses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from sb3_nser.local.engine import Engine

API_VERSION = "0.33.0"
"""The Ollama version whose API is followed; clients use it to see what a server can do."""

_FOR_EVER = 100 * 365 * 86400.0  # Ollama, too, writes a date far away


def timestamp(moment: datetime | None = None) -> str:
    """Write a time as Ollama does.

    :param moment: A time in UTC; now if None
    :return: Like ``2026-01-31T12:00:00.000001Z``
    """
    return (moment or datetime.now(timezone.utc)).isoformat().replace("+00:00", "Z")


def _entry(engine: Engine) -> dict[str, Any]:
    return {
        "name": engine.name,
        "model": engine.name,
        "size": engine.info.size,
        "digest": engine.info.digest,
        "details": engine.info.details(),
    }


def tags_body(engines: Iterable[Engine]) -> dict[str, Any]:
    """Answer ``/api/tags``.

    :param engines: All engines
    """
    return {
        "models": [
            {**_entry(e), "modified_at": timestamp(e.info.modified_at), "capabilities": e.info.capabilities} for e in engines
        ]
    }


def ps_body(engines: Iterable[Engine]) -> dict[str, Any]:
    """Answer ``/api/ps``.

    :param engines: All engines; those loaded are listed
    """
    running = []
    for engine in engines:
        if engine.loaded and (engine.turnstile.busy or engine.seconds_left > 0):
            expires = datetime.now(timezone.utc) + timedelta(seconds=min(engine.seconds_left, _FOR_EVER))
            context = {"expires_at": timestamp(expires), "size_vram": 0, "context_length": engine.num_ctx}
            running.append({**_entry(engine), **context})
    return {"models": running}


def show_body(engine: Engine) -> dict[str, Any]:
    """Answer ``/api/show``.

    :param engine: The engine asked for
    """
    info = engine.info
    model_info = {**info.metadata, "general.parameter_count": info.parameter_count}
    return {
        "license": str(info.metadata.get("general.license", "")),
        "modelfile": f"FROM {info.path.name}\n",
        "parameters": "",
        "template": info.template,
        "details": info.details(),
        # a number that is not finite has no place in JSON
        "model_info": json.loads(json.dumps(model_info), parse_constant=lambda _: None),
        "capabilities": info.capabilities,
        "modified_at": timestamp(info.modified_at),
    }
