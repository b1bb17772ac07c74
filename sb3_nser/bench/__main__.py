"""The command line of the benchmarks; heavy imports wait until one runs."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sb3_nser.errors import NSERError

if TYPE_CHECKING:
    from sb3_nser.bench.report import Report

PROGRAM = "python -m sb3_nser.bench"
LEAST_ROWS = 1000
TRAINED = ("DQN", "QRDQN", "SAC")
EMBEDDED_MODELS = ("qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b")


@dataclass(frozen=True)
class Benchmark:
    """
    One subcommand.

    :param name: what it is called
    :param help: one line for ``--help``
    :param add_arguments: adds its own arguments; ``--json`` and ``--quick`` are there already
    :param run: measures
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Report]


def _whole_number(low: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low:
            raise argparse.ArgumentTypeError(f"it must be a whole number of at least {low}, not {text!r}")
        return number

    return convert


def _writable_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; give a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder of {text!r} does not exist; create it first")
    return path


def _program(text: str) -> Path:
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no program that can be run")
    return Path(found).absolute()


def _add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows",
        type=_whole_number(LEAST_ROWS),
        nargs="+",
        help=f"sizes of the full buffers to measure, at least {LEAST_ROWS} each (default: 1000000 10000; quick: 10000)",
    )
    parser.add_argument(
        "--repeats",
        type=_whole_number(1),
        help="rounds per operation; more makes medians steadier and takes longer (default: 600; quick: 12)",
    )
    parser.add_argument(
        "--peers-python",
        type=_program,
        metavar="PYTHON",
        help="interpreter that has the peers (cpprb, torchrl, tianshou); those it lacks are reported as not measured "
        "(default: this one)",
    )


def _run_replay(args: argparse.Namespace) -> Report:
    from sb3_nser.bench.replay import measure

    rows = args.rows or ([10_000] if args.quick else [1_000_000, 10_000])
    repeats = args.repeats or (12 if args.quick else 600)
    words = ["replay", "--rows", *map(str, rows), "--repeats", str(repeats)]
    if args.peers_python is not None:
        words += ["--peers-python", "PYTHON"]
    command = _command(words, args.json)
    python = None if args.peers_python is None else str(args.peers_python)
    return measure(list(dict.fromkeys(rows)), repeats, command, python)


def _add_training_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--algorithms",
        choices=TRAINED,
        nargs="+",
        default=list(TRAINED),
        help="which to measure (default: all)",
    )
    parser.add_argument(
        "--repeats",
        type=_whole_number(1),
        help="turns per run; more makes medians steadier and takes longer (default: 40; quick: 1)",
    )


def _run_training(args: argparse.Namespace) -> Report:
    from sb3_nser.bench.training import measure

    repeats = args.repeats or (1 if args.quick else 40)
    words = ["training", "--algorithms", *args.algorithms, "--repeats", str(repeats)]
    return measure(list(dict.fromkeys(args.algorithms)), repeats, _command(words, args.json))


def _add_rules_arguments(parser: argparse.ArgumentParser) -> None:
    from sb3_nser.bench.rule_problems import PROBLEMS

    parser.add_argument("--env", nargs="+", choices=list(PROBLEMS), metavar="ID",
                        help=f"environments: {', '.join(PROBLEMS)} (default: all; quick: the first)")  # fmt: skip
    parser.add_argument(
        "--steps", type=_whole_number(LEAST_ROWS), help="environment steps per run (default: 20000; quick: 5000)"
    )
    parser.add_argument("--seeds", type=_whole_number(1), help="runs per environment (default: 5; quick: 1)")
    parser.add_argument("--details", action="store_true", help="list every rule of every run with its lift and interval")


def _run_rules(args: argparse.Namespace) -> Report:
    from sb3_nser.bench.rule_problems import PROBLEMS
    from sb3_nser.bench.rules import measure

    names = list(dict.fromkeys(args.env or (list(PROBLEMS)[:1] if args.quick else PROBLEMS)))
    steps = args.steps or (5_000 if args.quick else 20_000)
    seeds = args.seeds or (1 if args.quick else 5)
    words = ["rules", "--steps", str(steps), "--seeds", str(seeds)]
    if len(names) < len(PROBLEMS):
        words += ["--env", *names]
    return measure(names, steps, seeds, _command(words, args.json), args.details)


