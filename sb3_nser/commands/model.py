"""Who answers a command's questions: the one place that chooses an inducer by name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sb3_nser.errors import LLMUnavailableError

if TYPE_CHECKING:
    from sb3_nser.induction import RuleInducer


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """:param parser: gets ``--model``, ``--host``, ``--deadline``, ``--temperature`` and ``--seed``"""
    parser.add_argument(
        "--model", metavar="M", help="model as `ollama list` shows it (default: a preferred one of those the server has)"
    )
    parser.add_argument(
        "--host", help="the server (default: OLLAMA_HOST, else 127.0.0.1:11434; if nothing answers there, the embedded one)"
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

    settings = {"deadline": args.deadline, "temperature": args.temperature, "seed": args.seed}
    OllamaInducer(args.model or "any", args.host, **settings)  # wrong numbers are told before a server is started
    with ModelServer(args.model, args.host, lambda line: print(line, file=sys.stderr)) as server:
        inducer = OllamaInducer(server.model, server.host, **settings)
        worry = inducer.check()
        if worry:
            raise LLMUnavailableError(worry)
        yield inducer
