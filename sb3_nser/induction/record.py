"""The induction record: every call as one line of JSON, and a run that answers from such a file instead of a model."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sb3_nser.errors import RecordError, warn_user
from sb3_nser.induction.base import InductionFailure, InductionReply, InductionRequest, Outcome
from sb3_nser.rules import Rule

FORMAT = 1
MAX_RECORD_BYTES = 256 * 1024 * 1024


class RecordEntry(BaseModel):
    """One call.

    :ivar run: which training run it belongs to (a file may hold several)
    :ivar request_step: environment step at which the question was asked
    :ivar applied_step: step at which the answer was applied; None if training ended first
    :ivar prompt_sha256: of the messages and schema, to tell whether a replay asks the same question
    :ivar rules: the rules of an inducer that hands them over ready-made; None where ``reply`` has to be read
    :ivar verdicts: what became of each proposed rule, key -> words; for readers, not used in a replay
    """

    model_config = ConfigDict(extra="forbid")
    format: int = FORMAT
    run: str
    number: int
    request_step: int
    applied_step: int | None
    form: str
    prompt_sha256: str
    messages: list[dict[str, str]] = Field(default_factory=list)
    reply: str | None = None
    rules: list[Rule] | None = Field(default=None, max_length=1_000)
    model: str = ""
    digest: str = ""
    seconds: float = 0.0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    notes: list[str] = Field(default_factory=list)
    failure_cause: str | None = None
    failure_message: str | None = None
    verdicts: dict[str, str] = Field(default_factory=dict)


def prompt_hash(request: InductionRequest) -> str:
    """:return: sha256 of what is sent: messages, schema and the number of the call (which sets the seed)"""
    payload = json.dumps([list(request.messages), request.schema, request.number], sort_keys=True)
    return hashlib.sha256(payload.encode()).hexdigest()


class RecordWriter:
    """Appends entries to a JSONL file; trouble with the file is warned about once and never stops training.

    :param path: file to append to; folders are made
    :param run: name of this run inside the file
    :param fresh: True for a run that starts at step 0: if the file already holds a run of that name, this one gets ``#2``,
        ``#3`` ... appended, so that runs never mix
    :raises RecordError: if the file cannot be opened for writing
    """

    def __init__(self, path: str | os.PathLike[str], run: str, fresh: bool = True) -> None:
        self.path, self.run = Path(path), run
        self._broken = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="ascii") as file:
                _lock(file)  # two processes that start together must not take one name
                if fresh:
                    taken = {entry.run for entry in read_record(self.path, argument="record", reservations=True)}
                    number = 2
                    while self.run in taken:
                        self.run, number = f"{run}#{number}", number + 1
                    file.write(_line(_reservation(self.run)))
        except OSError as error:
            reason = error.strerror or error
            raise RecordError(f"record={str(path)!r} cannot be written ({reason}); choose another file.") from None

    def write(self, request: InductionRequest, outcome: Outcome | None, step: int | None, verdicts: dict[str, str]) -> None:
        """
        :param request: what was asked
        :param outcome: how it ended; None if training ended first
        :param step: environment step at which the outcome was applied
        :param verdicts: rule text -> what became of it
        """
        entry = RecordEntry(
            run=self.run,
            number=request.number,
            request_step=request.step,
            applied_step=step,
            form=request.form,
            prompt_sha256=prompt_hash(request),
            messages=list(request.messages),
            verdicts=verdicts,
        )
        if outcome is not None and outcome.reply is not None:
            reply = outcome.reply
            entry = entry.model_copy(
                update={
                    "reply": reply.text,
                    "rules": None if reply.rules is None else list(reply.rules),
                    "model": reply.model,
                    "digest": reply.digest,
                    "seconds": round(reply.seconds, 3),
                    "prompt_tokens": reply.prompt_tokens,
                    "reply_tokens": reply.reply_tokens,
                    "notes": list(reply.notes),
                }
            )
        elif outcome is not None and outcome.failure is not None:
            failure = outcome.failure
            entry = entry.model_copy(
                update={
                    "failure_cause": failure.cause,
                    "failure_message": failure.message,
                    "seconds": round(failure.seconds, 3),
                }
            )
        try:
            with self.path.open("a", encoding="ascii") as file:
                file.write(_line(entry))
        except OSError as error:
            if not self._broken:
                self._broken = True
                warn_user(f"the induction record {self.path} cannot be written: {error}")


BEGINNING = -1
"""Number of the line that reserves a run's name; no call."""


