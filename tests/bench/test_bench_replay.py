"""``python -m sb3_nser.bench replay`` runs and writes what it promises; how fast things are is nothing to assert in a test."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sb3_nser.bench.__main__ import main
from sb3_nser.bench.peers import OPERATIONS as PER_OPERATIONS
from sb3_nser.bench.peers import PEERS
from sb3_nser.bench.replay import OPERATIONS, RESCORE_LONGEST, RESCORE_TOTAL, array_bytes
from sb3_nser.bench.report import Measurement, Report, Target, duration, table
from sb3_nser.bench.timing import Turn, joined, summarise, take_turns
from sb3_nser.replay._kernels import kernels


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, str, str]:
    file = tmp_path_factory.mktemp("bench") / "replay.json"
    command = [sys.executable, "-m", "sb3_nser.bench", "replay", "--quick", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text(encoding="utf-8")), done.stdout, done.stderr


def test_json_says_what_was_measured_where(quick):
    report, _, _ = quick
    assert report["command"] == "python -m sb3_nser.bench replay --rows 10000 --repeats 12 --json replay.json"
    assert set(report["versions"]) == {"sb3_nser", "numpy", "torch", "numba", "stable_baselines3"}
    assert all(value for name, value in report["versions"].items() if name != "numba")
    assert report["python"].count(".") == 2
    assert set(report["machine"]) == {"architecture", "cpus", "load_average"}
    assert report["date"].endswith("Z")


def test_every_operation_is_measured_with_every_backend(quick):
    report, _, _ = quick
    ours = {kernels().name, "numpy"}
    found = {(one["name"], one["backend"]) for one in report["measurements"]}
    assert {
        (name, backend) for name in (*OPERATIONS, *PER_OPERATIONS, RESCORE_TOTAL, RESCORE_LONGEST) for backend in ours
    } <= found
    assert {name for name, backend in found if backend == "sb3"} == {
        "add 1",
        "add 1, priority entered",
        "sample 256",
        "add 1 + sample + update 256",
        "PER: add 1",
        "PER: sample 256",
        "PER: add 1 + sample + update 256",
    }
    for one in report["measurements"]:
        assert one["rows"] == 10_000
        numbers = [one["median_us"], *one["quartiles_us"]]
        assert one["name"] in PER_OPERATIONS or one["backend"] in {"sb3", *ours}
        compared = one["backend"] != "sb3" and (one["name"], "sb3") in found
        assert (one["ratio_to_sb3"] is not None) == compared
        numbers += [one["ratio_to_sb3"]] if compared else []
        assert all(math.isfinite(number) and number > 0 for number in numbers)


def test_targets_say_whether_they_are_met(quick):
    report, _, _ = quick
    assert len(report["targets"]) == 1 + 2 * len({kernels().name, "numpy"})
    for target in report["targets"]:
        assert set(target) == {"name", "value", "limit", "better", "met"}
        assert math.isfinite(target["value"])
        assert target["better"] == "lower"
        assert target["met"] == (target["value"] <= target["limit"])


def test_memory_does_not_depend_on_the_machine(quick):
    report, _, _ = quick
    (memory,) = report["memory"]
    assert memory["rows"] == 10_000
    assert 32 <= memory["extra_bytes_per_transition"] <= 48  # four float64 arrays and the upper levels of three trees


def test_contenders_have_a_version_or_a_reason(quick):
    report, printed, _ = quick
    assert set(report["contenders"]) == {"sb3", kernels().name, "numpy", *PEERS}
    for name, one in report["contenders"].items():
        assert bool(one["version"]) != ("not_measured" in one)
        assert (f"{name} was not measured: " in printed) == ("not_measured" in one)


def test_rescoring_by_rules_is_measured(quick):
    (one,) = quick[0]["rescoring"]
    assert (one["rows"], one["rules"], one["literals"], one["calls"]) == (10_000, 16, 32, 1)
    assert all(one[key] > 0 for key in ("total_ms", "draws_ms", "longest_ms", "plain_ms", "compared_ms"))


def test_table_is_printed_and_progress_goes_elsewhere(quick):
    _, printed, progress = quick
    assert printed.startswith("| operation ")
    assert "ratio to SB3" in printed
    assert "[1/9] 10,000 rows: filling" in progress
    assert "[1/9]" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        ([], "the following arguments are required: BENCHMARK"),
        (["replay", "--rows", "10"], "it must be a whole number of at least 1000, not '10'"),
        (["replay", "--repeats", "many"], "it must be a whole number of at least 1, not 'many'"),
        (["replay", "--json", "no/such/folder.json"], "the folder of 'no/such/folder.json' does not exist"),
        (["replay", "--json", "."], "'.' is a folder"),
    ],
)
def test_wrong_arguments_are_told_before_anything_runs(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_turns_are_interleaved_and_the_first_round_is_thrown_away():
    order: list[str] = []
    turns = {"a": Turn(lambda: order.append("a"), lambda: order.append("before a")), "b": Turn(lambda: order.append("b"))}
    times = take_turns(turns, rounds=2, calls=2)
    assert order == ["before a", "a", "a", "b", "b"] * 3
    assert times["a"].shape == times["b"].shape == (2,)


def test_ratios_are_paired_by_round():
    times = {"sb3": np.array([1.0, 10.0, 2.0]), "numpy": np.array([3.0, 20.0, 2.0])}
    reference, ours = summarise("add", 1000, times)
    assert reference.ratio_to_sb3 is None
    assert ours == Measurement("add", "numpy", 1000, 3.0, (2.5, 11.5), 2.0)  # median of 3, 2, 1


def test_parts_of_a_measurement_are_joined():
    parts = [{"sb3": np.array([1.0]), "numpy": np.array([2.0])}, {"sb3": np.array([3.0]), "numpy": np.array([4.0])}]
    assert {name: list(values) for name, values in joined(parts).items()} == {"sb3": [1.0, 3.0], "numpy": [2.0, 4.0]}


def test_a_higher_target_is_met_from_below_its_limit_upwards():
    assert Target("speed", 2.0, 1.0, "higher").met
    assert not Target("speed", 0.5, 1.0, "higher").met
    assert "≥ 1" in Report("x", [], [Target("speed", 2.0, 1.0, "higher")]).as_text()


def test_array_bytes_counts_memory_once():
    class Holder:
        pass

    holder = Holder()
    holder.whole, holder.parts = np.zeros(10), [np.zeros(5, dtype=np.int8)]
    holder.view, holder.again = holder.whole[2:], holder
    assert array_bytes(holder) == 85


def test_writing_helpers():
    assert [duration(value) for value in (2.5, 1500.0, 2e6)] == ["2.5 µs", "1.5 ms", "2 s"]
    assert table(("a", "bb"), [("1", "2")]) == "| a | bb |\n| - | -- |\n| 1 | 2  |"


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch, capsys):
    def run(args: object) -> Report:
        file.mkdir()
        return Report("x", [], [])

    file = tmp_path / "late.json"
    monkeypatch.setattr("sb3_nser.bench.replay.measure", lambda *args, **kwargs: run(args))
    assert main(["replay", "--json", str(file)]) == 1
    assert capsys.readouterr().err.startswith("python -m sb3_nser.bench: ")
