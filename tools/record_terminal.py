"""Record commands in a terminal and write them as an animated SVG.

The commands run in a pseudo-terminal; pyte replays what they wrote. Waiting is shortened.

Usage: python tools/record_terminal.py SCRIPT PICTURE.svg "TITLE" "DESCRIPTION"

Each line of the script is typed at a prompt and run by bash, in a temporary folder.
"""

import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from fcntl import ioctl
from html import escape
from pathlib import Path
from termios import TIOCSWINSZ

import pyte

COLUMNS, LINES = 100, 22
MAX_SECONDS = 14.0
# a pause that a reader notices, and the longest one that is shown
MIN_FRAME_SECONDS, MAX_PAUSE_SECONDS = 0.35, 1.2
LAST_FRAME_SECONDS = 4.0
CELL_WIDTH, CELL_HEIGHT = 7.8, 17
STYLE = """
svg { background: #ffffff; }
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328;
  white-space: pre; }
.b { font-weight: bold; } .red { fill: #cf222e; } .green { fill: #1a7f37; }
.yellow { fill: #9a6700; } .blue { fill: #0969da; } .cyan { fill: #1b7c83; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; } text { fill: #e6edf3; } .red { fill: #ff7b72; }
  .green { fill: #3fb950; } .yellow { fill: #d29922; } .blue { fill: #79c0ff; }
  .cyan { fill: #76e3ea; }
}
"""


@dataclass(frozen=True)
class Frame:
    """What the screen shows from a time on: each line as runs of text with classes."""

    time: float
    lines: tuple[tuple[tuple[str, str], ...], ...]


def record(script: str, folder: Path) -> list[tuple[float, bytes]]:
    """Run the lines of a script in a pseudo-terminal, and return what they wrote and when."""
    written: list[tuple[float, bytes]] = []
    now = 0.0
    for line in filter(None, script.splitlines()):
        written.append((now, f"\x1b[1m$\x1b[0m {line}\r\n".encode()))
        now += 0.8
        for seconds, data in run_in_terminal(line, folder):
            written.append((now + seconds, data))
        now = written[-1][0] + 0.6
    return written


def run_in_terminal(line: str, folder: Path) -> list[tuple[float, bytes]]:
    """Run one line, and return its output with the seconds since its start."""
    main, worker = pty.openpty()
    ioctl(worker, TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "HOME": str(folder)}
    start = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        stdin=worker,
        stdout=worker,
        stderr=worker,
        env=environment,
        start_new_session=True,
    )
    os.close(worker)
    found = []
    while True:
        ready, _, _ = select.select([main], [], [], 0.1)
        if ready:
            try:
                data = os.read(main, 65536)
            except OSError:  # Linux reports the end of the other side so
                break
            if not data:
                break
            found.append((time.monotonic() - start, data))
        elif process.poll() is not None:
            break
    process.wait()
    os.close(main)
    return found or [(0.0, b"")]


def replay(written: list[tuple[float, bytes]]) -> list[Frame]:
    """Return the screens that a reader can tell apart, with pauses shortened."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    frames: list[Frame] = []
    shown, before = 0.0, 0.0
    for seconds, data in written:
        shown += min(seconds - before, MAX_PAUSE_SECONDS)
        before = seconds
        stream.feed(data)
        lines = tuple(read_line(screen, row) for row in range(LINES))
        if not frames or frames[-1].lines != lines:
            frames.append(Frame(shown, lines))
    faster = max(1.0, frames[-1].time / MAX_SECONDS)
    kept: list[Frame] = []
    for frame in frames:
        at = frame.time / faster
        if kept and at - kept[-1].time < MIN_FRAME_SECONDS:
            at = kept.pop().time
        kept.append(Frame(at, frame.lines))
    return kept


def read_line(screen: pyte.Screen, row: int) -> tuple[tuple[str, str], ...]:
    """Return the runs of equal style in a line."""
    runs: list[tuple[str, str]] = []
    for column in range(COLUMNS):
        cell = screen.buffer[row][column]
        color = cell.fg if cell.fg in ("red", "green", "blue", "cyan") else ""
        color = "yellow" if cell.fg == "brown" else color
        style = " ".join(filter(None, [color, "b" if cell.bold else ""]))
        if runs and runs[-1][1] == style:
            runs[-1] = (runs[-1][0] + cell.data, style)
        else:
            runs.append((cell.data, style))
    while runs and not runs[-1][0].strip():
        runs.pop()
    return tuple(runs)


def draw(frames: list[Frame], title: str, description: str, command: str) -> str:
    """Draw the frames, each visible from its time to that of the next; the last one stays."""
    total = frames[-1].time + LAST_FRAME_SECONDS
    width, height = round(COLUMNS * CELL_WIDTH) + 20, LINES * CELL_HEIGHT + 20
    style, groups = [STYLE], []
    for number, frame in enumerate(frames):
        is_last = number == len(frames) - 1
        start = 100 * frame.time / total
        end = 100.0 if is_last else 100 * frames[number + 1].time / total
        steps = f"0% {{visibility: hidden}} {start:.2f}% {{visibility: visible}} "
        steps += "" if is_last else f"{end:.2f}% {{visibility: hidden}} "
        last = "visible" if is_last else "hidden"
        style.append(f"@keyframes f{number} {{ {steps}100% {{visibility: {last}}} }}")
        style.append(f".f{number} {{ visibility: {last};")
        style.append(f"  animation: f{number} {total:.1f}s step-end infinite; }}")
        groups.append(f'<g class="f{number}">{"".join(draw_lines(frame))}</g>')
    style.append("@media (prefers-reduced-motion: reduce) { g { animation: none !important; } }")
    return (
        f"<!-- made by: {escape(command)} -->\n"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-labelledby="title desc">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>\n'
        + "\n".join(["<style>", *style, "</style>"])
        + "\n"
        + "\n".join(groups)
        + "\n</svg>\n"
    )


def draw_lines(frame: Frame) -> list[str]:
    """Draw the lines of one screen."""
    found = []
    for row, runs in enumerate(frame.lines):
        spans = "".join(
            f'<tspan class="{style}">{escape(text)}</tspan>' if style else escape(text)
            for text, style in runs
        )
        if spans:
            found.append(f'<text x="10" y="{(row + 1) * CELL_HEIGHT + 4}">{spans}</text>')
    return found


def main() -> None:
    """Record the script into the picture."""
    script, picture, title, description = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="titanrun-") as name:
        written = record(Path(script).read_text(encoding="utf-8"), Path(name))
    text = draw(replay(written), title, description, "make pictures")
    Path(picture).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
