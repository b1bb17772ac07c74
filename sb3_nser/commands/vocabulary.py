"""``sb3-nser vocabulary``: its arguments. What it does needs torch, which the command line's help does without."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sb3_nser.commands import Subcommands


def add_vocabulary(commands: Subcommands) -> None:
    """:param commands: gets ``vocabulary``"""
    parser = commands.add_parser("vocabulary", help="show what a language model would see of an environment")
    parser.add_argument(
        "env_id",
        nargs="?",
        metavar="ENV_ID",
        help="id of a Gymnasium environment, or MODULE:ID to import a module first; without it, known vocabularies are listed",
    )
    parser.add_argument(
        "--vocabulary", default="auto", metavar="NAME", help="use this one instead of the one that belongs to the id"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from sb3_nser.vocabulary.command import run_vocabulary

    return run_vocabulary(args)
