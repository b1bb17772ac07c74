"""One HTML page without anything from elsewhere: sections of text, tables and pictures."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from sb3_nser.study import figures


@dataclass(frozen=True)
class Text:
    """A paragraph; ``strong`` makes it stand out."""

    text: str
    strong: bool = False
    kind: str = "text"


@dataclass(frozen=True)
class Table:
    """
    :param head: names of the columns
    :param rows: cells; the first of a row names it
    :param caption: above the table
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    kind: str = "table"


@dataclass(frozen=True)
class Picture:
    """
    :param figure: what is drawn
    :param alt: the same in words, for those who do not see it
    :param file: name of the PNG beside the page, without ending
    """

    figure: Figure
    alt: str
    file: str


@dataclass(frozen=True)
class Pictures:
    """Pictures side by side where there is room."""

    pictures: Sequence[Picture]
    kind: str = "pictures"


@dataclass(frozen=True)
class Items:
    """A list; with ``code`` every item is set as a command or a rule."""

    items: Sequence[str]
    code: bool = False
    kind: str = "items"


@dataclass(frozen=True)
class Details:
    """Blocks that are shown when somebody asks for them."""

    summary: str
    blocks: Sequence[Block]
    kind: str = "details"


Block = Text | Table | Pictures | Items | Details


@dataclass
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Name of the place in the page."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section]) -> list[Path]:
    """
    :param path: the HTML file; PNG files go into a folder ``figures`` beside it
    :param title: of the page
    :param lead: one or two sentences below it
    :param sections: the rest
    :return: all files that were written
    """
    folder = path.parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def source(picture: Picture) -> str:
        target = folder / f"{picture.file}.png"
        target.write_bytes(figures.png(picture.figure))
        written.append(target)
        return "data:image/svg+xml;base64," + base64.b64encode(figures.svg(picture.figure).encode()).decode()

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sb3_nser.study", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    html = environment.get_template("page.html").render(title=title, lead=lead, sections=sections, source=source)
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(html, encoding="utf-8")
    draft.replace(path)
    return [path, *written]


def number(value: Any, digits: int = 3) -> str:
    """:return: a number for a table, a dash for none"""
    if value is None or value != value:
        return "–"
    if isinstance(value, int) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def with_interval(value: Any, low: Any, high: Any) -> str:
    """:return: ``0.52 [0.41, 0.60]``"""
    if low is None or low != low:
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"
