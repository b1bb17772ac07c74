"""Fills the benchmark pages from their JSON files when the site is built, so that no table is copied by hand.

A line ``<!-- times replay.json rows=1000000 name=PER -->`` becomes the table of those measurements; ``targets``, ``missed``,
``measured`` and ``rescoring`` work likewise. ``name=!PER`` leaves out what begins with PER.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

from sb3_nser.bench.report import Measurement, Target, targets_table, times_table
from sb3_nser.bench.rescoring import Rescoring

_MARKER = re.compile(r"^<!-- (\w+) ([\w.]+\.json)((?: [^\s=]+=[^\s=]+)*) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs' event: replaces the markers of one page."""
    folder = Path(page.file.abs_src_path).parent

    def fill(found: re.Match[str]) -> str:
        kind, name, options = found[1], found[2], dict(part.split("=") for part in found[3].split())
        if kind not in _KINDS:
            raise PluginError(f"{page.file.src_path}: there is no table {kind!r}; there are {', '.join(_KINDS)}")
        content = json.loads((folder / name).read_text("utf-8"))
        return str(_KINDS[kind](content, options))

    return _MARKER.sub(fill, markdown)


def _times(content: dict[str, Any], options: dict[str, str]) -> str:
    wanted, rows = options.get("name", ""), options.get("rows")
    without = wanted.startswith("!")
    chosen = [
        Measurement(**one)
        for one in content["measurements"]
        if one["name"].startswith(wanted.lstrip("!")) != without and (rows is None or one["rows"] == int(rows))
    ]
    return times_table(chosen, options.get("count", "rows"))


def _targets(content: dict[str, Any]) -> list[Target]:
    return [Target(**{key: value for key, value in one.items() if key != "met"}) for one in content["targets"]]


def _missed(content: dict[str, Any]) -> str:
    missed = [f"{one.name}: {one.value:.3g} (limit {one.limit:g})" for one in _targets(content) if not one.met]
    return f"Not met in this run: {'; '.join(missed)}." if missed else "All targets are met in this run."


def _measured(content: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items() if version)
    machine = content["machine"]
    busy = f"; load average {machine['load_average']:.1f} at the end" if machine.get("load_average") is not None else ""
    peers = [
        f"{name} {one['version']}" if one.get("version") else f"{name} not measured ({one['not_measured']})"
        for name, one in content.get("contenders", {}).items()
        if name not in ("sb3", "numba", "numpy")
    ]
    beside = f" Beside {', '.join(peers)}." if peers else ""
    return (
        f"Measured on {content['date'][:10]} with {versions}, Python {content['python']}, on {machine['cpus']} "
        f"{machine['architecture']} cores{busy}.{beside}"
    )


def _rescoring(content: dict[str, Any]) -> str:
    return "\n\n".join(Rescoring(**one).note() for one in content["rescoring"])


_KINDS: dict[str, Any] = {
    "times": _times,
    "targets": lambda content, _: targets_table(_targets(content)),
    "missed": lambda content, _: _missed(content),
    "measured": lambda content, _: _measured(content),
    "rescoring": lambda content, _: _rescoring(content),
}
