"""Who answers a command's questions: the one place that chooses an inducer by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sb3_nser.arguments import as_int, closest
from sb3_nser.errors import ConfigurationError, LLMUnavailableError

if TYPE_CHECKING:
    from sb3_nser.induction import RuleInducer


MODELS = ("ollama", "openai")
"""The inducers that read a prompt."""


def add_model_arguments(parser: argparse.ArgumentParser, inducers: tuple[str, ...] = MODELS) -> None:
    """
    :param parser: gets ``--inducer``, ``--model``, ``--host``, ``--deadline``, ``--temperature`` and ``--seed``
    :param inducers: the names that ``--inducer`` takes, the first one is the default
    """
    parser.set_defaults(inducers=inducers)
    parser.add_argument(
        "--inducer", default=inducers[0], metavar="NAME", help=f"who answers: {', '.join(inducers)} (default {inducers[0]})"
    )
    parser.add_argument(
        "--model",
        metavar="M",
        help="model as `ollama list` shows it (default: a preferred one of those the server has; openai needs one)",
    )
    parser.add_argument(
        "--host",
        help="the server (default: OLLAMA_HOST, else 127.0.0.1:11434; if nothing answers there, the embedded one; "
        "for openai OPENAI_BASE_URL)",
    )
    parser.add_argument(
        "--deadline", default="120", metavar="S", help="seconds for one call; the first may take 3 times as long"
    )
    parser.add_argument("--temperature", default="0.3", metavar="T", help="randomness of the model, 0 to 2 (default 0.3)")
    parser.add_argument("--seed", default="0", metavar="N", help="seed of the model, and of fitting (default 0)")


@contextmanager
def chosen_inducer(args: argparse.Namespace) -> Iterator[RuleInducer]:
    """
    The inducer that the arguments name; while in use, its server runs.

    :param args: what ``add_model_arguments`` added
    :raises LLMUnavailableError: if no server answers, or it lacks the model
    :raises ConfigurationError: if an argument is out of range
    """
    from sb3_nser.demo.model_server import ModelServer
    from sb3_nser.induction import OllamaInducer
    from sb3_nser.induction.choice import choose_inducer

    if args.inducer not in args.inducers:
        hint = closest(args.inducer, args.inducers)
        raise ConfigurationError(f"--inducer {args.inducer} must be one of {', '.join(args.inducers)}.{hint}")
    if args.inducer != "ollama":
        if args.inducer == "openai" and not args.model:
            raise ConfigurationError("--inducer openai needs --model, the name of a model of that server.")
        call = {"deadline": args.deadline, "temperature": args.temperature}
        seed = as_int("--seed", args.seed, 0)
        other = choose_inducer(args.inducer, args.model or "", args.host, seed=seed, keep_alive="5m", **call)
        worry = other.check()
        if worry:
            raise LLMUnavailableError(worry)
        yield other
        return
    settings = {"deadline": args.deadline, "temperature": args.temperature, "seed": args.seed}
    OllamaInducer(args.model or "any", args.host, **settings)  # wrong numbers are told before a server is started
    with ModelServer(args.model, args.host, lambda line: print(line, file=sys.stderr)) as server:
        inducer = OllamaInducer(server.model, server.host, **settings)
        worry = inducer.check()
        if worry:
            raise LLMUnavailableError(worry)
        yield inducer
