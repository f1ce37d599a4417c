"""The style of all figures, a canvas without a display, and how figures are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from surerag.extras import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "legend.frameon": False,
    "svg.fonttype": "path",
    # Without a fixed salt and date, two runs give different files.
    "svg.hashsalt": "surerag",
    # A system may be called "$5 reranker": names are not mathematics.
    "text.parse_math": False,
}


def canvas(title: str, *, width: float = 6.4, height: float = 4.8) -> tuple[Figure, Axes]:
    """Return a figure of one pair of axes under a title; sizes in inches."""
    figure, [axes] = canvases(width, height)
    axes.set_title(title)
    return figure, axes


def canvases(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of several axes beside each other; sizes in inches."""
    # A Figure of its own canvas touches no global state and needs no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def write_figures(
    found: T, drawings: Mapping[str, Callable[[T], Figure]], directory: Path
) -> tuple[Path, ...]:
    """Draw and write figures as SVG and PNG; missing folders are made.

    Args:
        found: What is drawn.
        drawings: What draws it, by the name of the file.
        directory: Where to.

    Returns:
        The SVG files, in the order of the drawings.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    with extra("report"):
        import matplotlib as mpl

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # the stubs want literal keys
        for name, draw in drawings.items():
            figure = draw(found)
            figure.savefig(directory / f"{name}.png", dpi=160)
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
            written.append(directory / f"{name}.svg")
    return tuple(written)
