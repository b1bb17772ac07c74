"""What a training run has left in its folder: SB3's logs, the rule book and the record of calls."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sb3_nser.arguments import require_extra
from sb3_nser.errors import ConfigurationError, RecordError, printable
from sb3_nser.induction.record import RecordEntry, read_record
from sb3_nser.rules import Entry
from sb3_nser.rules.files import load_yaml

DEPTH, MAX_FILES = 4, 5_000
NEEDED = (
    "TensorBoard events (DQN(..., tensorboard_log=DIR)) or progress.csv (model.set_logger(configure(DIR, ['csv']))), "
    "rules.yaml (RuleInductionCallback(..., save_rules=DIR/'rules.yaml')) and induction.jsonl (record=DIR/'induction.jsonl')"
)


@dataclass
class Run:
    """
    :param folder: of the run
    :param scalars: tag -> (steps, values)
    :param entries: the rule book
    :param calls: the record
    :param found: what was read, for people
    :param missing: what was not there, and how to get it next time
    """

    folder: Path
    scalars: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    calls: list[RecordEntry] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def read_run(folder: Path) -> Run:
    """
    :param folder: of one training run
    :return: what is there
    :raises ConfigurationError: if nothing is, if there are several runs, or if a file cannot be read
    """
    files = list(_files(folder))
    run = Run(folder)
    _scalars(run, files)
    _rules(run, files)
    _calls(run, files)
    if not run.found:
        raise ConfigurationError(f"{folder} holds no training run. A report is made from {NEEDED}; one of them is enough.")
    return run


def _scalars(run: Run, files: list[Path]) -> None:
    events = sorted({file.parent for file in files if ".tfevents." in file.name})
    tables = [file for file in files if file.name == "progress.csv"]
    places = sorted({*events, *(file.parent for file in tables)})
    if len(places) > 1:
        names = ", ".join(str(place.relative_to(run.folder)) for place in places[:8])
        raise ConfigurationError(f"{run.folder} holds {len(places)} runs ({names}); name the folder of one.")
    if tables:
        run.scalars = _from_csv(tables[0])
        run.found.append(_name(run, tables[0]))
    elif events:
        require_extra("tensorboard", "tensorboard", "study", "reading TensorBoard events")
        run.scalars = _from_events(events[0])
        run.found.append(f"TensorBoard events in {_name(run, events[0])}")
    else:
        run.missing.append(
            "No logs, so no curves: train with tensorboard_log=DIR, or model.set_logger(configure(DIR, ['csv']))."
        )


def _rules(run: Run, files: list[Path]) -> None:
    books = [file for file in files if file.name == "rules.yaml"]
    if not books:
        run.missing.append("No rules.yaml, so no rules: give the callback save_rules='DIR/rules.yaml'.")
        return
    if len(books) > 1:
        raise ConfigurationError(f"{run.folder} holds {len(books)} files rules.yaml; name the folder of one run.")
    try:
        run.entries = load_yaml(books[0].read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{books[0]} cannot be read: {printable(error, 120)}.") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{books[0]}: {error}") from None
    run.found.append(_name(run, books[0]))


def _calls(run: Run, files: list[Path]) -> None:
    records = [file for file in files if file.name == "induction.jsonl"]
    beside = run.folder.resolve().parent / "induction.jsonl"  # where the demo keeps the calls of all its runs
    try:
        if records:
            run.calls = read_record(records[0], argument="record")
            run.found.append(_name(run, records[0]))
        elif beside.is_file() and run.found:
            run.calls = read_record(beside, run.folder.resolve().name, argument="record")
            run.found.append("induction.jsonl beside the folder")
        else:
            run.missing.append("No induction.jsonl, so no calls: give the callback record='DIR/induction.jsonl'.")
    except RecordError as error:
        if records:
            raise ConfigurationError(str(error)) from None
        run.missing.append("The induction.jsonl beside the folder is about other runs.")
    if len({call.run for call in run.calls}) > 1:
        run.missing.append(f"The record holds several runs; the calls of {run.calls[-1].run!r}, the last one, are shown.")
        run.calls = [call for call in run.calls if call.run == run.calls[-1].run]


def _from_csv(file: Path) -> dict[str, tuple[list[float], list[float]]]:
    found: dict[str, tuple[list[float], list[float]]] = {}
    step = 0.0
    try:
        with file.open(newline="", encoding="utf-8") as handle:
            for row in csv.DictReader(handle):
                at = _float(row.get("time/total_timesteps"))
                step = step if at is None else at
                for tag, text in row.items():
                    value = _float(text)
                    if value is not None and tag:
                        steps, values = found.setdefault(tag, ([], []))
                        steps.append(step)
                        values.append(value)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"{file} cannot be read: {printable(error, 120)}.") from None
    return found


def _from_events(folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 5_000})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        points = [(float(one.step), float(one.value)) for one in events.Scalars(tag) if math.isfinite(one.value)]
        if points:
            found[tag] = ([step for step, _ in points], [value for _, value in points])
    return found


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for place, folders, names in os.walk(folder):
        here = Path(place)
        deep = len(here.relative_to(folder).parts) >= DEPTH
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            count += 1
            if count > MAX_FILES:
                raise ConfigurationError(f"{folder} holds more than {MAX_FILES} files; name the folder of one run.")
            yield here / name


def _float(text: object) -> float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _name(run: Run, path: Path) -> str:
    name = str(path.relative_to(run.folder))
    return "the folder itself" if name == "." else name
