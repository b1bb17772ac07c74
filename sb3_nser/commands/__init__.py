"""Subcommands of ``sb3-nser`` beside ``demo`` and ``serve``; each module registers its own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subcommands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_commands(commands: Subcommands) -> None:
    """
    Register the subcommands; each sets ``run``, a function of the parsed arguments that returns the exit status.

    :param commands: what ``add_subparsers`` returned
    """
    from sb3_nser.commands.doctor import add_doctor
    from sb3_nser.commands.induce import add_induce
    from sb3_nser.commands.rules import add_rules
    from sb3_nser.commands.study import add_study
    from sb3_nser.commands.vocabulary import add_vocabulary

    add_vocabulary(commands)
    add_rules(commands)
    add_induce(commands)
    add_study(commands)
    add_doctor(commands)
