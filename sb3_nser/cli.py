"""The command line, ``sb3-nser``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from sb3_nser import __version__
from sb3_nser.errors import NSERError


def build_parser() -> argparse.ArgumentParser:
    """:return: the parser of all commands; heavy imports wait until a command runs"""
    from sb3_nser.commands import add_commands
    from sb3_nser.demo import add_demo_arguments
    from sb3_nser.local.command import add_serve_arguments

    parser = argparse.ArgumentParser(prog="sb3-nser", description="Neuro-symbolic experience replay for Stable-Baselines3.")
    parser.add_argument("--version", action="version", version=f"sb3-nser {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train DQN on CartPole and MiniGrid-DoorKey with rules from a language model")
    add_demo_arguments(demo)
    serve = commands.add_parser("serve", help="serve a small model behind Ollama's HTTP API (extra: local)")
    add_serve_arguments(serve)
    add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments, default those of the process
    :return: exit status: 0 fine, 1 our own error (one sentence on standard error), 130 interrupted
    """
    args = build_parser().parse_args(argv)
    try:
        if "run" in args:
            return int(args.run(args))
        if args.command == "serve":
            from sb3_nser.local.command import run_serve

            return run_serve(args)
        from sb3_nser.demo import run_demo

        return run_demo(args)
    except NSERError as error:
        print(f"sb3-nser: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone (| head)
        sys.stdout = open(os.devnull, "w")
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
