"""``sb3-nser compare --ray``: a cluster of two nodes, each a raylet and workers in processes of their own on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sb3_nser import __version__
from sb3_nser.errors import ConfigurationError, NSERError
from sb3_nser.study import node
from sb3_nser.study.cells import Cell
from study.tiny import TINY, command, environment, loaded, sb3_nser, write

pytest.importorskip("ray")
from sb3_nser.study.cluster import Cluster

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
MARK = "SB3_NSER_TEST_NODE"
STUDY: dict[str, Any] = {"variants": ["uniform", "nser-tree"], "seeds": 2, "steps": 800, "callback": {"every": 200}}


class Node:
    """``ray start``, with a mark in the environment by which all processes of the node are found."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self._mark, log = f"{MARK}={uuid.uuid4().hex}", place / f"{uuid.uuid4().hex}.log"
        name, value = self._mark.split("=")
        ours = {**environment(), name: value, "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(place)}
        ours["RAY_health_check_period_ms"] = "1000"  # a lost node is noticed in five seconds instead of fifteen
        start = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--num-cpus=1",
            "--object-store-memory=80000000",
        ]
        with log.open("wb") as output:
            self._process = subprocess.Popen([*start, *arguments], env=ours, cwd=place, stdout=output, stderr=output)
        until(lambda: "Ray runtime started" in log.read_text() or self._process.poll() is not None, "ray start")
        assert self._process.poll() is None, log.read_text()

    def processes(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def runs(self) -> list[int]:
        """Processes of the runs that are being trained here."""
        found = []
        for process in self.processes():
            try:
                words = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "-c" in words and "sb3_nser.study.worker" in words[words.index("-c") + 1]:
                found.append(process)
        return found

    def kill(self) -> None:
        while self.processes():
            for process in self.processes():
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait()
            time.sleep(0.05)


class Local:
    """A head with one core; further nodes join and leave. While ``gate`` exists, no run goes on."""

    def __init__(self, place: Path) -> None:
        self.place, self.gate, self.address = place, place / "gate", f"127.0.0.1:{free_port()}"
        port, client = self.address.split(":")[1], free_port()
        self.from_outside = f"ray://127.0.0.1:{client}"
        self.nodes = [
            Node(
                place,
                "--head",
                f"--port={port}",
                "--include-dashboard=false",
                f"--temp-dir={place}/r",
                f"--ray-client-server-port={client}",
            )
        ]
        until(lambda: answers(client), "the head takes clients")

    def join(self) -> Node:
        self.nodes.append(Node(self.place, f"--address={self.address}"))
        return self.nodes[-1]

    def study(self, path: Path) -> Path:
        gated = {"id": "gated:Gated-v0", "kwargs": {"gate": str(self.gate)}, "range": [0, 500], "threshold": 100}
        return write(path, environments=[gated], **STUDY)

    def idle(self) -> bool:
        return not any(one.runs() for one in self.nodes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(happens: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Local]:
    place = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # names of sockets in it have at most 107 bytes
    local = Local(place)
    yield local
    for one in local.nodes:
        one.kill()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def reference(cluster: Local, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs as they are without a cluster."""
    folder = tmp_path_factory.mktemp("local")
    done = sb3_nser("compare", cluster.study(folder / "study.yaml"), "--out", folder / "out", "--jobs", 2)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "out"


def started(*arguments: object, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        return subprocess.Popen(
            command("compare", *arguments),
            env=environment(),
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=_hears_ctrl_c,
        )


def _hears_ctrl_c() -> None:
    """Whatever a shell starts in the background ignores SIGINT, and so do all its children: these tests, perhaps."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def after_patching(change: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line on a driver that is not as the nodes are."""
    code = f"{change}; import sys, sb3_nser.cli; sys.exit(sb3_nser.cli.main())"
    whole = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(whole, env=environment(), capture_output=True, text=True, timeout=200)


def times(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*/result.json")}


def content(out: Path) -> dict[str, Any]:
    """All that runs have found, without what depends on the clock."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items() if "second" not in name}
        return [plain(item) for item in value] if isinstance(value, list) else value

    found = {}
    for folder in (out / "cells").iterdir():
        files = {path.name: path.read_text() for path in folder.iterdir()}
        files["result.json"] = plain(json.loads(files["result.json"]))
        files["induction.jsonl"] = [plain(json.loads(line)) for line in files.get("induction.jsonl", "").splitlines()]
        found[folder.name] = files
    return found


@linux
@pytest.mark.slow
def test_a_node_is_killed_and_nothing_is_lost(cluster: Local, reference: Path, tmp_path: Path) -> None:
    study, out, second = cluster.study(tmp_path / "study.yaml"), tmp_path / "out", cluster.join()
    process = started(study, "--out", out, "--ray", cluster.address, folder=tmp_path)
    until(lambda: bool(times(out)), "a run is finished")
    cluster.gate.touch()
    until(lambda: bool(cluster.nodes[0].runs() and second.runs()), "both nodes train")
    time.sleep(1)  # what had come through arrives
    before = times(out)
    second.kill()
    until(lambda: "is lost" in (tmp_path / "stderr").read_text(), "the loss is noticed")
    cluster.gate.unlink()
    assert process.wait(200) == 0, (tmp_path / "stderr").read_text()
    stdout, stderr = (tmp_path / "stdout").read_text(), (tmp_path / "stderr").read_text()
    assert "2 nodes, 2 cores" in stdout and "4/4 " in stdout and "failed" not in stdout and "Raylet" not in stdout
    assert "is lost; what it was running begins again elsewhere (1 node, 1 core)" in stderr and stderr.count("\n") == 1
    after = times(out)
    assert len(after) == 4 and {key: after[key] for key in before} == before and len(before) < 4
    assert not (out / "failed").exists() and not list(out.glob(".draft*"))
    assert content(out) == content(reference)
    assert len((out / "evaluations.csv").read_text().splitlines()) == len(
        (reference / "evaluations.csv").read_text().splitlines()
    )


@linux
@pytest.mark.slow
def test_a_stopped_and_a_killed_study_go_on_anywhere(cluster: Local, reference: Path, tmp_path: Path) -> None:
    study, out = cluster.study(tmp_path / "study.yaml"), tmp_path / "out"
    process = started(study, "--out", out, "--ray", cluster.address, folder=tmp_path)
    until(lambda: bool(times(out)), "a run is finished")
    cluster.gate.touch()
    until(lambda: bool(cluster.nodes[0].runs()), "another run is trained")
    process.send_signal(signal.SIGINT)
    status, stderr = process.wait(60), (tmp_path / "stderr").read_text()
    assert status == 130 and "the same command goes on" in stderr and "Traceback" not in stderr
    until(cluster.idle, "a stopped study leaves no run behind")
    cluster.gate.unlink()
    first = times(out)
    process = started(study, "--out", out, "--ray", cluster.address, "--jobs", 1, folder=tmp_path)
    until(lambda: len(times(out)) > len(first), "another run is finished")
    cluster.gate.touch()
    until(lambda: bool(cluster.nodes[0].runs()), "another run is trained")
    process.kill()
    process.wait()
    until(cluster.idle, "a killed study leaves no run behind")
    cluster.gate.unlink()
    before = times(out)
    assert {key: before[key] for key in first} == first and len(before) < 4
    done = sb3_nser("compare", study, "--out", out, "--jobs", 2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{len(before)} of 4 runs are there already" in done.stdout
    after = times(out)
    assert len(after) == 4 and {key: after[key] for key in before} == before and content(out) == content(reference)


@linux
@pytest.mark.slow
def test_crashed_runs_are_reported_and_the_others_go_on(cluster: Local, tmp_path: Path) -> None:
    environments = [
        {"id": "fragile:Fragile-v0", "name": "raises"},
        {"id": "fragile:Fragile-v0", "name": "dies", "kwargs": {"how": "kill"}},
        {**TINY["environments"][0]},
    ]
    study = write(tmp_path / "study.yaml", environments=environments, variants=["uniform"])
    out = tmp_path / "out"
    compare = ("compare", study, "--out", out, "--ray", cluster.from_outside)
    done = after_patching("import sb3_nser.study.cluster; sb3_nser.study.cluster.RETRIES = 1", *compare)
    assert done.returncode == 1
    assert "failed: raises, uniform, seed 0: RuntimeError: the pole is broken" in done.stderr
    assert "failed: dies, uniform, seed 0: its process or its node was lost 2 times" in done.stderr
    assert "2 of 3 runs failed" in done.stderr and "Traceback" not in done.stderr
    assert [key.split("--")[0] for key in times(out)] == ["CartPole-v1"]
    assert "the pole is broken" in next((out / "failed").glob("raises*/log.txt")).read_text()
    assert {path.name for path in next((out / "failed").glob("dies*")).iterdir()} == {"cell.json", "error.txt", "log.txt"}


@linux
def test_another_version_ends_the_study_with_a_sentence(cluster: Local, tmp_path: Path) -> None:
    study, out = write(tmp_path / "study.yaml"), tmp_path / "out"
    compare = ("compare", study, "--out", out, "--ray", cluster.address)
    done = after_patching("import sb3_nser; sb3_nser.__version__ = '9.9.9'", *compare)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"has sb3-nser {__version__}, and this machine has sb3-nser 9.9.9; install the same everywhere" in done.stderr
    assert not (out / "failed").exists() and not list(out.glob(".draft*"))


def test_a_node_without_the_package_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sb3_nser").mkdir()
    (tmp_path / "sb3_nser" / "__init__.py").write_text("import nothing_of_this_name")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    sent = node.run_on_node("0.1.0", "key", "{}", None, None)
    assert sent["refused"] == "cannot import sb3_nser (No module named 'nothing_of_this_name')"


@pytest.mark.slow
def test_a_record_goes_along(tmp_path: Path) -> None:
    (cell,) = loaded(**{**STUDY, "variants": ["nser-tree"], "seeds": 1, "steps": 1500}).cells
    record = node.run_on_node(__version__, cell.key, cell.model_dump_json(), None, None)["files"]["induction.jsonl"]
    file = tmp_path / "trees.jsonl"
    file.write_bytes(record)
    variants = [{"variant": "nser", "replay_record": str(file)}]
    (cell,) = loaded(**{**STUDY, "variants": variants, "seeds": 1, "steps": 1500}).cells
    file.unlink()  # as on another machine
    sent = node.run_on_node(__version__, cell.key, cell.model_dump_json(), record, None)
    assert sent["status"] == 0 and {"cell.json", "log.txt", "result.json", "rules.yaml", "induction.jsonl"} == set(
        sent["files"]
    )
    result = json.loads(sent["files"]["result.json"])
    assert Cell.model_validate(result["cell"]) == cell and result["rounds"] and result["cost"]["llm_failures"] == 0
    lost = node.run_on_node(__version__, cell.key, cell.model_dump_json(), None, None)
    assert lost["status"] == 1 and b"replay_record" in lost["files"]["error.txt"]


def test_addresses_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, nowhere = write(tmp_path / "study.yaml"), f"127.0.0.1:{free_port()}"
    done = sb3_nser("compare", study, "--out", tmp_path / "out", "--ray", nowhere)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert (
        f"no Ray cluster can be used at --ray {nowhere} (Connection refused); start one with 'ray start --head'" in done.stderr
    )
    for address in ("local", "somewhere", "http://head:6379", ""):
        with pytest.raises(ConfigurationError, match="must be auto, HOST:PORT or ray://HOST:PORT"):
            Cluster(address)
    monkeypatch.setattr("sb3_nser.study.cluster._CONNECT", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # something else listens there
        with pytest.raises(NSERError, match=r"nothing that speaks Ray within 3 s\); start one"):
            Cluster(f"127.0.0.1:{mute.getsockname()[1]}").__enter__()
    monkeypatch.setattr("sb3_nser.arguments.importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigurationError, match=r"--ray needs the package ray: install it with pip install 'sb3-nser\[ray\]'"
    ):
        Cluster("auto")
