"""How `titanrun data` shows rows, lengths and indexes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from titanrun.cli.plots import svg
from titanrun.cli.plots.axes import Curve, round_step
from titanrun.config.counted import counted

Entry = Mapping[str, Any]
MIB = 1024**2
BINS = 12
BAR = 40
GREEN, DIM, RESET = "\033[32m", "\033[2m", "\033[0m"
# without colour: around what does not count
OPEN, CLOSE = "⟦", "⟧"


def built_lines(found: Sequence[Entry]) -> Iterator[str]:
    """Where the rows of each dataset come from."""
    for entry in found:
        yield f"{entry['section']}.dataset: {counted(entry['rows'], 'row')}, tokenised in {entry['folder']}\n"


def sample_lines(found: Sequence[Entry], *, colour: bool) -> Iterator[str]:
    """The samples of each dataset as text, then its numbers."""
    for entry in found:
        for sample in entry["samples"]:
            yield f"--- {entry['section']} row {sample['row']}\n"
            yield (
                "".join(painted(text, kind, colour=colour) for kind, text in sample["pieces"])
                + "\n"
            )
        yield from summary_lines(entry)
    if any(entry["samples"] for entry in found):
        yield (
            f"{GREEN}counts in the loss{RESET}, {DIM}does not{RESET}\n"
            if colour
            else f"{OPEN}does not count in the loss{CLOSE}\n"
        )


def painted(text: str, kind: str, *, colour: bool) -> str:
    """A piece of a row's text."""
    if kind == "end":
        return "\n"
    if kind == "weight":
        return f"[x {text}]"
    if kind == "filled":
        return f"[filled: {counted(int(text), 'token')}]"
    if kind == "counted":
        return f"{GREEN}{text}{RESET}" if colour else text
    return f"{DIM}{text}{RESET}" if colour else f"{OPEN}{text}{CLOSE}"


def summary_lines(entry: Entry) -> Iterator[str]:
    """The numbers of one dataset."""
    seen = (
        ""
        if entry["looked_at"] == entry["rows"]
        else f" (the first {entry['looked_at']} were looked at)"
    )
    yield f"{entry['section']}.dataset: {counted(entry['rows'], 'row')} of {entry['row_length']} tokens{seen}\n"
    yield f"  {counted(entry['documents'], 'document')} or pieces, the longest {counted(entry['longest'], 'token')}\n"
    yield f"  {100 * entry['filled']:.1f}% of the rows filled, {100 * entry['counted']:.1f}% of the labels count\n"
    yield f"  too long for a row: {entry['left_out']} left out, {entry['cut']} cut\n"
    yield f"  {entry['duplicates']} there more than once"
    yield (
        "\n"
        if entry["in_training"] is None
        else f", {entry['in_training']} in the training data as well\n"
    )
    if entry["without_labels"]:
        yield f"  {counted(entry['without_labels'], 'row')} in which nothing counts\n"


def stats_lines(found: Sequence[Entry]) -> Iterator[str]:
    """Numbers and histograms of each dataset."""
    for entry in found:
        yield from summary_lines(entry)
        for key, title in (
            ("lengths", "tokens of a document"),
            ("counted_of_rows", "labels of a row that count"),
        ):
            yield f"\n  {title}\n"
            yield from (f"  {line}\n" for line in bars(entry[key]))
        yield "\n"


def bins(values: Sequence[int]) -> list[tuple[int, int, int]]:
    """Stretches of equal, round width that hold all values: first, last, and how many values."""
    step = max(1, round(round_step((max(values) + 1) / BINS))) if values else 1
    counts: dict[int, int] = {}
    for value in values:
        counts[value // step] = counts.get(value // step, 0) + 1
    numbers = range(min(counts, default=0), max(counts, default=-1) + 1)
    return [(number * step, (number + 1) * step - 1, counts.get(number, 0)) for number in numbers]


def bars(values: Sequence[int]) -> Iterator[str]:
    """A histogram in lines."""
    found = bins(values)
    most = max((count for _, _, count in found), default=1)
    width = max((len(str(last)) for _, last, _ in found), default=1)
    for first, last, count in found:
        yield f"{first:>{width}} to {last:>{width}}  {'█' * max(round(BAR * count / most), int(count > 0)):<{BAR}}  {count}"


def svg_text(found: Sequence[Entry]) -> str:
    """The lengths of documents as outlines of histograms."""
    curves = []
    for entry in found:
        x: list[float] = []
        y: list[float] = []
        for first, last, count in bins(entry["lengths"]):
            x += [first, first, last + 1, last + 1]
            y += [0, count, count, 0]
        curves.append(Curve(entry["section"], x, y))
    return svg.plot(curves, title="tokens of a document", x_label="tokens")


def index_lines(entry: Entry) -> str:
    """One index on a line, and what is wrong with it below."""
    size = f"{entry['bytes'] / MIB:8.1f} MiB"
    line = f"{entry['name']}  {size}  {entry['source']}\n"
    if entry.get("why"):
        return f"{line}  goes: {entry['why']}\n"
    if entry.get("damage"):
        line += f"  damaged: {entry['damage']}\n"
    return line + "".join(
        f"  '{file}' is gone or has changed since\n" for file in entry.get("changed", ())
    )
