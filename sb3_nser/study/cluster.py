"""Cells as tasks of a Ray cluster. Ray queues them, places them, and runs again what a lost node was doing."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sb3_nser import __version__
from sb3_nser.arguments import require_extra
from sb3_nser.errors import ConfigurationError, NSERError, printable
from sb3_nser.study import node
from sb3_nser.study.cells import Cell
from sb3_nser.study.runner import Outcome, Results
from sb3_nser.study.worker import CELL, ERROR, LOG

RETRIES = 5
"""Times that a run is begun again because its process or its node was lost."""
_ADDRESS = re.compile(r"(?:ray://)?(\[[^\]\s]+\]|[^\s/:\[\]]+):(\d{1,5})")
_CURE = "start one with 'ray start --head' and name it as --ray auto on that machine, as --ray ray://HOST:10001 on another."
_REACH, _CONNECT, _POLL, _LOOK, _STOP = 5.0, 60.0, 0.3, 2.0, 5.0
_PROBE = "import logging, sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)"


class Cluster:
    """
    A connection to a Ray cluster, to be used in a ``with`` statement.

    :param address: ``auto`` (the cluster that this machine is part of, or ``RAY_ADDRESS``), ``HOST:PORT`` of a head from a
        machine of its cluster, or ``ray://HOST:PORT`` from any machine
    :param note: called with a sentence when a node is lost or joins
    :raises ConfigurationError: if Ray is not installed, or the address is none
    """

    def __init__(self, address: str, note: Callable[[str], None] = lambda sentence: None) -> None:
        require_extra("ray", "ray", "ray", "--ray")
        self._address, self._note = address, note
        self._host = _ADDRESS.fullmatch(address)
        if address != "auto" and self._host is None:
            raise ConfigurationError(
                f"--ray {printable(address, 80)} must be auto, HOST:PORT or ray://HOST:PORT; for one machine use --jobs."
            )
        self._ray: Any = None
        self._nodes: dict[str, str] = {}
        self._next_look = 0.0
        self._records: dict[str, Any] = {}

    def __enter__(self) -> Cluster:
        """:raises NSERError: if no cluster answers there"""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a study tells nobody of itself
        # when the connection is lost, Ray would start a cluster of its own on this machine, for the next call that needs one
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
        self._look()
        import ray

        try:
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreachable(printable(error, 200)) from error
        self._ray = ray
        # Ray prints a page about each node that is lost, whatever log_to_driver says; at worst it still does
        self._ray._private.worker._worker_logs_enabled = False
        self._nodes = self._alive()
        self._ray.cloudpickle.register_pickle_by_value(node)
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def size(self) -> str:
        """:return: nodes and cores, in words"""
        nodes, cores = len(self._nodes), int(self._ray.cluster_resources().get("CPU", 0))
        wait = "" if cores else "; runs wait until a node with a core joins"
        return f"{nodes} {'node' if nodes == 1 else 'nodes'}, {cores} {'core' if cores == 1 else 'cores'}{wait}"

    def run_cells(
        self,
        cells: Sequence[Cell],
        results: Results,
        jobs: int | None,
        tell: Callable[[Outcome], None],
        progress: Callable[[int], None],
    ) -> list[Outcome]:
        """
        Run cells that have no result yet. The files of each are here as soon as it is over.

        :param cells: what to run
        :param results: where results go; its lock must be held
        :param jobs: runs that are handed to the cluster at a time, None for all
        :param tell: called when a cell is over
        :param progress: called with the environment steps that the cells of this call have done so far
        :return: what became of each
        :raises NSERError: if a node cannot run cells, or the cluster goes away; finished cells are kept
        """
        waiting, running, outcomes, done = list(cells), dict[Any, Cell](), list[Outcome](), 0
        limit = len(waiting) if jobs is None else jobs
        try:
            task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(node.run_on_node)
            meter = self._ray.remote(num_cpus=0, max_restarts=-1)(node.Meter).remote()
            steps = self._steps(meter)
            while waiting or running:
                while waiting and len(running) < limit:
                    cell = waiting.pop(0)
                    record = self._record(cell)
                    running[task.remote(__version__, cell.key, cell.model_dump_json(), record, meter)] = cell
                over, _ = self._ray.wait(list(running), num_returns=len(running), timeout=_POLL)
                for ref in over:
                    outcome = self._keep(running.pop(ref), ref, results)
                    outcomes.append(outcome)
                    done += outcome.cell.steps
                    tell(outcome)
                self._watch()
                now = next(steps)
                progress(done + sum(now.get(cell.key, 0) for cell in running.values()))
        except (ConnectionError, TimeoutError, self._ray.exceptions.RayError) as error:
            raise NSERError(
                f"the cluster at --ray {self._address} has gone away ({printable(error, 120)}); the same command goes on "
                "once it is back."
            ) from error
        finally:
            self._stop(list(running))
        return outcomes

    def _keep(self, cell: Cell, ref: Any, results: Results) -> Outcome:
        lost = self._ray.exceptions
        try:
            sent = self._ray.get(ref)
        except (lost.RaySystemError, lost.LocalRayletDiedError):
            raise
        except lost.RayError as error:
            files = {CELL: cell.model_dump_json(), ERROR: _sentence(error, lost), LOG: str(error)}
            sent = {"seconds": 0.0, "status": 1, "files": {name: text.encode() for name, text in files.items()}}
        if "refused" in sent:
            raise ConfigurationError(
                f"node {printable(sent['node'], 80)} of --ray {self._address} {printable(sent['refused'], 200)}, and this "
                f"machine has sb3-nser {__version__}; install the same everywhere: pip install 'sb3-nser[ray]=={__version__}'."
            )
        draft = results.draft(cell)
        for name, contents in sent["files"].items():
            with (draft / Path(name).name).open("wb") as handle:
                handle.write(contents)
                handle.flush()
                os.fsync(handle.fileno())
        return Outcome(cell, sent["seconds"], results.settle(cell, draft, sent["status"]))

    def _record(self, cell: Cell) -> Any:
        """The record that a cell answers from goes along with it: nodes do not have this machine's files."""
        if cell.replay_record is None:
            return None
        if cell.replay_record not in self._records:
            try:
                contents = Path(cell.replay_record).read_bytes()
            except OSError as error:
                raise ConfigurationError(
                    f"variant {cell.variant}: replay_record={cell.replay_record!r} cannot be read ({error.strerror or error})."
                ) from None
            self._records[cell.replay_record] = self._ray.put(contents)
        return self._records[cell.replay_record]

    def _steps(self, meter: Any) -> Iterator[dict[str, int]]:
        """What the meter knew last; it may be slow, or on a node that is lost."""
        known: dict[str, int] = {}
        asked = meter.read.remote()
        while True:
            with contextlib.suppress(self._ray.exceptions.RayError):
                if self._ray.wait([asked], timeout=0)[0]:
                    answer, asked = asked, meter.read.remote()
                    known = self._ray.get(answer)
            yield known

    def _alive(self) -> dict[str, str]:
        return {one["NodeID"]: printable(one["NodeManagerAddress"], 80) for one in self._ray.nodes() if one["Alive"]}

    def _watch(self) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK
        before, self._nodes = self._nodes, self._alive()
        for lost in before.keys() - self._nodes.keys():
            self._note(f"node {before[lost]} is lost; what it was running begins again elsewhere ({self.size()})")
        for new in self._nodes.keys() - before.keys():
            self._note(f"node {self._nodes[new]} has joined ({self.size()})")

    def _stop(self, running: list[Any]) -> None:
        with contextlib.suppress(Exception):  # a cluster that is gone runs nothing any more
            if not self._ray.is_initialized():
                return
            for ref in running:
                self._ray.cancel(ref)
            if running:  # the disconnection kills what has not ended by itself
                self._ray.wait(running, num_returns=len(running), timeout=_STOP)

    def _look(self) -> None:
        """Ray itself waits for minutes for an address where nothing is, and may end the process: others go first."""
        if self._host is not None:
            host, port = self._host[1].strip("[]"), int(self._host[2])
            try:
                socket.create_connection((host, port), timeout=_REACH).close()
            except (OSError, OverflowError, UnicodeError) as error:
                raise self._unreachable(printable(getattr(error, "strerror", None) or error, 120)) from None
        try:
            probe = [sys.executable, "-c", _PROBE, self._address]
            done = subprocess.run(probe, capture_output=True, text=True, timeout=_CONNECT, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise self._unreachable(f"nothing that speaks Ray within {_CONNECT:.0f} s") from None
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise self._unreachable(printable(lines[-1] if lines else f"status {done.returncode}", 300))

    def _unreachable(self, reason: str) -> NSERError:
        return NSERError(f"no Ray cluster can be used at --ray {self._address} ({reason}); {_CURE}")


def _sentence(error: Exception, kinds: Any) -> str:
    """:return: why Ray has no result of a task"""
    if isinstance(error, kinds.WorkerCrashedError | kinds.NodeDiedError | kinds.OutOfMemoryError | kinds.ObjectLostError):
        return f"its process or its node was lost {RETRIES + 1} times (often too little memory): {type(error).__name__}"
    return f"{type(error).__name__}: {printable(error, 1000)}"
