"""``sb3-nser demo``: train, show, save."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_nser.errors import ConfigurationError, NSERError

if TYPE_CHECKING:
    from rich.console import Console

    from sb3_nser.demo.report import TaskResult
    from sb3_nser.demo.tasks import DemoTask
    from sb3_nser.induction.session import InductionRound

ENVIRONMENTS = ("CartPole-v1", "MiniGrid-DoorKey-5x5-v0")


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """:param parser: gets the demo's options"""
    parser.add_argument("--out", type=Path, default=Path("nser-demo"), help="folder for the results (default: %(default)s)")
    parser.add_argument(
        "--llm", help="model name (default: one that the server has; qwen2.5-coder:0.5b where there is no server)"
    )
    parser.add_argument("--host", help="Ollama server (default: OLLAMA_HOST, else 127.0.0.1:11434, else the embedded server)")
    parser.add_argument("--env", action="append", choices=ENVIRONMENTS, help="train on this one only (may be repeated)")
    parser.add_argument("--steps", type=int, help="environment steps of each run (default: 50000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs (default: %(default)s)")
    parser.add_argument(
        "--replay-record", type=Path, metavar="FILE", help="reproduce the run of this induction.jsonl, without a model"
    )
    parser.add_argument("--blocking", action="store_true", help="wait for each answer of the model instead of training on")
    parser.add_argument("--no-bar", action="store_true", help="print lines instead of a progress bar")


def run_demo(args: argparse.Namespace) -> int:
    """
    :param args: as ``add_demo_arguments`` defines them
    :return: 0
    :raises NSERError: if a package, a server or a model is missing, or an argument is wrong; before training starts
    """
    try:
        import matplotlib
        import rich
        import tensorboard
    except ImportError as error:
        raise NSERError(f"the demo needs {error.name}: pip install 'sb3-nser[demo,local]'.") from None
    del matplotlib, rich, tensorboard
    from rich.console import Console

    from sb3_nser.demo.model_server import ModelServer
    from sb3_nser.demo.report import draw_curves, print_table
    from sb3_nser.demo.tasks import TASKS

    if args.steps is not None and args.steps < 1_000:
        raise ConfigurationError(f"--steps {args.steps} is too few to learn anything from; use at least 1000.")
    if args.seed < 0:
        raise ConfigurationError(f"--seed {args.seed} must be 0 or more.")
    tasks = [TASKS[name] for name in args.env or ENVIRONMENTS]
    if args.steps is not None:
        tasks = [dataclasses.replace(task, steps=args.steps) for task in tasks]
    _check_record(args.replay_record, args.out, tasks)
    console = Console()
    out: Path = args.out
    started = time.perf_counter()
    if args.replay_record is not None:
        _prepare(out)
        results = [_train(task, args, out, console, {"replay_record": args.replay_record}) for task in tasks]
    else:
        with ModelServer(
            args.llm, args.host, lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True)
        ) as server:
            settings = {"llm": server.model, "host": server.host}
            _prepare(out)  # only now: an earlier run's results are not given up for a model that is not there
            results = [_train(task, args, out, console, settings) for task in tasks]
    draw_curves(results, out / "learning_curve.png")
    print_table(console, results)
    seconds = time.perf_counter() - started
    closing = (
        f"{seconds:.0f} s in all. In {out}/: learning_curve.png, induction.jsonl (every call to the model) and, per "
        "environment, rules.yaml, model.zip and TensorBoard events."
    )
    if args.replay_record is None:
        closing += f"\nThe same run without a model: {_replay_command(args)}"
    console.print(closing, highlight=False, markup=False, soft_wrap=True)
    return 0


def _replay_command(args: argparse.Namespace) -> str:
    """:return: the command that reproduces this run, with every option that changes it"""
    program = sys.argv[0] if Path(sys.argv[0]).name == "sb3-nser" else f"{sys.executable} -m sb3_nser.cli"
    out = Path(args.out)
    parts = [program, "demo", "--replay-record", str(out / "induction.jsonl"), "--out", f"{out}-again"]
    parts += [part for name in args.env or () for part in ("--env", name)]
    parts += ["--steps", str(args.steps)] if args.steps is not None else []
    parts += ["--seed", str(args.seed)] if args.seed else []
    return shlex.join(parts)


