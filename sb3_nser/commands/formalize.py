"""``sb3-nser rules formalize "pick up the key before the door" --env ID``: a person's words as rules."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sb3_nser.arguments import as_int
from sb3_nser.commands.model import add_model_arguments, chosen_inducer
from sb3_nser.errors import ConfigurationError, InductionError, printable

if TYPE_CHECKING:
    from sb3_nser.commands import Subcommands
    from sb3_nser.induction import RuleInducer
    from sb3_nser.induction.episodes import Experience
    from sb3_nser.rules import Rule, RuleBook
    from sb3_nser.rules.schema import ParsedReply
    from sb3_nser.vocabulary import Vocabulary


ATTEMPTS = 3
"""Replies that are asked for, each with another seed, until one passes the checks."""
EPISODES = 10
"""Random episodes that tell the model which values numbers take."""


def add_formalize(verbs: Subcommands) -> None:
    """:param verbs: gets ``formalize``"""
    parser = verbs.add_parser(
        "formalize",
        help="translate a sentence into rules by a language model, and after your consent write them to a file",
        description="The model's translation is shown in words; it is written only if you agree, or with --yes. Where nobody "
        "can be asked (no terminal) and without --yes, it is only printed.",
    )
    parser.add_argument("hint", help="your advice in your own words")
    parser.add_argument(
        "--env", required=True, metavar="ID", help="Gymnasium id, or module:ID for one that a module registers"
    )
    parser.add_argument("--vocabulary", default="auto", metavar="NAME", help="a registered vocabulary (default: by the id)")
    parser.add_argument("--max-rules", default="1", metavar="N", help="most rules of the translation, 1 to 8 (default 1)")
    parser.add_argument("--pin", action="store_true", help="write them as pinned: never pruned, whatever the data say")
    parser.add_argument("--yes", action="store_true", help="write without asking")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="rules file to write or append to (default: rules.yaml if you agree)"
    )
    add_model_arguments(parser)
    parser.set_defaults(run=run_formalize)


def run_formalize(args: argparse.Namespace) -> int:
    """
    :return: 0 if a translation was found, written or not
    :raises NSERError: in one sentence, for whatever goes wrong
    """
    from sb3_nser.commands.environment import make_env, random_experience, vocabulary_of
    from sb3_nser.induction.formalize import check_hint
    from sb3_nser.induction.persistence import read_rules

    hint = check_hint(args.hint, "the hint")
    max_rules = as_int("--max-rules", args.max_rules, 1, 8)
    env = make_env(args.env)
    vocabulary = vocabulary_of(env, args.vocabulary)
    file = Path(args.output or "rules.yaml")
    if file.exists():
        read_rules(file, vocabulary, "-o")  # what cannot be appended to is known before anybody is asked
    with chosen_inducer(args) as inducer:
        parsed, name = _translated(inducer, hint, vocabulary, random_experience(env, vocabulary, EPISODES), max_rules)
    print(f"{name} reads {hint!r} as")
    for rule in parsed.rules:
        print(f"\n  {rule}")
        print(f"    {in_words(rule, vocabulary)}")
    print()
    if not _agreed(args, file):
        return 0
    _append(file, parsed.rules, vocabulary, args.pin)
    print(f"Written to {file}. Use it: RuleInductionCallback(rules_file={str(file)!r})")
    return 0


def _translated(
    inducer: RuleInducer, hint: str, vocabulary: Vocabulary, seen: Experience, max_rules: int
) -> tuple[ParsedReply, str]:
    """
    :return: a translation with at least one rule, and the model's name
    :raises InductionError: if the call fails, or no reply of ``ATTEMPTS`` has a rule that passes the checks
    """
    from sb3_nser.induction.base import InductionFailure
    from sb3_nser.induction.formalize import as_hint, hint_request
    from sb3_nser.rules.schema import parse_reply

    budget, why = int(getattr(inducer, "prompt_budget", 9_000)), ""
    for number in range(ATTEMPTS):
        request = hint_request(vocabulary, hint, seen, max_rules=max_rules, budget=budget, number=number)
        try:
            reply = inducer.propose(request)
        except InductionFailure as failure:
            raise InductionError(failure.message) from failure
        parsed = as_hint(parse_reply(reply.text, vocabulary, max_rules), hint)
        if parsed.rules:
            return parsed, reply.model
        shown = f"{parsed.error}; it begins {printable(reply.text, 80)!r}" if parsed.error else ""
        why = (shown or "; ".join(parsed.refused) or "it is empty").rstrip(".")
    raise InductionError(
        f"{reply.model} found no rule in {printable(hint, 80)!r} ({ATTEMPTS} replies; of the last, {why}); say it in the "
        "environment's own words; another --seed or a larger model may do better."
    )


def in_words(rule: Rule, vocabulary: Vocabulary) -> str:
    """
    :param rule: a rule
    :param vocabulary: the names it uses
    :return: the same with the features' meanings, for people who do not know the names
    """
    words = re.findall(r"[A-Za-z][\w.]*", str(rule))
    meanings = []
    for feature in (vocabulary[name] for name in dict.fromkeys(words) if name in vocabulary):
        meanings.append(f"{feature.name}: {feature.meaning}{f' [{feature.unit}]' if feature.unit else ''}")
    verb = "is not" if rule.polarity == "avoid" else "is"
    return f"{rule.head} {verb} a good choice where all of this holds ({'; '.join(meanings)})"


def _agreed(args: argparse.Namespace, file: Path) -> bool:
    if args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("Nothing was written: nobody can be asked here. --yes writes without asking.")
        return False
    pinned = ", pinned" if args.pin else ""
    # input() would write its prompt to standard error
    print(f"{'Append to' if file.exists() else 'Write to'} {file}{pinned}? [y/N] ", end="", flush=True)
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().lower() in ("y", "yes"):
        return True
    print("Nothing was written.")
    return False


def _append(file: Path, rules: tuple[Rule, ...], vocabulary: Vocabulary, pin: bool) -> None:
    from sb3_nser.induction.persistence import read_rules, read_text, write_rules
    from sb3_nser.rules import RuleBook

    book = RuleBook(entries=read_rules(file, vocabulary, "-o") if file.exists() else ())
    before = {entry.key: entry.rule.pinned for entry in book.entries}
    said = [rule.model_copy(update={"pinned": True}) for rule in rules] if pin else list(rules)
    for rule in book.propose(said, 0, vocabulary).repeated:
        print(f"The file has it already: {rule}")
    if all(before.get(rule.key) in (True, rule.pinned) for rule in said):
        return
    text = book.to_yaml()
    if not any(rule.key in before for rule in said) and before:
        text = _appended(read_text(file, "-o"), RuleBook(entries=(book[rule.key] for rule in said)), book) or text
    try:
        write_rules(file, text)
    except OSError as error:
        raise ConfigurationError(f"-o {os.fspath(file)!r} cannot be written ({error.strerror or error}).") from None


def _appended(text: str, new: RuleBook, whole: RuleBook) -> str:
    """:return: a file's text with rules added at its end, comments and all; empty if it is written in a way that forbids it"""
    from sb3_nser.rules import RuleBook

    item = re.search(r"^rules:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*([ \t]*)- ", text, re.MULTILINE)
    if item is None:
        return ""
    lines = new.to_yaml().partition("\nrules:\n")[2].splitlines()
    added = text.rstrip("\n") + "\n" + "".join(f"{item.group(1)}{line}\n" for line in lines)
    try:
        return added if {e.key for e in RuleBook.from_yaml(added).entries} == {e.key for e in whole.entries} else ""
    except ConfigurationError:
        return ""
