"""One cell in a process of its own; by hand: ``python -m sb3_nser.study.worker CELL.json FOLDER``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from sb3_nser.errors import NSERError, printable
from sb3_nser.study.cells import Cell
from sb3_nser.study.training import run_cell

CELL, PROGRESS, ERROR, LOG = "cell.json", "progress", "error.txt", "log.txt"
RECORD = "replayed.jsonl"


def work(folder: str, parent: int | None = None) -> None:
    """
    Body of a process: train the cell that is described in a folder, and put the result files there.

    :param folder: holds ``cell.json`` and perhaps ``replayed.jsonl``, a copy of the cell's record; also gets ``log.txt``
    :param parent: the process with which this one ends, by default whichever has started it
    """
    log = os.open(os.path.join(folder, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study hears it, and ends this process
    threading.Thread(target=_end_with, args=(os.getppid() if parent is None else parent,), daemon=True).start()
    sys.exit(run_files(Path(folder) / CELL, Path(folder)))


def run_files(description: Path, folder: Path) -> int:
    """
    :param description: a file that holds the cell as JSON
    :param folder: gets the result files
    :return: exit status
    """
    cell = Cell.model_validate_json(description.read_text(encoding="utf-8"))

    def progress(step: int) -> None:
        (folder / PROGRESS).write_text(str(step))

    try:
        record = folder / RECORD
        files = run_cell(cell, progress, record if record.is_file() else None)
    except NSERError as error:
        (folder / ERROR).write_text(printable(error, 1000), encoding="utf-8")
        print(f"sb3-nser: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        (folder / ERROR).write_text(f"{type(error).__name__}: {printable(error, 1000)}", encoding="utf-8")
        raise
    for name, contents in files.items():
        with (folder / name).open("wb") as handle:
            handle.write(contents)
            handle.flush()
            os.fsync(handle.fileno())
    return 0


def _end_with(parent: int) -> None:
    """A study that is killed leaves no run behind that would go on for hours: what has started a run takes it along."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m sb3_nser.study.worker CELL.json FOLDER")
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    sys.exit(run_files(Path(sys.argv[1]), Path(sys.argv[2])))
