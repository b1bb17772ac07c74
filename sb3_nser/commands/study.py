"""``sb3-nser compare study.yaml`` and ``sb3-nser report RUN_DIR``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_nser.arguments import as_int, require_extra
from sb3_nser.errors import ConfigurationError

if TYPE_CHECKING:
    from sb3_nser.commands import Subcommands
    from sb3_nser.study.analysis import Analysis
    from sb3_nser.study.cells import Cell
    from sb3_nser.study.load import LoadedStudy
    from sb3_nser.study.runner import Outcome, Results

_PACKAGES = ("scipy", "pandas", "pyarrow", "matplotlib", "jinja2", "filelock", "rich")


def add_study(commands: Subcommands) -> None:
    """:param commands: gets ``compare`` and ``report``"""
    compare = commands.add_parser(
        "compare",
        help="run a study: replay variants side by side with paired seeds, intervals, verdicts and a report",
        description="Runs every cell (environment, variant, seed) of a study file in a process of its own. Started again, it "
        "goes on where it was stopped or killed. Exit status 1 if a run failed. Extras: study; ray for --ray.",
    )
    compare.add_argument("study", help="study file (YAML)")
    compare.add_argument("--out", metavar="DIR", help="folder for results (default: nser-studies/NAME)")
    compare.add_argument(
        "--jobs", metavar="N", help="runs at a time, one core each (default 1; with --ray all that find a core)"
    )
    compare.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT; results come to this machine (extra: ray)",
    )
    compare.add_argument("--check", action="store_true", help="only check the file and build each variant once")
    compare.set_defaults(run=run_compare)
    report = commands.add_parser(
        "report",
        help="one HTML page for a study's folder or for the folder of a training run",
        description="DIR is what 'sb3-nser compare' wrote, or a training run: TensorBoard events or SB3's progress.csv, and "
        "what RuleInductionCallback writes (save_rules, record). Extra: study.",
    )
    report.add_argument("dir", metavar="DIR")
    report.set_defaults(run=run_report)


def run_compare(args: argparse.Namespace) -> int:
    """:return: 0 if every run is finished, else 1"""
    _require()
    jobs = None if args.jobs is None else as_int("--jobs", args.jobs, 1, 1024)
    if args.ray is not None:
        require_extra("ray", "ray", "ray", "--ray")
    from sb3_nser.study.load import load_study
    from sb3_nser.study.runner import Results, check_cells

    loaded = load_study(args.study)
    for note in check_cells(loaded):
        print(f"note: {note}", file=sys.stderr)
    cells = len(loaded.cells)
    print(
        f"{loaded.study.name}: {len(loaded.study.environments)} environments x {len(loaded.variants)} variants x "
        f"{len(loaded.study.seeds)} seeds = {cells} runs, {sum(cell.steps for cell in loaded.cells):,} environment steps"
    )
    if args.check:
        print("The file is sound: every variant can be built on every environment.")
        return 0
    results = Results(Path(args.out) if args.out else Path("nser-studies") / loaded.study.name)
    lock = results.open(loaded)
    try:
        return _run(loaded, results, jobs, args.ray)
    except OSError as error:  # a full disk, a folder that was taken away
        raise ConfigurationError(
            f"--out {results.folder} can no longer be written to ({error.strerror or error}); the same command goes on."
        ) from None
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on where this one was ({results.folder})", file=sys.stderr)
        return 130
    finally:
        lock.release()


def run_report(args: argparse.Namespace) -> int:
    """:return: 0"""
    _require()
    folder = Path(args.dir)
    if not folder.is_dir():
        raise ConfigurationError(f"{args.dir} is no folder; name that of a study or of a training run.")
    from sb3_nser.study.runner import CELLS, GRID, STUDY

    if (folder / STUDY).is_file() and (folder / CELLS).is_dir():
        from sb3_nser.study.load import load_grid
        from sb3_nser.study.output import write_study
        from sb3_nser.study.runner import Results

        loaded = load_grid(folder / STUDY, folder / GRID)
        _print_verdicts(write_study(loaded, Results(folder)))
        print(f"report: {folder / 'report.html'}")
        return 0
    from sb3_nser.study.run_page import write_run

    for line in write_run(folder):
        print(line)
    return 0


def _run(loaded: LoadedStudy, results: Results, jobs: int | None, ray: str | None) -> int:
    from sb3_nser.study.output import write_study

    finished = results.finished(loaded.cells)
    waiting = [cell for cell in loaded.cells if cell.key not in finished]
    if finished:
        print(f"{len(finished)} of {len(loaded.cells)} runs are there already and are not repeated")
    outcomes = _run_waiting(waiting, results, jobs, ray)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        cell = outcome.cell
        print(f"failed: {cell.environment}, {cell.variant}, seed {cell.seed}: {outcome.error}", file=sys.stderr)
    if failed:
        where = results.folder / "failed"
        print(
            f"{len(failed)} of {len(loaded.cells)} runs failed; logs in {where}; the same command tries them again",
            file=sys.stderr,
        )
    if len(failed) < len(loaded.cells):
        _print_verdicts(write_study(loaded, results))
        print(f"report: {results.folder / 'report.html'}")
    return 1 if failed else 0


def _run_waiting(waiting: list[Cell], results: Results, jobs: int | None, ray: str | None) -> list[Outcome]:
    bar = _Bar(sum(cell.steps for cell in waiting), len(waiting))
    if ray is None or not waiting:
        from sb3_nser.study.runner import run_cells

        with bar:
            return run_cells(waiting, results, jobs or 1, bar.tell, bar.progress)
    from sb3_nser.study.cluster import Cluster

    with Cluster(ray, lambda sentence: print(f"note: {sentence}", file=sys.stderr)) as cluster:
        print(f"Ray cluster at {ray}: {cluster.size()}", flush=True)
        with bar:
            return cluster.run_cells(waiting, results, jobs, bar.tell, bar.progress)


def _print_verdicts(analysis: Analysis) -> None:
    compared = analysis.comparisons[analysis.comparisons["metric"] == "auc"]
    few = compared["verdict"].str.startswith("too few")
    if few.any():
        print(f"{compared[few]['verdict'].iloc[0]}: no verdict on {few.sum()} of {len(compared)} comparisons of the area")
    for _, row in compared[~few].iterrows():
        print(f"{row['group']}: {row['variant']} against {row['against']}: {row['verdict']}")
    for target in analysis.targets:
        print(f"target {target['name']}: {'met' if target['met'] else 'not met'} ({target['value']}, limit {target['limit']})")


class _Bar:
    """A bar where there is a terminal, a line per run where there is none."""

    def __init__(self, steps: int, cells: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(soft_wrap=True)
        self._cells, self._done, self._started = cells, 0, time.perf_counter()
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()]
        self._progress = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=self._console)
        self._task = self._progress.add_task(self._words(), total=steps)

    def __enter__(self) -> _Bar:
        if self._console.is_terminal and self._cells:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def progress(self, steps: int) -> None:
        """:param steps: environment steps done"""
        self._progress.update(self._task, completed=steps)

    def tell(self, outcome: Outcome) -> None:
        """:param outcome: of a run that is over"""
        self._done += 1
        self._progress.update(self._task, description=self._words())
        cell = outcome.cell
        words = f"failed: {outcome.error}" if outcome.error else f"{outcome.seconds:.0f} s"
        line = f"{self._done}/{self._cells}  {cell.environment}, {cell.variant}, seed {cell.seed}: {words}"
        self._console.print(line, highlight=False, markup=False)

    def _words(self) -> str:
        return f"{self._done} of {self._cells} runs"


def _require() -> None:
    for package in _PACKAGES:
        require_extra(package, package, "study", "this command")
    os.environ.setdefault("MPLBACKEND", "Agg")
