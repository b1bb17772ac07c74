"""Calls in the background, spacing and limits, and the record that replays them."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest

from sb3_nser.errors import NSERWarning, RecordError
from sb3_nser.induction import (
    BackgroundCalls,
    InductionFailure,
    InductionReply,
    InductionRequest,
    Outcome,
    RecordedCalls,
    RecordWriter,
    read_record,
)
from sb3_nser.induction import worker as worker_module
from sb3_nser.induction.budget import CallBudget


def request(step: int = 100, number: int = 0) -> InductionRequest:
    return InductionRequest(number, step, ({"role": "user", "content": f"rules at {step}"},), {"type": "object"}, 3, "names")


class Inducer:
    deadline = 5.0

    def __init__(self, error: BaseException | None = None, wait: threading.Event | None = None) -> None:
        self.error, self.wait = error, wait

    def describe(self) -> str:
        return "test inducer"

    def check(self) -> str | None:
        return None

    def propose(self, question: InductionRequest) -> InductionReply:
        if self.wait is not None:
            self.wait.wait(30)
        if self.error is not None:
            raise self.error
        return InductionReply("{}", "m")


def test_an_answer_is_handed_out_once() -> None:
    calls = BackgroundCalls(Inducer())
    calls.submit(request())
    outcome = calls.poll(0, wait=True)
    assert outcome is not None and outcome.reply is not None and outcome.reply.text == "{}"
    assert not calls.busy and calls.poll(0, wait=True) is None


def test_polling_does_not_wait() -> None:
    gate = threading.Event()
    calls = BackgroundCalls(Inducer(wait=gate))
    calls.submit(request())
    assert calls.poll(0) is None and calls.busy
    with pytest.raises(RuntimeError):
        calls.submit(request())
    gate.set()
    assert calls.poll(0, wait=True) is not None


@pytest.mark.parametrize(
    "error", [InductionFailure("server", "broken"), ZeroDivisionError("bug"), SystemExit(3), KeyboardInterrupt()]
)
def test_whatever_an_inducer_raises_is_a_failure(error: BaseException) -> None:
    calls = BackgroundCalls(Inducer(error))
    calls.submit(request())
    outcome = calls.poll(0, wait=True)
    assert outcome is not None and outcome.failure is not None
    assert outcome.failure.cause == ("server" if isinstance(error, InductionFailure) else "internal")


def test_a_call_that_overruns_everything_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "GRACE", 0.1)
    gate = threading.Event()
    inducer = Inducer(wait=gate)
    inducer.deadline = 0.2
    calls = BackgroundCalls(inducer)
    calls.submit(request())
    time.sleep(0.4)
    outcome = calls.poll(0)
    assert outcome is not None and outcome.failure is not None and outcome.failure.cause == "deadline"
    calls.submit(request(200))  # a new call is possible, and the old one's late answer is not taken for it
    gate.set()
    late = calls.poll(0, wait=True)
    assert late is not None and late.request.step == 200


def test_spacing_counts_steps_and_widens_when_nothing_new_comes() -> None:
    budget = CallBudget(every=1_000, first=1_000, max_calls=100, max_tokens=10**9)
    asked = []
    for step in range(0, 40_000, 7):  # steps of seven environments never hit a multiple of 1000 exactly
        if budget.due(step):
            budget.asked(step)
            asked.append(step)
            budget.answered(10, 0.1, new_rules=len(asked) == 1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert asked[0] in range(1_000, 1_007)
    assert [round(gap, -3) for gap in gaps[:6]] == [1_000, 1_000, 2_000, 4_000, 8_000, 8_000]


@pytest.mark.parametrize(("limits", "word"), [({"max_calls": 3}, "max_calls=3"), ({"max_tokens": 30}, "max_tokens=30")])
def test_budgets_end_the_asking(limits: dict[str, int], word: str) -> None:
    budget = CallBudget(**{"every": 1, "first": 0, "max_calls": 99, "max_tokens": 10**6, **limits})
    for step in range(10):
        if budget.due(step) and not budget.stopped:
            budget.asked(step)
            budget.answered(10, 0.0, new_rules=1)
    assert budget.calls == 3 and word in budget.stopped


def test_no_call_at_all_is_a_budget_too() -> None:
    assert "max_calls=0" in CallBudget(every=1, first=0, max_calls=0, max_tokens=10).stopped


def test_budget_state_survives() -> None:
    budget = CallBudget(every=10, first=10, max_calls=5, max_tokens=100)
    budget.asked(10)
    budget.failed(1.5)
    other = CallBudget(every=10, first=10, max_calls=5, max_tokens=100)
    other.restore(budget.state())
    assert other.state() == {**budget.state(), "failures_in_a_row": 0}  # today's server may be another
    other.reset()
    assert other == CallBudget(every=10, first=10, max_calls=5, max_tokens=100)


def test_record_gives_back_replies_failures_and_silences_at_their_steps(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "deep" / "record.jsonl", "run")
    reply = InductionReply('{"rules": []}', "m", "d", 1.25, 10, 20, ("note",))
    writer.write(request(100, 0), Outcome(request(100, 0), reply=reply), 130, {"IF a THEN b": "admitted"})
    writer.write(request(200, 1), Outcome(request(200, 1), failure=InductionFailure("cut", "too long", 2.0)), 250, {})
    writer.write(request(300, 2), None, None, {})
    calls = RecordedCalls(writer.path, "run")
    calls.submit(request(100, 0))
    assert calls.poll(129) is None and calls.poll(129, wait=True) is None
    outcome = calls.poll(130)
    assert outcome is not None and outcome.reply == reply
    calls.submit(request(200, 1))
    outcome = calls.poll(251)
    assert outcome is not None and outcome.failure is not None and str(outcome.failure) == "too long"
    calls.submit(request(300, 2))
    assert calls.poll(10**9) is None and calls.busy
    assert calls.close() == request(300, 2)


def test_another_question_is_noticed(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "record.jsonl", "run")
    writer.write(request(100), Outcome(request(100), reply=InductionReply("{}")), 130, {})
    calls = RecordedCalls(writer.path, "run")
    with pytest.warns(NSERWarning, match="something else"):
        calls.submit(InductionRequest(0, 100, ({"role": "user", "content": "other"},), {}, 3, "names"))
    with pytest.warns(NSERWarning, match="no call"):
        calls.submit(request(150))


@pytest.mark.parametrize(
    "content", ["not json\n", '{"format": 1}\n', '{"format": 99, "run": "r", "number": 0}\n', "[]\n", "\xff\n"]
)
def test_unreadable_records_are_one_sentence(tmp_path: Path, content: str) -> None:
    file = tmp_path / "record.jsonl"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(RecordError, match=r"record\.jsonl"):
        read_record(file)


def test_missing_record_names_the_argument(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="replay_record"):
        read_record(tmp_path / "absent.jsonl")


def test_record_that_cannot_be_written_is_known_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="record="):
        RecordWriter(tmp_path / "file" / "record.jsonl", "run")
