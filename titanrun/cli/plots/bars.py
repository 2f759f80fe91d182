"""Horizontal bars as an SVG file."""

from collections.abc import Mapping
from xml.sax.saxutils import escape

from titanrun.cli.plots.svg import COLORS, DARK_STYLE, TEXT_COLOR

WIDTH, BAR, GAP, TOP, MARGIN = 720, 22, 10, 40, 16
CHARACTER_WIDTH = 7.5


def plot_bars_svg(shares: Mapping[str, float], *, title: str) -> str:
    """Return the text of an SVG file with a bar for each name; shares are in [0, 1]."""
    left = MARGIN + CHARACTER_WIDTH * max(map(len, shares), default=0)
    # room for the number behind the longest bar
    length = WIDTH - left - MARGIN - 6 * CHARACTER_WIDTH
    height = TOP + len(shares) * (BAR + GAP) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13" fill="{TEXT_COLOR}">',
        f"<style>{DARK_STYLE}</style>",
        f'<text x="{MARGIN}" y="24" font-size="15">{escape(title)}</text>',
    ]
    for index, (name, share) in enumerate(shares.items()):
        top = TOP + index * (BAR + GAP)
        end = left + 8 + length * share
        parts += [
            f'<text x="{left:.1f}" y="{top + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left + 8:.1f}" y="{top}" width="{length * share:.1f}" height="{BAR}" '
            f'class="b1" fill="{COLORS[0]}"/>',
            f'<text x="{end + 6:.1f}" y="{top + 15}">{share:.3f}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
