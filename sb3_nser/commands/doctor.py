"""``sb3-nser doctor``: what is here, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Literal

from sb3_nser import __version__
from sb3_nser.errors import LLMUnavailableError, ModelFileError, printable

if TYPE_CHECKING:
    from sb3_nser.commands import Subcommands

_NEEDED = ("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy", "ollama", "httpx", "pydantic", "PyYAML")
_OPTIONAL = (
    ("numba", "fast", "compiled sum trees: several times faster draws"),
    ("xllamacpp", "local", "the embedded model server, for machines without Ollama"),
    ("minigrid", "demo", "MiniGrid environments"),
    ("tensorboard", "demo", "TensorBoard events"),
    ("rl_zoo3", "zoo", "rl-baselines3-zoo"),
    ("pandas", "study", "sb3-nser compare and report"),
    ("ray", "ray", "sb3-nser compare --ray: studies on a cluster"),
)
_MARKS = {"ok": "ok  ", "missing": "MISS", "absent": "-   "}


@dataclass(frozen=True)
class Check:
    """
    One line of the report.

    :param name: what was looked for
    :param state: ``ok``, ``missing`` (rules from a model cannot work without it) or ``absent`` (works without)
    :param found: version, or what was found
    :param cure: what to do; empty if all is well
    """

    name: str
    state: Literal["ok", "missing", "absent"]
    found: str
    cure: str = ""


def add_doctor(commands: Subcommands) -> None:
    """:param commands: gets ``doctor``"""
    parser = commands.add_parser(
        "doctor", help="what is installed, which model server answers, and what to do where one is missing"
    )
    parser.add_argument("--host", help="the server (default: OLLAMA_HOST, else 127.0.0.1:11434)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run_doctor)


def run_doctor(args: argparse.Namespace) -> int:
    """:return: 0 if rules from a model can work here, else 1"""
    checks = [*packages(), *optional_packages(), *model_files(), *server(args.host)]
    works = not any(check.state == "missing" for check in checks)
    if args.json:
        print(json.dumps({"works": works, "checks": [asdict(check) for check in checks]}, indent=2))
        return 0 if works else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{_MARKS[check.state]}  {check.name.ljust(width)}  {check.found}")
        if check.cure:
            print(f"      {' ' * width}  {check.cure}")
    print("\nRules from a model can work here." if works else "\nRules from a model cannot work yet: see MISS above.")
    return 0 if works else 1


def packages() -> list[Check]:
    """:return: Python and what the package cannot do without"""
    checks = [Check("sb3-nser", "ok", f"{__version__} on Python {platform.python_version()}, {platform.system()}")]
    for name in _NEEDED:
        version = _version(name)
        state: Literal["ok", "missing"] = "ok" if version else "missing"
        checks.append(Check(name, state, version or "not installed", "" if version else f"pip install {name}"))
    return checks


def optional_packages() -> list[Check]:
    """:return: what the extras bring"""
    checks = []
    for name, extra, use in _OPTIONAL:
        version = _version(name)
        cure = "" if version else f"pip install 'sb3-nser[{extra}]'"
        checks.append(Check(name, "ok" if version else "absent", f"{version or 'not installed'} ({use})", cure))
    return checks


def model_files() -> list[Check]:
    """:return: the embedded server's model files; a file's hash is computed once and then remembered"""
    from sb3_nser.local.models import CATALOGUE, cache_dir, file_digest

    checks = []
    for name, model in CATALOGUE.items():
        path = cache_dir() / model.file
        label = f"model file {name}"
        if not path.is_file():
            cure = f"sb3-nser serve --model {name} fetches it ({model.size / 1e6:.0f} MB)" if _version("xllamacpp") else ""
            checks.append(Check(label, "absent", "not in the cache", cure))
            continue
        try:
            right = file_digest(path) == model.sha256
        except (OSError, ModelFileError):
            right = False
        checks.append(
            Check(label, "ok", str(path))
            if right
            else Check(label, "absent", f"{path} is damaged", "it is replaced when it is next used")
        )
    return checks


def server(host: str | None) -> list[Check]:
    """
    :param host: address, None for the default
    :return: whether a model can be asked: at a server, or by the embedded one
    """
    from sb3_nser.induction.ollama import OllamaInducer
    from sb3_nser.induction.transport import bounded_client

    address = host or os.environ.get("OLLAMA_HOST") or "http://127.0.0.1:11434"
    name = "model server"
    try:
        with bounded_client(OllamaInducer("any", address).host, 5.0) as client:
            models = sorted(item.model for item in client.list().models if item.model)
    except Exception as error:
        reason = "nothing answers" if isinstance(error, ConnectionError | LLMUnavailableError) else printable(error, 120)
        embedded = importlib.util.find_spec("xllamacpp") is not None
        asked = bool(host or os.environ.get("OLLAMA_HOST"))
        cure = (
            "start one: `ollama serve`, or `sb3-nser serve`"
            if embedded
            else ("install Ollama and run `ollama serve`, or pip install 'sb3-nser[local]' and run `sb3-nser serve`")
        )
        cure += "; or set --host or OLLAMA_HOST to where it runs" if not asked else "; or correct --host or OLLAMA_HOST"
        state: Literal["missing", "absent"] = "absent" if embedded and not asked else "missing"
        return [Check(name, state, f"{address}: {reason}", cure)]
    if not models:
        return [Check(name, "missing", f"{address} has no model", "get one: `ollama pull qwen3:4b`")]
    shown = printable(", ".join(models), 300)
    return [Check(name, "ok", f"{address} has {shown}")]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
