"""Cells in processes of their own, several at a time; what is finished stays finished."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sb3_nser.errors import ConfigurationError, LLMUnavailableError, NSERError, printable
from sb3_nser.rules import problems
from sb3_nser.rules.files import load_yaml
from sb3_nser.study.cells import Cell
from sb3_nser.study.load import LoadedStudy, grid_json
from sb3_nser.study.replays import HANDWRITTEN, first_question
from sb3_nser.study.training import RESULT, build
from sb3_nser.study.worker import CELL, ERROR, PROGRESS, work
from sb3_nser.vocabulary import Vocabulary

CELLS, FAILED, STUDY, GRID = "cells", "failed", "study.yaml", "grid.json"
_DRAFT = ".draft-"
_POLL = 0.1


@dataclass(frozen=True)
class Outcome:
    """
    What became of a cell.

    :param cell: the run
    :param seconds: wall-clock seconds of its process
    :param error: why there is no result, in a sentence; empty if there is one
    """

    cell: Cell
    seconds: float
    error: str = ""


def check_cells(loaded: LoadedStudy) -> list[str]:
    """
    Build one run of every environment and variant, with a tiny buffer and without training, so that a mistake ends a study
    before it begins. Where a language model is asked, it is looked for.

    :param loaded: the study
    :return: sentences worth reading
    :raises NSERError: the first thing that is wrong
    """
    from sb3_nser.callbacks import RuleInductionCallback
    from sb3_nser.vocabulary import vocabulary_of

    seen: set[tuple[str, str]] = set()
    notes: dict[str, None] = {}
    asked: set[str] = set()
    for cell in loaded.cells:
        if (cell.environment, cell.variant) in seen:
            continue
        seen.add((cell.environment, cell.variant))
        with tempfile.TemporaryDirectory(prefix="sb3-nser-") as place:
            model, callback = build(cell, Path(place), buffer_size=1_000)
            try:
                if isinstance(callback, RuleInductionCallback):
                    vocabulary = vocabulary_of(model.get_env(), cell.env["vocabulary"])
                    if cell.rules:
                        _check_rules(Path(place) / HANDWRITTEN, vocabulary)
                    if callback.budget.max_calls and cell.replay_record is None and callback.inducer.describe() not in asked:
                        worry = callback.inducer.check()
                        asked.add(callback.inducer.describe())
                        if worry:
                            notes[worry] = None
            except LLMUnavailableError as error:
                raise LLMUnavailableError(f"variant {cell.variant}: {error}") from error
            except ConfigurationError as error:
                raise ConfigurationError(f"variant {cell.variant} on {cell.environment}: {error}") from error
            finally:
                model.get_env().close()
        question = first_question(cell)
        if question is not None and question >= cell.steps:
            notes[
                f"variant {cell.variant} on {cell.environment}: its first question comes at step {question} of {cell.steps}, "
                "so it will have no rules; set callback: {first: ..., every: ...}."
            ] = None
        notes.update(dict.fromkeys(_small_notes(cell)))
    return list(notes)


def _check_rules(file: Path, vocabulary: Vocabulary) -> None:
    for entry in load_yaml(file.read_text(encoding="utf-8")):
        wrong = problems(entry.rule, vocabulary)
        if wrong:
            raise ConfigurationError(f"rule '{entry.rule}': {' '.join(wrong)}")


def _small_notes(cell: Cell) -> list[str]:
    starts = cell.algorithm["hyperparameters"].get("learning_starts", 100)
    if isinstance(starts, int) and starts >= cell.steps:
        return [f"{cell.environment}: learning_starts={starts} is not below steps={cell.steps}, so nothing is learnt."]
    return []


class Results:
    """
    The folder of a study: ``cells/KEY/`` of each finished run, ``failed/KEY/`` of each that ended otherwise.

    :param folder: made if it is missing
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, loaded: LoadedStudy) -> FileLock:
        """
        :param loaded: the study whose file is put there
        :return: a lock, held until it is released or the process ends
        :raises ConfigurationError: if the folder cannot be used, belongs to something else, or another study writes there
        """
        folder = self.folder
        try:
            if folder.is_dir() and not (folder / STUDY).is_file() and any(not _begun(path) for path in folder.iterdir()):
                raise ConfigurationError(f"--out {folder} holds other files; name an empty or new folder, or that of a study.")
            (folder / CELLS).mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / ".lock")
            lock.acquire(timeout=0)
            for draft in folder.glob(f"{_DRAFT}*"):
                shutil.rmtree(draft, ignore_errors=True)
            _replace_text(folder / GRID, grid_json(loaded))
            _replace_text(folder / STUDY, loaded.text)
        except Timeout:
            raise ConfigurationError(f"another 'sb3-nser compare' is writing into --out {folder}; wait for it.") from None
        except OSError as error:
            raise ConfigurationError(
                f"--out {folder} cannot be used ({error.strerror or error}); name another folder."
            ) from None
        return lock

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """:return: the result of a cell, None if there is none or its file is damaged"""
        try:
            result = json.loads((self.folder / CELLS / cell.key / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        whole = isinstance(result, dict) and result.get("key") == cell.key and bool(result.get("evaluations"))
        return result if whole else None

    def finished(self, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
        """:return: key -> result of every finished cell"""
        read = ((cell.key, self.read(cell)) for cell in cells)
        return {key: result for key, result in read if result is not None}

    def failures(self, cells: Sequence[Cell]) -> dict[str, str]:
        """:return: key -> error of every cell that has failed and has no result"""
        found = {}
        for cell in cells:
            path = self.folder / FAILED / cell.key / ERROR
            if path.is_file() and self.read(cell) is None:
                found[cell.key] = printable(path.read_text(encoding="utf-8", errors="replace"), 300)
        return found

    def draft(self, cell: Cell) -> Path:
        """:return: a new folder in which a run works"""
        path = self.folder / f"{_DRAFT}{cell.key}-{os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def keep(self, cell: Cell, draft: Path, where: str) -> None:
        """Put a draft in its place at once: a reader sees all of it or nothing."""
        target = self.folder / where / cell.key
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        (draft / PROGRESS).unlink(missing_ok=True)
        draft.rename(target)
        if where == CELLS:
            shutil.rmtree(self.folder / FAILED / cell.key, ignore_errors=True)

    def settle(self, cell: Cell, draft: Path, status: int) -> str:
        """
        Put the draft of a run that is over where it belongs.

        :param cell: the run
        :param draft: its folder
        :param status: of its process, as ``multiprocessing`` and ``subprocess`` have it
        :return: why there is no result, in a sentence; empty if there is one
        """
        if status == 0 and (draft / RESULT).is_file():
            self.keep(cell, draft, CELLS)
            return ""
        error = _why(draft, status)
        if draft.is_dir():
            (draft / ERROR).write_text(error, encoding="utf-8")
            self.keep(cell, draft, FAILED)
        return error


def _why(draft: Path, status: int) -> str:
    if not draft.is_dir():
        return "its folder was removed while it ran"
    if (draft / ERROR).is_file():
        return (draft / ERROR).read_text(encoding="utf-8")
    if status < 0:
        return f"its process was ended by signal {-status} (9 is often too little memory)"
    return f"its process ended with status {status}; see log.txt"


class _Run:
    """One process that trains one cell."""

    def __init__(self, cell: Cell, results: Results, context: Any) -> None:
        self.cell, self._results = cell, results
        self.draft = results.draft(cell)
        (self.draft / CELL).write_text(cell.model_dump_json(), encoding="utf-8")
        self._process = context.Process(target=work, args=(str(self.draft),), name=cell.key)
        self._process.start()
        self._started = time.perf_counter()

    def step(self) -> int:
        """:return: environment steps done so far"""
        try:
            return int((self.draft / PROGRESS).read_text())
        except (OSError, ValueError):
            return 0

    def over(self) -> Outcome | None:
        """:return: the outcome once the process has ended"""
        status = self._process.exitcode
        if status is None:
            return None
        seconds = time.perf_counter() - self._started
        return Outcome(self.cell, seconds, self._results.settle(self.cell, self.draft, status))

    def stop(self) -> None:
        """End the process; nothing of the run is kept."""
        self._process.kill()
        self._process.join()
        shutil.rmtree(self.draft, ignore_errors=True)


def run_cells(
    cells: Sequence[Cell], results: Results, jobs: int, tell: Callable[[Outcome], None], progress: Callable[[int], None]
) -> list[Outcome]:
    """
    Run cells that have no result yet.

    :param cells: what to run, in this order
    :param results: where results go; its lock must be held
    :param jobs: processes at a time, at least 1
    :param tell: called when a cell is over
    :param progress: called with the environment steps that the cells of this call have done so far
    :return: what became of each
    """
    waiting = list(cells)
    running: list[_Run] = []
    outcomes: list[Outcome] = []
    done = 0
    context = _context()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                try:
                    running.append(_Run(cell, results, context))
                except OSError as error:  # no space, no process
                    raise NSERError(f"run {cell.key} cannot be started: {error.strerror or error}.") from error
            time.sleep(_POLL)
            for run in list(running):
                outcome = run.over()
                if outcome is not None:
                    running.remove(run)
                    outcomes.append(outcome)
                    done += run.cell.steps
                    tell(outcome)
            progress(done + sum(run.step() for run in running))
    finally:
        for run in running:
            run.stop()
    return outcomes


def _context() -> Any:
    """Processes that are forked off one that has imported everything and done nothing yet; torch takes seconds to import."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come: one core each
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["sb3_nser.study.worker"])
    return context


def _begun(path: Path) -> bool:
    """True for what ``Results.open`` leaves if it is killed before it has written the study file."""
    return path.name == ".lock" or path.name.startswith(GRID) or (path.name == CELLS and not any(path.iterdir()))


def _replace_text(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
