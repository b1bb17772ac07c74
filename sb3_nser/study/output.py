"""All files of a study that are made from its results."""

from __future__ import annotations

import io
import json
from pathlib import Path

from sb3_nser.errors import ConfigurationError
from sb3_nser.study.analysis import Analysis, analyse, diagnostics, evaluations
from sb3_nser.study.load import LoadedStudy
from sb3_nser.study.page import write_page
from sb3_nser.study.runner import Results
from sb3_nser.study.study_page import lead, sections

PAGE = "report.html"


def write_study(loaded: LoadedStudy, results: Results) -> Analysis:
    """
    Write ``evaluations.csv`` and ``.parquet``, ``runs.csv``, ``summary.csv``, ``comparisons.csv``, ``curves.csv``,
    ``diagnostics.csv``, ``versions.json``, ``targets.json`` (if there are targets), ``report.html`` and ``figures/*.png``.

    :param loaded: the study
    :param results: its folder
    :return: what was computed
    :raises ConfigurationError: if no run is finished
    """
    finished = results.finished(loaded.cells)
    failures = results.failures(loaded.cells)
    if not finished:
        raise ConfigurationError(f"{results.folder} holds no finished run of this study; there is nothing to report.")
    table = evaluations(loaded.cells, finished)
    analysis = analyse(loaded, table)
    folder = results.folder
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    _write(folder / "evaluations.parquet", buffer.getvalue())
    frames = {
        "evaluations": table,
        "runs": analysis.runs,
        "summary": analysis.summary,
        "comparisons": analysis.comparisons,
        "curves": analysis.curves,
        "diagnostics": diagnostics(table),
    }
    for name, frame in frames.items():
        _write(folder / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n").encode())
    versions = {key: result["versions"] for key, result in finished.items()}
    kinds = {json.dumps(one, sort_keys=True) for one in versions.values()}
    content = {
        "same_for_all_runs": len(kinds) == 1,
        "versions": json.loads(min(kinds)),
        "runs": {} if len(kinds) == 1 else versions,
    }
    _write(folder / "versions.json", (json.dumps(content, indent=2) + "\n").encode())
    if loaded.study.targets:
        targets = {"command": "sb3-nser compare study.yaml", "study": loaded.study.name, "targets": analysis.targets}
        _write(folder / "targets.json", (json.dumps(targets, indent=2, allow_nan=False) + "\n").encode())
    write_page(
        folder / PAGE,
        f"Study {loaded.study.name}",
        lead(loaded, finished, failures),
        sections(loaded, finished, failures, table, analysis),
    )
    return analysis


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(path.name + ".tmp")
    draft.write_bytes(content)
    draft.replace(path)
