"""Output of `titanrun data`: sequences, lengths and indexes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from titanrun.cli.plots import svg
from titanrun.cli.plots.axes import PlotCurve, compute_round_step
from titanrun.config.pluralize import pluralize

DataEntry = Mapping[str, Any]
MIB = 1024**2
NUM_BINS = 12
BAR_WIDTH = 40
GREEN, DIM, RESET = "\033[32m", "\033[2m", "\033[0m"
# without color: brackets around text that is in the loss
OPEN, CLOSE = "⟦", "⟧"


def iter_build_lines(found: Sequence[DataEntry]) -> Iterator[str]:
    """Yield the location of the tokenized sequences of each dataset, and what was repaired."""
    for entry in found:
        if "part" in entry:
            number, count = entry["part"]
            yield f"part {number} of {count}: {pluralize(entry['units'], 'unit')} tokenized\n"
            continue
        if "repaired" in entry:
            repaired = entry["repaired"]
            yield f"{repaired['name']}: repaired, {repaired['source']}\n"
            continue
        if entry["rows"] is None:
            yield f"{entry['section']}.dataset: a stream, tokenized while the run trains\n"
            continue
        sequences = pluralize(entry["rows"], "sequence")
        folder = entry["folder"]
        done = "nothing to tokenize" if folder is None else f"tokenized in {folder}"
        yield f"{entry['section']}.dataset: {sequences}, {done}\n"


def iter_sample_lines(found: Sequence[DataEntry], *, use_color: bool) -> Iterator[str]:
    """Yield the samples of each dataset as text, then its statistics."""
    if any(entry["samples"] for entry in found):
        counted = format_loss_chunk("in the loss", "counted", use_color=use_color)
        context = format_loss_chunk("not in the loss", "context", use_color=use_color)
        yield f"{counted}, {context}\n"
    for entry in found:
        for sample in entry["samples"]:
            yield f"--- {entry['section']} sequence {sample['row']}\n"
            yield (
                "".join(
                    format_loss_chunk(text, kind, use_color=use_color)
                    for kind, text in sample["pieces"]
                )
                + "\n"
            )
        yield from iter_summary_lines(entry)


def format_loss_chunk(text: str, kind: str, *, use_color: bool) -> str:
    """Format a piece of a sequence's text."""
    if kind == "end":
        return "\n"
    if kind == "weight":
        return f"[x {text}]"
    if kind == "label":
        return f"[{text}]"
    if kind == "unended":
        return "[no end of turn]"
    if kind == "filled":
        return f"[padding: {pluralize(int(text), 'token')}]"
    if kind == "counted":
        return f"{GREEN}{text}{RESET}" if use_color else f"{OPEN}{text}{CLOSE}"
    return f"{DIM}{text}{RESET}" if use_color else text


def iter_summary_lines(entry: DataEntry) -> Iterator[str]:
    """Yield the statistics of one dataset."""
    seen = (
        ""
        if entry["looked_at"] == entry["rows"]
        else f" (the first {entry['looked_at']} were inspected)"
    )
    sequences = pluralize(entry["rows"], "sequence")
    if entry["is_stream"]:
        sequences = f"the first {sequences} of a stream,"
    yield f"{entry['section']}.dataset: {sequences} of {entry['row_length']:,} tokens{seen}\n"
    longest = pluralize(entry["longest"], "token")
    yield f"  {pluralize(entry['documents'], 'document')} or pieces, longest {longest}\n"
    filled, counted = 100 * entry["filled"], 100 * entry["counted"]
    yield f"  {filled:.1f}% non-padding, {counted:.1f}% of the labels in the loss\n"
    # of a stream, only what is kept is known here
    if entry["is_stream"]:
        yield "  left out by filters, as too long, or in bad records and files: not counted\n"
    else:
        yield f"  longer than a sequence: {entry['left_out']} dropped, {entry['cut']} truncated\n"
    yield f"  {format_duplicates(entry)}\n"
    if entry["without_end"]:
        replies = pluralize(entry["replies"], "reply", "replies")
        yield f"  {entry['without_end']} of {replies} without the end of the turn in the loss\n"
    if entry["without_labels"]:
        yield f"  {pluralize(entry['without_labels'], 'sequence')} without labels in the loss\n"


def format_duplicates(entry: DataEntry) -> str:
    """Format how many documents are there twice, and among which sequences they were looked for."""
    if entry["duplicates"] is None:
        return "duplicates not counted: a global batch reads the data more than once"
    text = f"{entry['duplicates']} duplicates"
    if entry["is_stream"] or entry["looked_at"] != entry["rows"]:
        text += f" in the first {pluralize(entry['looked_at'], 'sequence')}"
    if entry["in_training"] is None:
        return text
    first = entry["training_looked_at"]
    part = "" if first is None else f"the first {pluralize(first, 'sequence')} of "
    return f"{text}, {entry['in_training']} also in {part}the training data"


def iter_stats_lines(found: Sequence[DataEntry]) -> Iterator[str]:
    """Yield statistics and histograms of each dataset."""
    for entry in found:
        yield from iter_summary_lines(entry)
        for key, title in (
            ("lengths", "tokens per document"),
            ("counted_of_rows", "labels in the loss per sequence"),
        ):
            yield f"\n  {title}\n"
            yield from (f"  {line}\n" for line in iter_histogram_lines(entry[key]))
        yield "\n"


def compute_histogram_bins(values: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return bins of equal round width that cover all values: first, last, count."""
    step = max(1, round(compute_round_step((max(values) + 1) / NUM_BINS))) if values else 1
    counts: dict[int, int] = {}
    for value in values:
        counts[value // step] = counts.get(value // step, 0) + 1
    numbers = range(min(counts, default=0), max(counts, default=-1) + 1)
    return [(number * step, (number + 1) * step - 1, counts.get(number, 0)) for number in numbers]


def iter_histogram_lines(values: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a histogram."""
    found = compute_histogram_bins(values)
    most = max((count for _, _, count in found), default=1)
    width = max((len(str(last)) for _, last, _ in found), default=1)
    for first, last, count in found:
        bar = "█" * max(round(BAR_WIDTH * count / most), int(count > 0))
        yield f"{first:>{width}} to {last:>{width}}  {bar:<{BAR_WIDTH}}  {count}"


def plot_length_histogram(found: Sequence[DataEntry]) -> str:
    """Plot the lengths of documents as outlines of histograms."""
    curves = []
    for entry in found:
        x: list[float] = []
        y: list[float] = []
        for first, last, count in compute_histogram_bins(entry["lengths"]):
            x += [first, first, last + 1, last + 1]
            y += [0, count, count, 0]
        curves.append(PlotCurve(entry["section"], x, y))
    return svg.plot_svg(curves, title="tokens per document", x_label="tokens")


def format_token_index(entry: DataEntry) -> str:
    """Format one index on a line, with its problems below."""
    size = f"{entry['bytes'] / MIB:8.1f} MiB"
    line = f"{entry['name']}  {size}  {entry['source']}\n"
    if entry.get("why"):
        return f"{line}  removable: {entry['why']}\n"
    if entry.get("damage"):
        line += f"  damaged: {entry['damage']}\n"
    return line + "".join(
        f"  '{file}' is missing or has changed since\n" for file in entry.get("changed", ())
    )
