"""What all plots share: drawn without a display and without matplotlib's global state.

Colours are those of Okabe and Ito, which people with colour-blindness can tell apart; line styles, markers
and panels carry the same information.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from coterie.files import write_atomically

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", ":")
GREY = "#777777"
MOST_NAMES = 40  # of peers along an axis
LONGEST_NAME = 24  # characters
_PRINT = 300  # dots per inch


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def line_style(number: int) -> dict[str, Any]:
    """Colour, marker and line of one of many curves: no two of them look alike."""
    return {
        "color": colour_of(number),
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number // len(COLOURS) % len(LINES)],
    }


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def name_peers(axis: Axis, names: Sequence[str]) -> None:
    """The peers' names where numbers would stand, if they have any and there is room for them."""
    if not 0 < len(names) <= MOST_NAMES:
        return
    short = [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names]
    axis.set_ticks(range(len(names)), short, fontsize=7, parse_math=False)
    if isinstance(axis, XAxis):
        axis.set_tick_params(rotation=90)


def save(figure: Figure, path: Path) -> Path:
    """In print quality, written atomically: PNG and SVG, or only the PNG if that is what the path names."""
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)  # once for all formats
    figure.set_layout_engine("none")
    if not path.suffix:
        write_atomically(path.with_suffix(".svg"), _svg(figure))
    write_atomically(path.with_suffix(".png"), _png(figure))
    return path.with_suffix(".png")


def _svg(figure: Figure) -> bytes:
    """Not by `savefig`, which would draw everything once more to look for a layout; so for PNG."""
    content, figure.dpi = io.BytesIO(), _PRINT
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "coterie"}):  # text stays text
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None})
    return content.getvalue()


def _png(figure: Figure) -> bytes:
    content, figure.dpi = io.BytesIO(), _PRINT
    FigureCanvasAgg(figure).print_png(content)
    return content.getvalue()
