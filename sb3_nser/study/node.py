"""What a node of a Ray cluster does for one cell.

It is sent to the node as it stands here, and imports nothing but the standard library: a node without this package, or with
another version of it, must be able to say so.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_OURS, _REFUSED, _PROGRESS = 77, "refused.txt", "progress"
_TOLD = 1.0
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has one
_OUTSIDE = (-_KILL, -signal.SIGTERM)
# the process of a run: sent along too, since what a node has installed may be older than this file
_PROCESS = f"""
import os, pathlib, sys
version, folder, parent = sys.argv[1:]
def refuse(what):
    (pathlib.Path(folder) / {_REFUSED!r}).write_text(what, encoding="utf-8")
    os._exit({_OURS})
try:
    import sb3_nser
except ImportError as error:
    refuse(f"cannot import sb3_nser ({{error}})")
if sb3_nser.__version__ != version:
    refuse("has sb3-nser " + sb3_nser.__version__)
from sb3_nser.study.worker import work
work(folder, int(parent))
"""


class Meter:
    """An actor that knows how far each run is. Nothing depends on it: without it the bar stands still until a run ends."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def tell(self, key: str, step: int) -> None:
        """:param step: environment steps that the run has done"""
        self._steps[key] = step

    def read(self) -> dict[str, int]:
        """:return: environment steps of each run"""
        return self._steps


def run_on_node(version: str, key: str, cell: str, record: bytes | None, meter: Any) -> dict[str, Any]:
    """
    Train one cell in a process of its own, as on one machine: one thread, and its log in a file.

    :param version: of this package, which the node must have
    :param key: of the cell
    :param cell: as JSON
    :param record: contents of the record that it answers from
    :param meter: handle of a ``Meter``
    :return: ``node``, ``seconds``, ``status`` of the process and its ``files``; or ``node`` and ``refused``, why it cannot run
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sb3-nser-") as place:
        folder = Path(place)
        (folder / "cell.json").write_text(cell, encoding="utf-8")
        copy = folder / "replayed.jsonl"
        if record is not None:
            copy.write_bytes(record)
        process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS, version, place, str(os.getpid())], env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            status = _follow(process, folder, key, meter)
        finally:
            process.kill()
            process.wait()
        copy.unlink(missing_ok=True)
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    if status in _OUTSIDE:
        # somebody ends the processes of this node, or its memory is full: to Ray this is a lost worker, and it tries again
        os.kill(os.getpid(), _KILL)
    if status == _OURS and _REFUSED in files:
        return {"node": socket.gethostname(), "refused": files[_REFUSED].decode("utf-8", "replace")}
    files.pop(_PROGRESS, None)
    return {"node": socket.gethostname(), "seconds": time.perf_counter() - started, "status": status, "files": files}


def _follow(process: subprocess.Popen[bytes], folder: Path, key: str, meter: Any) -> int:
    told = -1
    while True:
        try:
            return process.wait(_TOLD)
        except subprocess.TimeoutExpired:
            pass
        try:
            step = int((folder / _PROGRESS).read_text())
            if step != told:
                meter.tell.remote(key, step)
                told = step
        except Exception:  # not written yet, or nobody listens: no reason to lose a run
            continue
