"""One cell in a process of its own: ``python -m sb3_nser.study.worker CELL.json FOLDER``."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from sb3_nser.errors import NSERError, printable
from sb3_nser.study.cells import Cell
from sb3_nser.study.training import run_cell

PROGRESS = "progress"
ERROR = "error.txt"


def main(arguments: list[str]) -> int:
    """
    :param arguments: a file that holds the cell as JSON, a folder for the result files, and optionally the id of the process
        with which this one ends
    :return: exit status
    """
    cell = Cell.model_validate_json(Path(arguments[0]).read_text(encoding="utf-8"))
    folder = Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(arguments) > 2:
        threading.Thread(target=_end_with, args=(int(arguments[2]),), daemon=True).start()

    def progress(step: int) -> None:
        (folder / PROGRESS).write_text(str(step))

    try:
        files = run_cell(cell, progress)
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
    """A study that is killed leaves no run behind that would go on for hours."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