def _check_record(record: Path | None, out: Path, tasks: list[DemoTask]) -> None:
    if record is None:
        return
    from sb3_nser.induction import read_record

    for task in tasks:
        read_record(record, task.env_id)
    if record.resolve().parent == out.resolve():
        raise ConfigurationError(f"--replay-record {record} lies in --out {out}, which is emptied first; name another --out.")


def _prepare(out: Path) -> None:
    """Empty the folder of an earlier demo; never touch a folder that holds anything else."""
    marker = out / ".sb3-nser-demo"
    try:
        if out.exists():
            if any(out.iterdir()) and not marker.exists():
                raise ConfigurationError(f"--out {out} holds other files; name an empty or new folder.")
            if marker.exists() and _runs(marker.read_text()):
                raise ConfigurationError(f"another demo is writing into --out {out}; name another folder.")
            shutil.rmtree(out)
        out.mkdir(parents=True)
        marker.write_text(str(os.getpid()))
    except OSError as error:
        reason = error.strerror or error
        raise ConfigurationError(f"--out {out} cannot be used as a folder ({reason}); name another.") from None


def _runs(pid: str) -> bool:
    """:return: True if a process of that number, not this one, is alive"""
    if not pid.isdigit() or int(pid) == os.getpid() or os.name != "posix":
        return False
    try:
        os.kill(int(pid), 0)
    except OSError:
        return False
    return True


def _train(task: DemoTask, args: argparse.Namespace, out: Path, console: Console, settings: dict[str, Any]) -> TaskResult:
    import numpy as np
    import torch as th
    from stable_baselines3 import DQN
    from stable_baselines3.common.monitor import Monitor

    from sb3_nser import NSERReplayBuffer, RuleInductionCallback
    from sb3_nser.demo.report import TaskResult, fingerprint
    from sb3_nser.demo.watch import Screen, Watcher

    th.set_num_threads(1)  # the model server wants the other core
    folder = out / task.env_id
    folder.mkdir()
    console.rule(task.env_id)
    rounds: list[int] = []
    with Screen(console, task.env_id, task.steps, task.score, bar=not args.no_bar) as screen:

        def tell(news: InductionRound) -> None:
            rounds.append(news.step)
            screen.round(news)

        induction = RuleInductionCallback(
            **task.induction,
            **settings,
            record=out / "induction.jsonl",
            run=task.env_id,
            save_rules=folder / "rules.yaml",
            seed=args.seed,
            blocking=args.blocking,
            on_round=tell,
        )
        watcher = Watcher(task.make(), task.eval_every, task.score == "success rate", screen.update)
        model = DQN(
            "MlpPolicy",
            Monitor(task.make()),
            replay_buffer_class=NSERReplayBuffer,
            replay_buffer_kwargs=task.buffer,
            tensorboard_log=str(folder / "tensorboard"),
            seed=args.seed,
            device="cpu",
            **task.model,
        )
        started = time.perf_counter()
        model.learn(task.steps, callback=[induction, watcher])
        seconds = time.perf_counter() - started
        screen.update(task.steps, watcher.curve[-1][1] if watcher.curve else None)
    model.save(folder / "model.zip")
    book, budget, returns = induction.book, induction.budget, watcher.returns
    return TaskResult(
        env_id=task.env_id,
        score_name=task.score,
        curve=watcher.curve,
        rounds=rounds,
        mean_return=float(np.mean(returns[-100:])) if returns else float("nan"),
        episodes=len(returns),
        admitted=len(book.active()),
        pruned=book.counts().get("pruned", 0),
        proposed=len(book),
        calls=budget.calls,
        failures=budget.failures,
        llm_seconds=budget.seconds,
        seconds=seconds,
        waited=induction.session.seconds_waited,
        fingerprint=fingerprint(model),
    )
