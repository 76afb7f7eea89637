"""The outcome of a run as one picture: a bar per row, how many times faster (or smaller) than the best rival."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from perf.report import Row

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "compare.svg"
_WIDTH, _LEFT, _ROW, _TOP = 900, 360, 30, 70
_LOWEST, _HIGHEST = 1 / 16, 64  # of the axis, which is logarithmic


def draw(rows: Sequence[Row], subtitle: str) -> str:
    """SVG. Bars to the right of the middle line: ahead of the best rival; to the left: behind."""
    height = _TOP + _ROW * len(rows) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="20" y="28" font-size="17" font-weight="600" fill="#1a1a1a">topicsd next to the best rival</text>',
        f'<text x="20" y="48" fill="#666666">{escape(subtitle)}</text>',
    ]
    for factor in (1 / 16, 1 / 4, 1, 4, 16, 64):
        x = _x(factor)
        shown = f"{factor:g} x" if factor >= 1 else f"1/{round(1 / factor)}"
        color, width = ("#333333", 1.5) if factor == 1 else ("#dddddd", 1)
        parts.append(
            f'<line x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{height - 36}" stroke="{color}" stroke-width="{width}"/>'
            f'<text x="{x}" y="{height - 18}" text-anchor="middle" fill="#666666">{shown}</text>'
        )
    for number, row in enumerate(rows):
        parts += _bar(row, _TOP + _ROW * number)
    parts.append("</svg>\n")
    return "\n".join(parts)


def _x(factor: float) -> float:
    share = math.log(factor / _LOWEST) / math.log(_HIGHEST / _LOWEST)
    return round(_LEFT + min(1.0, max(0.0, share)) * (_WIDTH - _LEFT - 70), 1)


def _bar(row: Row, y: int) -> list[str]:
    ahead = 1 / row["ratio"] if row["lower_is_better"] else row["ratio"]
    start, end = sorted((_x(1), _x(ahead)))
    color = "#9aa5b1" if row["met"] is None else "#2f855a" if row["met"] else "#c05621"
    parts = [
        f'<text x="{_LEFT - 12}" y="{y + 15}" text-anchor="end" fill="#1a1a1a">{escape(row["work"])}</text>',
        f'<rect x="{start}" y="{y + 3}" width="{max(2.0, round(end - start, 1))}" height="16" rx="2" fill="{color}"/>',
        f'<text x="{end + 6}" y="{y + 15}" fill="#1a1a1a">{ahead:.2g} x</text>',
    ]
    if row["aim"] is not None:
        aim = _x(1 / row["aim"] if row["lower_is_better"] else row["aim"])
        parts.append(
            f'<line x1="{aim}" y1="{y}" x2="{aim}" y2="{y + 22}" stroke="#1a1a1a" stroke-dasharray="3 2"/>'
        )
    return parts


def save_picture(rows: Sequence[Row], subtitle: str) -> Path:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(rows, subtitle))
    return PICTURE
