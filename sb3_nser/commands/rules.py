"""``sb3-nser rules show|check|diff|formalize``: rules files for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from sb3_nser.arguments import as_int
from sb3_nser.commands.formalize import add_formalize
from sb3_nser.errors import NSERError

if TYPE_CHECKING:
    from sb3_nser.commands import Subcommands
    from sb3_nser.rules import Entry
    from sb3_nser.rules.review import Finding

TROUBLE = 2
"""Exit status of ``diff`` if a file cannot be read, as of diff itself."""


def add_rules(commands: Subcommands) -> None:
    """:param commands: gets ``rules`` with its own subcommands"""
    parser = commands.add_parser("rules", help="show, check and compare rules files; translate a sentence into rules")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="a rules file as a table")
    show.add_argument("file")
    show.add_argument("--why", action="store_true", help="also why each rule has its state, and its proposer's reason")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=run_show)
    check = verbs.add_parser(
        "check",
        help="everything that is wrong with a rules file; exit status 1 if anything is",
        description="Without --env a file is checked for what it says about itself; with it also for names, and for rules "
        "that never or always fire while the environment is played at random.",
    )
    check.add_argument("file")
    check.add_argument("--env", metavar="ID", help="Gymnasium id, or module:ID for one that a module of yours registers")
    check.add_argument("--vocabulary", default="auto", metavar="NAME", help="a registered vocabulary (default: by the id)")
    check.add_argument("--episodes", default="20", metavar="N", help="random episodes to play, 0 for none (default 20)")
    check.add_argument("--json", action="store_true", help="as JSON")
    check.set_defaults(run=run_check)
    compare = verbs.add_parser(
        "diff",
        help="what differs between two rules files; exit status 0 same, 1 different, 2 trouble",
        description="Rules are compared in canonical form: their order, the order of conditions and 0.10 for 0.1 do not "
        "matter, nor does the evidence.",
    )
    compare.add_argument("a")
    compare.add_argument("b")
    compare.add_argument("--json", action="store_true", help="as JSON")
    compare.set_defaults(run=run_diff)
    add_formalize(verbs)


def entries_in(file: str) -> tuple[Entry, ...]:
    """
    :param file: path of a rules file
    :return: its entries in file order
    :raises ConfigurationError: if it cannot be read, in one sentence
    """
    from sb3_nser.induction.persistence import read_rules

    return read_rules(file, None, "file")


def run_show(args: argparse.Namespace) -> int:
    """:return: 0"""
    from sb3_nser.rules.table import state, summary, table

    entries = entries_in(args.file)
    if args.json:
        print(json.dumps([summary(entry) for entry in entries], indent=2))
        return 0
    if not entries:
        print(f"{args.file} holds no rules.")
        return 0
    print("\n".join(table(entries, reasons=args.why)))
    tally = Counter(state(entry) for entry in entries)
    print(f"\n{len(entries)} {'rule' if len(entries) == 1 else 'rules'}: " + ", ".join(f"{n} {s}" for s, n in tally.items()))
    return 0


def run_check(args: argparse.Namespace) -> int:
    """:return: 0 if nothing is wrong, else 1"""
    from sb3_nser.commands.environment import make_env, vocabulary_of
    from sb3_nser.induction.persistence import read_text
    from sb3_nser.rules.review import review

    episodes = as_int("--episodes", args.episodes, 0, 1_000)
    text = read_text(args.file, "file")
    env = make_env(args.env) if args.env else None
    vocabulary = vocabulary_of(env, args.vocabulary) if env is not None else None
    sound, found = review(text, vocabulary)
    played = ""
    if env is not None and vocabulary is not None and episodes and sound:
        from sb3_nser.commands.environment import random_experience

        experience = random_experience(env, vocabulary, episodes)
        count = len(set(experience.episode_ids.tolist()))
        played = f"{count} random episodes of {args.env} ({len(experience)} steps)"
        if count:
            found += firing(sound, vocabulary, experience, played)
        else:
            played = "no whole episode: random play was too short for one"
    if args.json:
        print(json.dumps({"file": args.file, "findings": [item.to_dict() for item in found]}, indent=2))
        return 1 if found else 0
    for item in found:
        print(f"{args.file}: {_placed(item)}")
    if vocabulary is None:
        looked = "names were not checked: give --env"
    else:
        looked = f"names of the vocabulary {vocabulary.name!r}" + (f", {played}" if played else "")
    total = len({number for number, _ in sound} | {number for item in found for number in item.rules})
    print(f"{args.file}: {total} rules, {len(found) or 'no'} {'problem' if len(found) == 1 else 'problems'} ({looked})")
    return 1 if found else 0


def _placed(item: Finding) -> str:
    """:return: the message behind the place it is about"""
    if not item.rules:
        return item.message
    message = item.message.replace(f"rule {item.rules[0]} of the rules file", "", 1).lstrip(": ")
    return f"rule{'s' if len(item.rules) > 1 else ''} {' and '.join(map(str, item.rules))}: {message}"


def firing(sound: list[tuple[int, Entry]], vocabulary: object, experience: object, played: str) -> list[Finding]:
    """:return: a finding for each enabled rule that never or always fires in those episodes, thresholds as written"""
    import numpy as np

    from sb3_nser.induction.episodes import Experience
    from sb3_nser.logic import Dataset, judge
    from sb3_nser.rules.evidence import percent
    from sb3_nser.rules.review import Finding
    from sb3_nser.vocabulary import Vocabulary

    assert isinstance(experience, Experience) and isinstance(vocabulary, Vocabulary)
    rows = Dataset.build(experience.tensors(), experience.actions, experience.returns, experience.episode_ids)
    rows = replace(rows, held_out=np.zeros(len(rows), np.bool_))  # nothing is concluded: all rows are looked at
    # a pinned rule keeps its thresholds
    tried = [(n, replace(e, rule=e.rule.model_copy(update={"pinned": True}))) for n, e in sound if e.rule.enabled]
    found = []
    for (number, entry), result in zip(tried, judge([e for _, e in tried], vocabulary, rows, steps=0), strict=True):
        verdict = result.evidence.verdict
        rate = percent(result.evidence.body_rate)
        if verdict == "never_fires":
            message = f"'{entry.rule}' never fires ({rate} of {played}); can the agent get there, and is the unit right?"
        elif verdict == "always_fires":
            message = f"'{entry.rule}' always fires ({rate} of {played}): it tells no states apart."
        else:
            continue
        found.append(Finding("firing", (number,), message))
    return found


def run_diff(args: argparse.Namespace) -> int:
    """:return: 0 if both files say the same, 1 if not, 2 if one cannot be read"""
    from sb3_nser.rules.diff import diff

    try:
        found = diff(entries_in(args.a), entries_in(args.b))
    except NSERError as error:
        print(f"sb3-nser: {error}", file=sys.stderr)
        return TROUBLE
    if args.json:
        print(json.dumps(found.to_dict(), indent=2))
    elif found:
        print(f"--- {args.a}\n+++ {args.b}")
        print("\n".join(found.lines()))
    return 1 if found else 0
