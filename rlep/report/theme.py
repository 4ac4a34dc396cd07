"""How every chart looks: one palette per background, quiet axes, text as large as the page's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import FigureBase


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours for one background."""

    name: str
    background: str
    ink: str
    faint: str
    grid: str
    baseline: str
    rlep: str
    controls: tuple[str, ...]
    phases: dict[str, str]
    """Colour of each part of a step."""
    failed: str
    """A group without any success, and …"""
    middle: str
    solved: str
    """… one that succeeds always; the shades between run through ``middle``."""


LIGHT = Theme(
    name="light",
    background="#ffffff",
    ink="#1f2430",
    faint="#697082",
    grid="#e6e8ee",
    baseline="#5b6b8c",
    rlep="#e4572e",
    controls=("#2a9d8f", "#8e6bbf", "#b58900", "#3f88c5", "#7a8450"),
    phases={
        "generate": "#3f88c5",
        "verify": "#8e6bbf",
        "replay": "#e4572e",
        "score": "#f2b134",
        "update": "#2a9d8f",
        "publish": "#8d99ae",
        "other": "#d9dce3",
    },
    failed="#c8553d",
    middle="#f6e7c1",
    solved="#2a7f78",
)

DARK = Theme(
    name="dark",
    background="#14171f",
    ink="#e8eaf0",
    faint="#99a1b3",
    grid="#2a2f3b",
    baseline="#9fb0d4",
    rlep="#ff7a52",
    controls=("#4cc3b4", "#b79be0", "#e0b84c", "#6fb1e8", "#a9b56f"),
    phases={
        "generate": "#5aa0dc",
        "verify": "#a886d6",
        "replay": "#ff7a52",
        "score": "#f2bd55",
        "update": "#3fb5a6",
        "publish": "#7f8aa0",
        "other": "#3a404e",
    },
    failed="#d9694f",
    middle="#5a5444",
    solved="#3fa79d",
)


def rc(theme: Theme) -> dict[str, object]:
    """matplotlib's settings for a theme; the same input always gives the same bytes."""
    return {
        "figure.facecolor": theme.background,
        "savefig.facecolor": theme.background,
        "axes.facecolor": theme.background,
        "axes.edgecolor": theme.faint,
        "axes.labelcolor": theme.faint,
        "axes.titlecolor": theme.ink,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 8,
        "axes.labelsize": 9,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "text.color": theme.ink,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "ytick.left": False,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "legend.labelcolor": theme.ink,
        "lines.solid_capstyle": "round",
        "font.family": ["DejaVu Sans"],
        "figure.constrained_layout.h_pad": 0.09,
        "figure.constrained_layout.w_pad": 0.09,
        "text.parse_math": False,  # names from a run are text, also with a dollar sign
        "svg.hashsalt": "rlep",
    }


def empty(figure: FigureBase, theme: Theme, title: str, why: str) -> None:
    """A panel that says why there is nothing to see."""
    axes = figure.subplots()
    axes.set_title(title)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.text(0.5, 0.5, why, ha="center", va="center", color=theme.faint, transform=axes.transAxes)


def per_cent(axes: Axes, label: str) -> None:
    """A y axis of shares, shown in per cent."""
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylabel(label)
