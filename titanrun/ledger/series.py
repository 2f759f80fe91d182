"""One metric of a run over its steps, its tokens or its time, read fast: runs log hundreds of thousands of lines."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from titanrun.components.metrics.jsonl import read_metrics
from titanrun.config.problems import fail
from titanrun.config.suggest import closest, listing

X = Literal["step", "tokens", "time"]
TOKENS, STEP_SECONDS = "tokens_seen", "time/step_seconds"
# how a line begins that MetricsFile wrote: only such are read without a JSON parser
BEGINNING = '{"step": '
NUMBER = r"[-+.\deE]+|nan|-?inf"


@dataclass(frozen=True, slots=True)
class Series:
    """Values by an ascending x."""

    x: Sequence[float]
    y: Sequence[float]


def read_series(path: Path, metric: str, x: X) -> Series:
    """A metric of metrics.jsonl; of several lines of one step the last counts, and a torn last line is none.

    `time` is seconds of training: steps times their mean length, without pauses, validation and saves.

    Raises ProblemsFound where the file cannot be read, a line before the last is damaged, or nothing has this metric.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise fail(
            "file", f"cannot read {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    whole = text[: text.rfind("\n") + 1]
    is_plain = whole.startswith(BEGINNING) and whole.count("}\n" + BEGINNING) + 1 == whole.count(
        "\n"
    )
    lines = None if is_plain else read_metrics(path)
    values = numbers(whole, lines, metric)
    if not values:
        raise nothing_logged(path, metric)
    steps = sorted(values)
    known = {} if x == "step" else numbers(whole, lines, TOKENS if x == "tokens" else STEP_SECONDS)
    return Series(places(steps, known, x, path), [values[step] for step in steps])


def numbers(text: str, lines: Sequence[dict[str, object]] | None, metric: str) -> dict[int, float]:
    """A metric by step, of lines that were parsed or of their text; the last line of a step counts."""
    if lines is not None:
        found = {line["step"]: line[metric] for line in lines if metric in line}
        return {
            step: float(value)
            for step, value in found.items()
            if isinstance(step, int) and isinstance(value, int | float)
        }
    # no ^: every line begins like this, nothing else does, and a pattern that begins with a text is searched for three times as fast
    pairs: list[tuple[str, str]] = re.findall(
        rf'\{{"step": (\d+),[^\n]*?"{re.escape(metric)}": "?({NUMBER})"?[,}}]', text
    )
    return dict(
        zip([int(step) for step, _ in pairs], [float(value) for _, value in pairs], strict=True)
    )


def places(steps: Sequence[int], known: dict[int, float], x: X, path: Path) -> list[float]:
    """Where on the x axis the steps lie."""
    if x == "step":
        return [float(step) for step in steps]
    if not known:
        raise fail(
            "usage",
            f"{path} does not say {'how many tokens were seen' if x == 'tokens' else 'how long steps took'}",
            help="use --x step",
        )
    if x == "tokens":
        return [known.get(step, math.nan) for step in steps]
    seconds, before, total = {}, 0, 0.0
    for step in sorted(known):
        total += (step - before) * known[step]
        seconds[step], before = total, step
    return [seconds.get(step, math.nan) for step in steps]


def nothing_logged(path: Path, metric: str) -> Exception:
    """The problem of a metric that no line has."""
    names = list(
        dict.fromkeys(name for line in read_metrics(path) for name in line if name != "step")
    )
    meant = closest(metric, names)
    help = (
        f"did you mean '{meant}'?"
        if meant
        else f"it has {listing(names, last='and', most=20)}"
        if names
        else "the run logged no step yet"
    )
    return fail("usage", f"{path} has no metric '{metric}'", help=help)


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """The exponential moving average without its bias to the first values, as TensorBoard draws it; what is not finite stays.

    Args:
        values: one after the other.
        weight: of all before against the newest, 0 for none and below 1.
    """
    found, average, share = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            average = weight * average + (1 - weight) * value
            share = weight * share + (1 - weight)
            found.append(average / share)
        else:
            found.append(value)
    return found


def thinned(series: Series, most: int) -> Series:
    """A series of about `most` points or fewer: of each stretch the lowest and the highest, so that no peak is lost."""
    count = len(series.y)
    stretch = math.ceil(2 * count / most)
    if stretch <= 2:
        return series
    kept: list[int] = [0]
    for start in range(0, count, stretch):
        piece = [
            at for at in range(start, min(start + stretch, count)) if math.isfinite(series.y[at])
        ]
        if piece:
            kept += sorted(
                {min(piece, key=series.y.__getitem__), max(piece, key=series.y.__getitem__)}
            )
        else:
            kept.append(start)
    kept = sorted({*kept, count - 1})
    return Series([series.x[at] for at in kept], [series.y[at] for at in kept])


@dataclass(frozen=True, slots=True)
class Spread:
    """Several runs of one recipe: their mean, and the lowest and highest of them, where all of them have a value."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def spread(many: Sequence[Series]) -> Spread:
    """The mean and the range of several series at the x that all of them have."""
    by_x = [dict(zip(series.x, series.y, strict=True)) for series in many]
    common = [x for x in many[0].x if all(x in one for one in by_x)]
    columns = [[one[x] for one in by_x] for x in common]
    return Spread(
        common,
        [math.fsum(column) / len(column) for column in columns],
        [min(c) for c in columns],
        [max(c) for c in columns],
    )
