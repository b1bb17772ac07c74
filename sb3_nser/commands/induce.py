"""``sb3-nser induce``: rules from a saved replay buffer, by the path that training takes."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sb3_nser.arguments import as_int, as_number
from sb3_nser.commands.model import MODELS, add_model_arguments, chosen_inducer
from sb3_nser.errors import ConfigurationError, InductionError, NSERWarning, printable

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_nser.commands import Subcommands
    from sb3_nser.induction.session import InductionRound
    from sb3_nser.induction.settings import SessionSettings
    from sb3_nser.rules import RuleBook


def add_induce(commands: Subcommands) -> None:
    """:param commands: gets ``induce``"""
    parser = commands.add_parser(
        "induce",
        help="ask a model (or decision trees) for rules about a saved replay buffer, and judge them on it",
        description="The buffer is what model.save_replay_buffer(...) wrote, SB3's own or NSERReplayBuffer. A pickle is a "
        "program: loading one runs what is in it, so name only files that you trust.",
    )
    parser.add_argument("--buffer", required=True, metavar="FILE", help="pickle written by model.save_replay_buffer(...)")
    parser.add_argument(
        "--env", required=True, metavar="ID", help="Gymnasium id, or module:ID for one that a module registers"
    )
    parser.add_argument("--vocabulary", default="auto", metavar="NAME", help="a registered vocabulary (default: by the id)")
    add_model_arguments(parser, (*MODELS, "tree", "random"))
    parser.add_argument(
        "--calls", default="3", metavar="N", help="questions to the model; 0 only judges --rules-file (default 3)"
    )
    parser.add_argument("--rules-per-call", default="4", metavar="N", help="rules asked for at once, 1 to 8 (default 4)")
    parser.add_argument("--no-repair", action="store_true", help="judge rules as proposed, without repairing near misses")
    parser.add_argument(
        "--hints", action="append", default=[], metavar="TEXT", help="your advice, one sentence each; repeatable"
    )
    parser.add_argument("--rules-file", metavar="FILE", help="rules to begin with, judged on the buffer too")
    parser.add_argument(
        "--gamma", default="0.99", metavar="G", help="discount of the returns; give the model's (default 0.99)"
    )
    parser.add_argument(
        "--max-transitions", default="20000", metavar="N", help="newest transitions to look at (default 20000)"
    )
    parser.add_argument("--record", metavar="FILE", help="append every call to this JSONL file")
    parser.add_argument(
        "-o", "--output", default="rules.yaml", metavar="FILE", help="rules file to write (default rules.yaml)"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(run=run_induce)


def run_induce(args: argparse.Namespace) -> int:
    """
    :return: 0
    :raises NSERError: in one sentence, for whatever goes wrong
    """
    import torch as th

    from sb3_nser.commands.environment import import_for
    from sb3_nser.induction import RecordWriter
    from sb3_nser.induction.offline import induce
    from sb3_nser.induction.persistence import load_rules
    from sb3_nser.induction.saved import episodes_of, load_buffer
    from sb3_nser.rules import RuleBook
    from sb3_nser.rules.table import table
    from sb3_nser.vocabulary import vocabulary_for

    calls = as_int("--calls", args.calls, 0)
    settings = _settings(args)
    gamma = as_number("--gamma", args.gamma, 0.0, 1.0)
    if not calls and not args.rules_file:
        raise ConfigurationError("--calls 0 asks nobody, so there are no rules: give --rules-file with rules to judge.")
    out = _output(args)
    th.set_num_threads(1)  # the model server wants the other cores
    import_for(args.env)
    buffer = load_buffer(args.buffer)
    vocabulary = vocabulary_for(buffer.observation_space, buffer.action_space, args.env, args.vocabulary)
    book = RuleBook()
    if args.rules_file:
        load_rules(args.rules_file, book, vocabulary, argument="--rules-file")
    _describe(buffer, args)
    print(f"Vocabulary: {vocabulary.name}, {len(vocabulary.features)} features, {len(vocabulary.actions.names)} actions")
    failures: list[str] = []

    def tell(news: InductionRound) -> None:
        if news.failure:
            failures.append(news.failure)
            print(f"call failed: {news.failure}", file=sys.stderr)
            return
        print(f"\n{news.seconds:.0f} s, proposed:{'' if news.verdicts else ' nothing'}")
        for rule, verdict in news.verdicts.items():
            print(f"  {rule}\n      {verdict}")
        _write(out, book)  # what was found stays, even if the rest is interrupted

    with chosen_inducer(args) if calls else nullcontext(None) as inducer:
        writer = RecordWriter(args.record, args.env) if args.record and inducer is not None else None
        with _plain_warnings():
            induce(
                episodes_of(buffer), vocabulary, inducer, calls=calls, gamma=gamma, settings=settings, book=book,
                step=buffer.size() * buffer.n_envs, writer=writer, tell=tell,
            )  # fmt: skip
    if calls and len(failures) and not len(book):
        raise InductionError(f"no call brought a rule; the last one: {failures[-1]}")
    _write(out, book)
    print("\n" + "\n".join(table(book.ranked())))
    print(f"\n{len(book)} {'rule' if len(book) == 1 else 'rules'} judged, {len(book.active())} admitted. Written to {out}.")
    return 0


def _settings(args: argparse.Namespace) -> SessionSettings:
    from sb3_nser.induction.formalize import check_hint
    from sb3_nser.induction.settings import SessionSettings

    return SessionSettings(
        rules_per_call=as_int("--rules-per-call", args.rules_per_call, 1, 8),
        hints=tuple(check_hint(hint, "--hints") for hint in args.hints),
        prompt_forms=(),
        max_transitions=as_int("--max-transitions", args.max_transitions, 100),
        seed=as_int("--seed", args.seed, 0),
        strict=False,
        repair_beam=0 if args.no_repair else 4,
    )


def _output(args: argparse.Namespace) -> Path:
    """:return: where to write; found out before a model is asked"""
    out = Path(args.output)
    if out.is_dir():
        raise ConfigurationError(f"-o {args.output} is a folder; name a file in it.")
    mine = args.rules_file is not None and out.exists() and out.resolve() == Path(args.rules_file).resolve()
    if out.exists() and not args.force and not mine:
        raise ConfigurationError(f"-o {args.output} exists; name another file, or replace it with --force.")
    return out


def _describe(buffer: ReplayBuffer, args: argparse.Namespace) -> None:
    import gymnasium as gym

    kind, count = type(buffer).__name__, buffer.size() * buffer.n_envs
    print(f"{args.buffer}: {kind} with {count} transitions of {buffer.n_envs} environment{'s' * (buffer.n_envs > 1)}")
    if not buffer.handle_timeout_termination:
        print("It does not tell time limits from real ends (handle_timeout_termination=False): both count as ends.")
    try:
        gym.spec(args.env.rpartition(":")[2])
    except gym.error.Error as error:
        reason = printable(error, 200)
        print(f"note: --env {args.env} is not registered here ({reason}); it only chooses the vocabulary.", file=sys.stderr)


def _write(out: Path, book: RuleBook) -> None:
    from sb3_nser.induction.persistence import write_rules

    try:
        write_rules(out, book.to_yaml())
    except OSError as error:
        raise ConfigurationError(f"-o {str(out)!r} cannot be written ({error.strerror or error}).") from None


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Our warnings as lines for people, without a place in a script; failures are told by themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", NSERWarning)

        def show(message: Warning | str, *rest: object, **more: object) -> None:
            text = str(message)
            if "Training goes on" not in text and "not asked again" not in text:
                print(f"note: {text}", file=sys.stderr)

        warnings.showwarning = show
        yield
