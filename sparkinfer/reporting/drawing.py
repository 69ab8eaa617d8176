"""The sheet that figures are drawn on, and how one becomes part of a page.

Runs on: driver; needs matplotlib, but neither pyplot nor a display.

Invariant: a sheet is drawn the same whatever style the user's own matplotlib has, and that style is left as it was.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np

from sparkinfer.exceptions import MissingDependencyError
from sparkinfer.reporting.words import STAGE_COLOURS, STAGE_WORDS, plain

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

try:
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch, PathPatch, Rectangle
    from matplotlib.path import Path
except ImportError as error:
    msg = "the package 'matplotlib' is not installed here, and figures are drawn with it: pip install 'sparkinfer[report]'"
    raise MissingDependencyError(msg) from error

__all__ = [
    "GRID",
    "INK",
    "PAPERS",
    "Axes",
    "Drawing",
    "Line2D",
    "Paper",
    "Rectangle",
    "blocks",
    "drawn",
    "legend_at",
    "legend_of_stages",
    "place",
    "sheet",
    "stacked",
    "svg",
]

INK = "#7a818c"
"""Text and axes: legible on white and on near-black; a page puts its own colour in this one's place."""

GRID = "#9aa1ab55"

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": False,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "path.simplify": True,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: it is found, read aloud, and set in the page's own font
    "svg.hashsalt": "sparkinfer",
    "text.color": INK,
    "text.parse_math": False,  # a host may be called $x_1$
    "xtick.color": INK,
    "xtick.labelsize": 8,
    "xtick.major.size": 3,
    "xtick.major.width": 0.6,
    "ytick.color": INK,
    "ytick.labelsize": 8,
    "ytick.major.size": 0,
}
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_SERIF_FREE = re.compile(r"font-family:[^;]*;?|font-variant:[^;]*;?|font-stretch:[^;]*;?")


@dataclass(frozen=True)
class Paper:
    """What a figure is drawn for.

    Attributes:
        width: inches.
        narrow: a telephone's width: fewer ticks, shorter words, legends of more lines.
    """

    width: float
    narrow: bool


PAPERS = {"wide": Paper(10.4, narrow=False), "narrow": Paper(4.4, narrow=True)}


@dataclass(frozen=True)
class Drawing:
    """A figure and what to say about it.

    Attributes:
        figure: drawn.
        title: a few words.
        caption: one sentence on how to read it, and what was thinned out.
        notes: by ``gid`` of an artist, what a pointer resting on it is told.
    """

    figure: Figure
    title: str
    caption: str
    notes: Mapping[str, str] = field(default_factory=dict)


class _Sheet(Figure):
    """A figure that notebooks show by itself, whether or not pyplot was ever imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with drawn():
            self.savefig(buffer, format="png", dpi=144)
        return buffer.getvalue()


@contextmanager
def drawn() -> Iterator[None]:
    """Draw or save inside this block: in our style, and without a warning for a letter that the measuring font lacks."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(?s).*[Gg]lyph.*missing")
        yield


def sheet(paper: Paper, height: float) -> Figure:
    """Take an empty sheet of this height in inches."""
    figure = _Sheet(figsize=(paper.width, height))
    FigureCanvasAgg(figure)
    return figure


def place(figure: Figure, left: float, top: float, right: float, height: float) -> Axes:
    """Put axes on a sheet, in inches from its left, top and right edges."""
    width, whole = figure.get_size_inches()
    return figure.add_axes((left / width, 1 - (top + height) / whole, (width - left - right) / width, height / whole))


def blocks(axes: Axes, x: ArrayLike, y: ArrayLike, width: ArrayLike, height: ArrayLike, colour: str) -> None:
    """Draw many rectangles as one path: a page of 5,000 partitions stays small."""
    sides = np.broadcast_arrays(*(np.atleast_1d(np.asarray(side, dtype=np.float64)) for side in (x, y, width, height)))
    left, bottom, wide, high = (side[(sides[2] > 0) & (sides[3] > 0)] for side in sides)
    if not len(left):
        return
    corners_x = np.stack([left, left + wide, left + wide, left, left], axis=1)
    corners_y = np.stack([bottom, bottom, bottom + high, bottom + high, bottom], axis=1)
    vertices = np.stack([corners_x, corners_y], axis=2).reshape(-1, 2)
    codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(left))
    axes.add_patch(PathPatch(Path(vertices, codes), facecolor=colour, edgecolor="none", linewidth=0))