def _add_induction_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        action="append",
        metavar="M",
        help="a model to ask, as `ollama list` shows it; repeatable (default, without --inducer: the embedded ones)",
    )
    parser.add_argument(
        "--inducer",
        choices=("tree", "random"),
        action="append",
        help="an inducer without a model; repeatable (default, without --model: both); random is measured beside every model",
    )
    parser.add_argument(
        "--calls",
        type=_whole_number(1),
        help="independent questions per problem; more find more and cost time in proportion (default: 4; quick: 1)",
    )
    parser.add_argument(
        "--half",
        choices=("development", "report", "both"),
        default="both",
        help="which problems: those that prompts may be improved by, those that are reported, or both (default)",
    )
    parser.add_argument(
        "--host", help="the model server (default: OLLAMA_HOST, else 127.0.0.1:11434; if nothing answers, the embedded one)"
    )
    parser.add_argument(
        "--record",
        type=_writable_file,
        metavar="FILE",
        help="JSONL file to which answers are appended; those it holds already are not asked for again",
    )


def _run_induction(args: argparse.Namespace) -> Report:
    from sb3_nser.bench.induction import default_problems, measure

    both = not args.model and not args.inducer
    models = list(dict.fromkeys(args.model or (EMBEDDED_MODELS if both else ())))
    inducers = list(dict.fromkeys(args.inducer or (("tree", "random") if both else ())))
    calls = args.calls or (1 if args.quick else 4)
    words = ["induction", *(word for model in models for word in ("--model", model))]
    words += [word for inducer in inducers for word in ("--inducer", inducer)]
    words += ["--calls", str(calls), *(["--half", args.half] if args.half != "both" else []), *(["--quick"] * args.quick)]
    return measure(
        models,
        inducers,
        calls=calls,
        problems=default_problems(args.half, args.quick),
        command=_command(words, args.json),
        host=args.host,
        record=args.record,
    )


def _command(words: Sequence[str], json_file: Path | None) -> str:
    return " ".join([PROGRAM, *words, *([] if json_file is None else ["--json", json_file.name])])


BENCHMARKS = (
    Benchmark(
        "replay",
        "the replay buffer's own work, against SB3's ReplayBuffer and the prioritised buffers of other packages",
        _add_replay_arguments,
        _run_replay,
    ),
    Benchmark("training", "whole training runs, against uniform replay", _add_training_arguments, _run_training),
    Benchmark(
        "rules",
        "whether the evidence admits right rules and keeps wrong ones out, on hand-written rules of six environments",
        _add_rules_arguments,
        _run_rules,
    ),
    Benchmark(
        "induction",
        "how good proposed rules are, and what pooling, repair and fitting make of them, on recorded problems",
        _add_induction_arguments,
        _run_induction,
    ),
)


def build_parser() -> argparse.ArgumentParser:
    """:return: the parser of all benchmarks"""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Benchmarks of sb3-nser.")
    names = parser.add_subparsers(dest="name", required=True, metavar="BENCHMARK")
    for benchmark in BENCHMARKS:
        one = names.add_parser(benchmark.name, help=benchmark.help, description=f"Measures {benchmark.help}.")
        benchmark.add_arguments(one)
        one.add_argument("--json", type=_writable_file, metavar="FILE", help="write all results there as well")
        one.add_argument("--quick", action="store_true", help="seconds instead of minutes; shows that it runs, not how fast")
        one.set_defaults(run=benchmark.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: arguments, default those of the process
    :return: exit status: 0 measured (whether or not targets are met), 1 our own error or a file that cannot be written
        (one sentence on standard error), 2 wrong arguments, 130 interrupted
    """
    args = build_parser().parse_args(argv)
    try:
        report: Report = args.run(args)
        print(report.as_text())
        if args.json is not None:
            args.json.write_text(report.as_json(), encoding="utf-8")
    except (NSERError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
