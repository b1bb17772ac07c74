"""The comparison with other packages: who is absent is reported, and the arithmetic of its targets."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sb3_nser.bench import peer_worker, peers, rescoring
from sb3_nser.bench.own_worker import OWN
from sb3_nser.bench.peer_worker import Contender, Workload, answer
from sb3_nser.bench.processes import Worker
from sb3_nser.errors import NSERError

STUB = """
import json, sys
print(json.dumps({"ready": True, "version": "1.0"}), flush=True)
for line in sys.stdin:
    print(json.dumps({"us": json.loads(line)["calls"] * 2.0}), flush=True)
"""


def test_a_worker_answers_until_it_is_closed() -> None:
    with Worker("stub", [sys.executable, "-c", STUB]) as worker:
        assert worker.wait_until_ready() and worker.version == "1.0"
        assert worker.ask(do="sample", calls=3) == {"us": 6.0}
    with pytest.raises((NSERError, ValueError)):
        worker.ask(do="sample", calls=1)


def test_a_worker_that_ends_at_once_is_not_ready_and_says_so() -> None:
    with Worker("broken", [sys.executable, "-c", "raise SystemExit(3)"]) as worker:
        assert not worker.wait_until_ready()
        assert "broken has ended" in worker.reason and "status 3" in worker.reason


@pytest.mark.parametrize("name", ["sb3", "numpy", *peers.PEERS])
def test_contenders_do_all_they_are_asked(name: str) -> None:
    try:
        contender = {**OWN, **peer_worker.PEERS}[name](Workload(1000))
    except (ImportError, RuntimeError) as error:  # what the benchmark reports as not measured
        pytest.skip(f"{name}: {error}")
    for method, _ in peers.OPERATIONS.values():
        if name != "sb3" or method in ("add", "sample", "step"):
            assert answer(contender, {"do": method, "calls": 2})["us"] > 0


def test_an_update_is_timed_without_the_draw_before_it() -> None:
    calls: list[str] = []

    class Recorded(Contender):
        def sample(self) -> None:
            calls.append("sample")

        def update(self) -> None:
            calls.append("update")

    answer(Recorded(Workload(10)), {"do": "update", "calls": 2})
    assert calls == ["sample", "sample", "update", "sample", "update"]


def test_ratios_are_to_the_peer_that_is_fastest() -> None:
    times = {"numba": np.array([2.0, 6.0]), "cpprb": np.array([4.0, 4.0]), "tianshou": np.array([9.0, 9.0])}
    assert peers._to_fastest_peer(times) == [("numba", "cpprb", 1.0)]
    assert peers._to_fastest_peer({"numba": np.array([1.0])}) == []


def test_absent_peers_are_a_sentence_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def stub(name: str, rows: int, python: str) -> Worker:
        here = name in ("sb3", "numpy")
        return Worker(name, [sys.executable, "-c", STUB if here else "raise SystemExit(1)"])

    monkeypatch.setattr(peers, "_worker", stub)
    monkeypatch.setattr(peers, "kernels", lambda: SimpleNamespace(name="numpy"))
    found = peers.compare(1_000_000, 2)
    assert found.ratios == [] and {one.backend for one in found.measurements} == {"sb3", "numpy"}
    assert [text.split()[0] for text in found.absent()] == list(peers.PEERS)
    assert [one.name for one in found.targets] == ["PER: rewrite all, ms (numpy, 1,000,000 rows)"]


def test_rescoring_has_limits_at_a_million_rows_only() -> None:
    numbers = {"rules": 16, "literals": 32, "total_ms": 300.0, "draws_ms": 5.0, "calls": 31, "longest_ms": 20.0}
    rest = {"plain_ms": 100.0, "compared_ms": 50.0, "extra_mib": 10.0}
    assert rescoring.Rescoring(rows=1000, **numbers, **rest).targets() == []
    targets = rescoring.Rescoring(rows=1_000_000, **numbers, **rest).targets()
    assert [(one.value, one.met) for one in targets] == [(3.0, True), (20.0, True), (10.0, True)]
