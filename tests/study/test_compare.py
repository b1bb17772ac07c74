"""``sb3-nser compare`` as a user runs it: to the end, killed half-way, with runs that crash, with files that are gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

from sb3_nser.study.runner import Results
from study.tiny import TINY, command, environment, loaded, sb3_nser, write

CARTPOLE = TINY["environments"][0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of four runs that was run to its end, two at a time."""
    folder = tmp_path_factory.mktemp("compare")
    target = {"variant": "per", "against": "uniform", "metric": "auc", "statistic": "difference", "limit": -1000}
    study = write(folder / "study.yaml", seeds=2, targets=[target])
    done = sb3_nser("compare", study, "--out", folder / "out", "--jobs", 2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 environments x 2 variants x 2 seeds = 4 runs, 800 environment steps" in done.stdout
    assert "4/4 " in done.stdout and "too few seeds (2 of at least 6)" in done.stdout
    return folder


def results(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*/result.json")}


def test_everything_is_left_behind(finished: Path) -> None:
    out = finished / "out"
    table = pd.read_csv(out / "evaluations.csv")
    assert len(table) == 4 * 3 and set(table["variant"]) == {"uniform", "per"} and set(table["seed"]) == {0, 1}
    pd.testing.assert_frame_equal(table, pd.read_parquet(out / "evaluations.parquet"), check_dtype=False)
    run = json.loads(next(iter((out / "cells").glob("*per--seed1*/result.json"))).read_text())
    mine = table[(table["variant"] == "per") & (table["seed"] == 1)]
    assert mine["return"].tolist() == [row["return"] for row in run["evaluations"]]
    versions = json.loads((out / "versions.json").read_text())
    assert versions["same_for_all_runs"] and {"torch", "gymnasium", "numpy", "python"} <= set(versions["versions"])
    assert (out / "study.yaml").read_text() == (finished / "study.yaml").read_text()
    (target,) = json.loads((out / "targets.json").read_text())["targets"]
    assert set(target) == {"name", "value", "limit", "better", "met"} and target["met"] and target["value"] > -1000
    assert not list(out.glob(".draft*"))
    for name in ("summary.csv", "comparisons.csv", "curves.csv", "runs.csv", "report.html"):
        assert (out / name).stat().st_size > 100


def test_one_run_alone_is_the_run_of_the_study(finished: Path, tmp_path: Path) -> None:
    cell = next(iter((finished / "out" / "cells").glob("*per--seed0*")))
    worker = [sys.executable, "-m", "sb3_nser.study.worker", str(cell / "cell.json"), str(tmp_path / "one")]
    subprocess.run(worker, check=True, timeout=200, env=environment())
    again, before = (json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "one", cell))
    assert again["final"] == before["final"]


def test_finished_runs_are_not_repeated_and_lost_ones_are(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    before = results(out)
    lost, damaged, kept, removed = sorted(before)
    (out / "cells" / lost / "result.json").unlink()
    (out / "cells" / damaged / "result.json").write_text('{"key": ')
    shutil.rmtree(out / "cells" / removed)
    (out / "evaluations.csv").unlink()
    done = sb3_nser("compare", finished / "study.yaml", "--out", out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 of 4 runs are there already and are not repeated" in done.stdout and "3/3 " in done.stdout
    after = results(out)
    assert set(after) == set(before) and after[kept] == before[kept]
    assert len(pd.read_csv(out / "evaluations.csv")) == 12


def held_open(folder: Path) -> list[str]:
    """Processes that have a file below a folder open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(folder) in os.readlink(link):
                found.append(str(link))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for processes in /proc")
def test_a_killed_study_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    study, out = write(tmp_path / "study.yaml", seeds=2, steps=400), tmp_path / "out"
    process = subprocess.Popen(command("compare", study, "--out", out), env=environment(), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not results(out):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    while not list(out.glob(".draft*")):  # the next run has begun
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = results(out)
    while held_open(out):
        assert time.monotonic() < deadline, held_open(out)
        time.sleep(0.2)
    assert results(out) == before and 1 <= len(before) < 4
    done = sb3_nser("compare", study, "--out", out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{len(before)} of 4 runs are there already and are not repeated" in done.stdout
    after = results(out)
    assert len(after) == 4 and {key: after[key] for key in before} == before
    assert not list(out.glob(".draft*"))


@pytest.mark.slow
def test_crashed_runs_are_reported_and_the_others_go_on(tmp_path: Path) -> None:
    environments = [
        {"id": "fragile:Fragile-v0", "name": "raises"},
        {"id": "fragile:Fragile-v0", "name": "dies", "kwargs": {"how": "kill"}},
        {**CARTPOLE},
    ]
    study, out = write(tmp_path / "study.yaml", environments=environments, variants=["uniform"]), tmp_path / "out"
    done = sb3_nser("compare", study, "--out", out)
    assert done.returncode == 1
    assert "failed: raises, uniform, seed 0: RuntimeError: the pole is broken" in done.stderr
    assert "failed: dies, uniform, seed 0: its process was ended by signal 9" in done.stderr
    assert "2 of 3 runs failed" in done.stderr and "Traceback" not in done.stderr
    assert [key.split("--")[0] for key in results(out)] == ["CartPole-v1"]
    assert "the pole is broken" in next(iter((out / "failed").glob("raises*/log.txt"))).read_text()
    page = (out / "report.html").read_text()
    assert "1 of 3 runs are finished, 2 failed" in page and "the pole is broken" in page


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    study, other = write(tmp_path / "study.yaml"), tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    done = sb3_nser("compare", study, "--out", other)
    assert done.returncode == 1 and "holds other files" in done.stderr and "Traceback" not in done.stderr
    begun = tmp_path / "begun"  # a study killed before its file was written
    (begun / "cells").mkdir(parents=True)
    (begun / ".lock").touch()
    (begun / "grid.json").touch()
    Results(begun).open(loaded()).release()
    assert (begun / "study.yaml").is_file()
    busy = tmp_path / "busy"
    busy.mkdir()
    (busy / "study.yaml").touch()
    with FileLock(busy / ".lock"):
        done = sb3_nser("compare", study, "--out", busy)
    assert done.returncode == 1 and "another 'sb3-nser compare' is writing" in done.stderr


def test_a_mistake_in_the_file_is_one_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    study = write(tmp_path / "study.yaml", variants=["perr"])
    done = sb3_nser("compare", study, "--out", tmp_path / "out")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "study.yaml: variants: 'perr' must be one of" in done.stderr and "Did you mean 'per'?" in done.stderr
    assert not (tmp_path / "out").exists()


def test_another_study_file_runs_only_what_is_new(finished: Path, tmp_path: Path) -> None:
    # the grid knows its runs by what they are, not by their place in the file
    more = loaded(seeds=3).cells
    less = loaded(seeds=2).cells
    assert {cell.key for cell in less} < {cell.key for cell in more}
    assert {cell.key for cell in less} == set(results(finished / "out"))