def stacked(axes: Axes, x: ArrayLike, width: ArrayLike, parts: Mapping[str, ArrayLike]) -> None:
    """Draw columns of one part for each stage, the first stage lowest."""
    floor = np.zeros_like(np.asarray(x, dtype=np.float64))
    for stage, part in parts.items():
        heights = np.asarray(part, dtype=np.float64)
        blocks(axes, x, floor, width, heights, STAGE_COLOURS[stage])
        floor = floor + heights


def legend_of_stages(figure: Figure, paper: Paper, seconds: Mapping[str, float]) -> float:
    """Name the stages' colours at the top, those that took at least a two-hundredth; give the inches that it needs."""
    total = sum(seconds.values())
    told = [stage for stage in STAGE_COLOURS if total > 0 and seconds.get(stage, 0.0) / total >= 0.005]
    handles = [Patch(facecolor=STAGE_COLOURS[stage], label=STAGE_WORDS[stage]) for stage in told]
    return legend_at(figure, paper, handles, 0.0, 0.03) + 0.03


def legend_at(figure: Figure, paper: Paper, handles: Sequence[Any], left: float, top: float, columns: int | None = None) -> float:
    """Put a legend, in inches from the left and the top; give its height in inches."""
    if not handles:
        return 0.0
    columns = columns or (3 if paper.narrow else 7)
    width, whole = figure.get_size_inches()
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(left / width, 1 - top / whole),
        ncol=columns,
        borderaxespad=0,
        borderpad=0,
        handlelength=1.0,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.4,
    )
    return 0.19 * -(-len(handles) // columns)


def svg(drawing: Drawing, prefix: str) -> str:
    """Write a figure as an element that can stand inside an HTML page.

    Ids are made the page's own, the font is left to the page, ink becomes the page's ``--ink-soft``, and everything that the figure
    says is a text node written by the XML library, so that no name can become markup.

    Args:
        drawing: what ``draw`` made.
        prefix: unique in the page; letters and digits.
    """
    buffer = io.StringIO()
    with drawn():
        drawing.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())  # noqa: S314 - what matplotlib has just written
    _strip(root)
    for element in root.iter():
        _make_the_pages_own(element, prefix)
        note = drawing.notes.get(element.get("id", "").removeprefix(f"{prefix}-"))
        if note is not None:
            told = ET.Element("title")
            told.text = plain(note)
            element.insert(0, told)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", drawing.title)
    return ET.tostring(root, encoding="unicode")


def _strip(element: ET.Element) -> None:
    """Take out the metadata, the style sheet (inside a page it would be all the page's) and the namespaces (HTML knows them)."""
    element.tag = element.tag.rpartition("}")[2]
    for child in list(element):
        if child.tag.rpartition("}")[2] in {"metadata", "style"}:
            element.remove(child)
        else:
            _strip(child)
    for name, value in list(element.attrib.items()):
        if "}" in name:
            del element.attrib[name]
            element.set(name.rpartition("}")[2], value)


def _make_the_pages_own(element: ET.Element, prefix: str) -> None:
    for name, value in list(element.attrib.items()):
        changed = value
        if name == "id":
            changed = f"{prefix}-{value}"
        elif name == "href":
            changed = f"#{prefix}-{value.removeprefix('#')}"
        elif name == "clip-path":
            changed = value.replace("url(#", f"url(#{prefix}-")
        elif name in {"d", "x", "y", "transform"}:
            changed = _NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value).replace("\n", "")
        elif name == "style":
            changed = _SERIF_FREE.sub("", value).replace(INK, "var(--ink-soft)").strip()
        element.set(name, changed)
