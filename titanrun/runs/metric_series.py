"""Fast reader of one metric of a run over its steps, tokens or time.

Runs log hundreds of thousands of lines.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import problem_error
from titanrun.config.suggest import find_closest, format_word_list

XAxis = Literal["step", "tokens", "time"]
TOKENS, STEP_SECONDS = "tokens_seen", "time/step_seconds"
# the beginning of a line by MetricsFile: only such lines are read without a JSON parser
LINE_START = '{"step": '
NUMBER = r"[-+.\deE]+|nan|-?inf"


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """Values over ascending x."""

    x: Sequence[float]
    y: Sequence[float]


def load_metric_series(path: Path, metric: str, x: XAxis) -> MetricSeries:
    """Load a metric of metrics.jsonl.

    The last line of a step counts, and a torn last line is ignored. `time` is seconds of training:
    steps times their mean length, without pauses, validation and saves.

    Raises ProblemsFound if the file cannot be read, a line before the last is damaged, or no line
    has this metric.
    """
    whole, lines = read_complete_lines(path)
    values = parse_metric_by_step(whole, lines, metric)
    if not values:
        raise missing_metric_error(path, metric)
    steps = sorted(values)
    known = (
        {}
        if x == "step"
        else parse_metric_by_step(whole, lines, TOKENS if x == "tokens" else STEP_SECONDS)
    )
    return MetricSeries(
        compute_x_positions(steps, known, x, path), [values[step] for step in steps]
    )


def load_x_position(path: Path, step: int, x: XAxis) -> float:
    """Return the position of a step on the x axis, also of one that is not logged.

    Raises ProblemsFound if metrics.jsonl cannot be read, or has no such positions.
    """
    if x == "step" or step == 0:
        return float(step)
    whole, lines = read_complete_lines(path)
    found = parse_metric_by_step(whole, lines, TOKENS if x == "tokens" else STEP_SECONDS)
    known = {at: value for at, value in found.items() if at <= step}
    last = max(known, default=0)
    position = compute_x_positions([last], known, x, path)[0]
    # steps after the last logged one are like those before
    per_step = position / last if x == "tokens" else known[last]
    return position + (step - last) * per_step


def read_complete_lines(path: Path) -> tuple[str, list[dict[str, object]] | None]:
    """Return the complete lines of metrics.jsonl, parsed if their text is not of our own form."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise problem_error(
            "file", f"cannot read {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    whole = text[: text.rfind("\n") + 1]
    is_plain = whole.startswith(LINE_START) and whole.count("}\n" + LINE_START) + 1 == whole.count(
        "\n"
    )
    lines = None if is_plain else read_metrics(path)
    return whole, lines


def parse_metric_by_step(
    text: str, lines: Sequence[dict[str, object]] | None, metric: str
) -> dict[int, float]:
    """Return a metric by step from parsed lines or their text. The last line of a step counts."""
    if lines is not None:
        found = {line["step"]: line[metric] for line in lines if metric in line}
        return {
            step: float(value)
            for step, value in found.items()
            if isinstance(step, int) and isinstance(value, int | float)
        }
    # no ^: only the beginning of a line matches, and a pattern that begins with literal text is
    # searched three times as fast
    pairs: list[tuple[str, str]] = re.findall(
        rf'\{{"step": (\d+),[^\n]*?"{re.escape(metric)}": "?({NUMBER})"?[,}}]', text
    )
    return dict(
        zip([int(step) for step, _ in pairs], [float(value) for _, value in pairs], strict=True)
    )


def compute_x_positions(
    steps: Sequence[int], known: dict[int, float], x: XAxis, path: Path
) -> list[float]:
    """Return the positions of the steps on the x axis."""
    if x == "step":
        return [float(step) for step in steps]
    if not known:
        raise problem_error(
            "usage",
            f"{path} has no {'token counts' if x == 'tokens' else 'step times'}",
            hint="use --x step",
        )
    if x == "tokens":
        return [known.get(step, math.nan) for step in steps]
    seconds, before, total = {}, 0, 0.0
    for step in sorted(known):
        total += (step - before) * known[step]
        seconds[step], before = total, step
    return [seconds.get(step, math.nan) for step in steps]


def missing_metric_error(path: Path, metric: str) -> Exception:
    """Build the problem of a metric that no line has."""
    names = list(
        dict.fromkeys(name for line in read_metrics(path) for name in line if name != "step")
    )
    meant = find_closest(metric, names)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"known metrics: {format_word_list(names, conjunction='and', max_words=20)}"
        if names
        else "the run has not logged a step yet"
    )
    return problem_error("usage", f"{path} has no metric '{metric}'", hint=hint)


def smooth_values(values: Sequence[float], weight: float) -> list[float]:
    """Return the bias-corrected exponential moving average, as TensorBoard draws it.

    Non-finite values are kept.

    Args:
        values: The values in order.
        weight: Weight of all previous values against the newest, in [0, 1).
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


def downsample_series(series: MetricSeries, max_points: int) -> MetricSeries:
    """Reduce a series to at most about `max_points` points.

    Each segment keeps its lowest and highest point, so that no peak is lost.
    """
    count = len(series.y)
    stretch = math.ceil(2 * count / max_points)
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
    return MetricSeries([series.x[at] for at in kept], [series.y[at] for at in kept])


@dataclass(frozen=True, slots=True)
class SeriesSpread:
    """Mean, lowest and highest values of several runs of one recipe, at their common x."""

    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def compute_spread(series_list: Sequence[MetricSeries]) -> SeriesSpread:
    """Compute the mean and the range of several series at the x that all of them have."""
    by_x = [dict(zip(series.x, series.y, strict=True)) for series in series_list]
    common = [x for x in series_list[0].x if all(x in one for one in by_x)]
    columns = [[one[x] for one in by_x] for x in common]
    # NaN passes through min and max or not, depending on its place
    known = [[math.nan] if any(map(math.isnan, column)) else column for column in columns]
    return SeriesSpread(
        common,
        # sum, not fsum, which raises for infinities of both signs
        [sum(column) / len(column) for column in known],
        [min(column) for column in known],
        [max(column) for column in known],
    )