def _reservation(run: str) -> RecordEntry:
    return RecordEntry(run=run, number=BEGINNING, request_step=0, applied_step=None, form="", prompt_sha256="")


def _line(entry: RecordEntry) -> str:
    """ASCII only: some characters that JSON allows as they are end a line elsewhere."""
    return json.dumps(entry.model_dump(), ensure_ascii=True) + "\n"


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: names of runs that start at one instant may coincide
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def read_record(
    path: str | os.PathLike[str], run: str | None = None, argument: str = "replay_record", reservations: bool = False
) -> list[RecordEntry]:
    """
    :param path: a file that ``RecordWriter`` wrote
    :param run: keep only this run's entries
    :param argument: name of the argument that gave the path, for messages
    :param reservations: also return the lines that only reserve a run's name
    :return: the entries in file order
    :raises RecordError: if the file is missing, too large, or a line is not an entry
    """
    file = Path(path)
    try:
        size = file.stat().st_size
    except OSError:
        raise RecordError(f"{argument}={str(path)!r} does not exist; give the induction.jsonl of an earlier run.") from None
    if size > MAX_RECORD_BYTES:
        raise RecordError(f"{argument}={str(path)!r} has {size} bytes, more than {MAX_RECORD_BYTES}.")
    entries: list[RecordEntry] = []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{argument}={str(path)!r} cannot be read ({error}); give a file of an earlier run.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = RecordEntry.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise RecordError(
                f"{path}, line {number}: not an entry of an induction record ({where}: {first['msg']})."
            ) from None
        if entry.format != FORMAT:
            raise RecordError(f"{path}, line {number}: format {entry.format} is not {FORMAT}; made by another version.")
        if reservations or entry.number != BEGINNING:
            entries.append(entry)
    if run is None:
        return entries
    runs = sorted({entry.run for entry in entries})
    mine = [entry for entry in entries if entry.run == run]
    if not mine:
        raise RecordError(f"{path} holds no calls of run {run!r} (it holds: {', '.join(runs) or 'none'}); set run=.")
    return mine


class RecordedCalls:
    """Answers from a record, each answer at the very step at which it was applied in the recorded run.

    :param path: the record
    :param run: which run of the file
    :raises RecordError: as ``read_record``
    """

    def __init__(self, path: str | os.PathLike[str], run: str) -> None:
        self.path = Path(path)
        # several questions of one round may be asked at one step
        self._entries = {(entry.request_step, entry.number): entry for entry in read_record(path, run)}
        self._request: InductionRequest | None = None
        self._entry: RecordEntry | None = None

    @property
    def busy(self) -> bool:
        """True from ``submit`` until the outcome was handed out."""
        return self._request is not None

    def submit(self, request: InductionRequest) -> None:
        """Look the question up by its step; a question the record does not know never gets an answer, and is warned about."""
        self._request, self._entry = request, self._entries.get((request.step, request.number))
        if self._entry is None:
            self._warn(f"asks at step {request.step}, where {self.path} has no call")
        elif self._entry.prompt_sha256 != prompt_hash(request):
            self._warn(f"asks something else at step {request.step} than {self.path} holds")

    def poll(self, step: int, wait: bool = False) -> Outcome | None:
        """:return: the recorded outcome once ``step`` has reached the step at which it was applied"""
        request, entry = self._request, self._entry
        if request is None or entry is None or entry.applied_step is None or step < entry.applied_step:
            return None
        self._request = self._entry = None
        if entry.failure_cause is not None:
            return Outcome(request, failure=InductionFailure(entry.failure_cause, entry.failure_message or "", entry.seconds))
        return Outcome(
            request,
            reply=InductionReply(
                entry.reply or "",
                entry.model,
                entry.digest,
                entry.seconds,
                entry.prompt_tokens,
                entry.reply_tokens,
                tuple(entry.notes),
                None if entry.rules is None else tuple(entry.rules),
            ),
        )

    def close(self) -> InductionRequest | None:
        """:return: the request that got no answer, None if there was none"""
        request, self._request, self._entry = self._request, None, None
        return request

    def _warn(self, what: str) -> None:
        warn_user(f"the replayed run {what}: seed, settings or versions differ, so it does not reproduce the record.")
