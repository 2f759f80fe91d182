import io
import json
import logging
import re
import subprocess
import sys

import pytest
from rich.console import Console

from titanrun.components.metrics.console_log import ConsoleLog, RunProgress
from titanrun.components.metrics.held_out_history import load_held_out_history
from titanrun.components.metrics.live_display import DisplayFrame, LiveDisplay, format_log_events
from titanrun.components.metrics.log_events import LogEventCounter
from titanrun.components.metrics.sparkline import Sparkline
from titanrun.components.metrics.spec.metric_format import format_elapsed_time

VALUES = {
    "loss": 4.123456,
    "grad_norm": 1.5,
    "lr": 8e-4,
    "tps": 12345.6,
    "tflops": 0.123,
    "memory_gib": 0.844,
    "tokens_seen": 4096,
}


def progress(step: int) -> RunProgress:
    times = iter([0.0, 30.0, *[30.0] * 20])
    state = RunProgress(100, clock=lambda: next(times))
    state.advance(step)
    return state


def picture(values: dict[str, float], *, width: int, step: int = 10) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=True)
    console.print(DisplayFrame(progress(step), values, "█▄▁"))
    return console.file.getvalue()


def test_piped_output_is_plain_lines_with_aligned_columns() -> None:
    stream = io.StringIO()
    console = ConsoleLog(100, stream)
    console.log(1, VALUES)
    held_out = {"validation/loss": 4.5, "validation/accuracy": 0.0625}
    console.log(100, {**VALUES, "mfu": 41.2, **held_out, "moe/dropped": 0.0123456})
    console.close()
    first, last = stream.getvalue().splitlines()
    assert first.startswith(
        "step   1/100  loss  4.12346  grad norm   1.5000  lr 8.000e-04     12,346 tok/s     "
        "0.12 TFLOPs    0.84 GiB  "
    )
    assert first.endswith(" left")
    assert last == (
        "step 100/100  loss  4.12346  grad norm   1.5000  lr 8.000e-04     12,346 tok/s     "
        "0.12 TFLOPs   41.2% MFU    0.84 GiB"
        "  validation loss  4.50000  accuracy   6.2%  moe/dropped 0.01235"
    )


def held_out_values(loss: float, held_out: float, accuracy: float | None) -> dict[str, float]:
    found = {} if accuracy is None else {"validation/accuracy": accuracy}
    return {"loss": loss, "validation/loss": held_out, **found}


TABLE = [
    "    step       loss   held out   accuracy  best",
    "      10     1.7020     1.6550      61.2%",
    "      30     1.2840     1.3290      65.1%  *",
    "      40     1.2000     1.5000",
]


def test_the_end_of_piped_output_lists_the_validations_with_the_best_marked() -> None:
    stream = io.StringIO()
    console = ConsoleLog(40, stream)
    console.log(10, held_out_values(1.702, 1.655, 0.6123))
    console.log(20, VALUES)
    # undone by a rollback
    console.log(35, held_out_values(1.0, 1.0, None))
    console.log(30, held_out_values(1.284, 1.329, 0.6512))
    console.log(40, held_out_values(1.2, 1.5, None))
    console.close()
    assert stream.getvalue().splitlines()[5:] == TABLE


def test_the_table_keeps_its_best_row_and_the_rows_of_the_start_before() -> None:
    lines = [{"step": step, **held_out_values(2.0, abs(step - 3), 0.5)} for step in range(1, 9)]
    table = load_held_out_history([*lines, {"step": 9, "loss": 1.0}], last_step=7)
    assert [line.split()[0] for line in table.format_table(3)[1:]] == ["3", "6", "7"]
    assert [line.endswith("*") for line in table.format_table(3)] == [False, True, False, False]
    table.add(2, held_out_values(2.0, 9.0, 0.5))
    assert [line.split()[0] for line in table.format_table(3)[1:]] == ["1", "2"]
    assert load_held_out_history(lines, last_step=1).format_table(3) == []


def test_the_picture_ends_with_the_table_of_validations() -> None:
    state = RunProgress(40, clock=lambda: 0.0)
    for step, values in ((10, (1.702, 1.655, 0.6123)), (30, (1.284, 1.329, 0.6512))):
        state.held_out.add(step, held_out_values(*values))
    state.held_out.add(40, held_out_values(1.2, 1.5, None))
    console = Console(file=io.StringIO(), width=80, color_system=None, force_terminal=True)
    console.print(DisplayFrame(state, VALUES, ""))
    assert [line.rstrip() for line in console.file.getvalue().splitlines()[-4:]] == TABLE


def test_for_programs_each_step_is_an_object() -> None:
    stream = io.StringIO()
    console = ConsoleLog(100, stream, is_json=True)
    console.log(100, {**VALUES, "loss": float("nan")})
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["step"], found["steps"], found["loss"], found["lr"]) == (100, 100, "nan", 8e-4)


def test_plain_lines_need_no_rich() -> None:
    code = (
        "import sys; from titanrun.components.metrics.console_log import ConsoleLog; "
        "ConsoleLog(2, sys.stdout).log(1, {'loss': 1.0});"
        "print(sorted({'rich', 'torch'} & set(sys.modules)))"
    )
    lines = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines == ["step 1/2  loss  1.00000  0:00 left", "[]"]


def test_the_picture_shows_progress_metrics_and_the_course_of_the_loss() -> None:
    bar, metrics = picture(VALUES, width=110).splitlines()
    assert bar.startswith("step 10/100 ━━━")
    assert bar.endswith(" 0:30 elapsed, 4:30 left")
    assert metrics == (
        "loss 4.12346 █▄▁                grad norm 1.5000   lr 8.000e-04   12,346 tok/s   0.12 "
        "TFLOPs   0.84 GiB"
    )


def test_the_picture_fits_a_narrow_terminal() -> None:
    lines = picture({**VALUES, "mfu": 41.0, "validation/loss": 4.2}, width=50).splitlines()
    assert max(len(line) for line in lines) <= 50
    assert [line.split()[0] for line in lines] == ["step", "loss", "lr", "41.0%"]


def test_a_finished_run_has_no_time_left() -> None:
    assert picture(VALUES, width=80, step=100).splitlines()[0].endswith(" 0:30 elapsed")


def test_the_display_keeps_what_is_not_measured_every_time() -> None:
    console = Console(file=io.StringIO(), width=120, color_system=None, force_terminal=True)
    display = LiveDisplay(console)
    display.show(progress(10), {**VALUES, "validation/loss": 4.25})
    display.show(progress(11), VALUES)
    display.close()
    assert "step 11/100" in console.file.getvalue()
    last_frame = console.file.getvalue().rsplit("step", 1)[1]
    assert "validation loss 4.25000" in last_frame
    assert last_frame.endswith("\x1b[?25h"), "the cursor comes back"


def test_the_display_shows_the_last_save_and_counts_warnings() -> None:
    times = iter([10.0, 75.0])
    happenings = LogEventCounter(clock=lambda: next(times))
    assert format_log_events(happenings) == []
    log = logging.getLogger("titanrun.training")
    log.setLevel(logging.INFO)
    try:
        log.info("saved run/checkpoint/step-20", extra={"saved_step": 20})
        log.warning("a spike")
    finally:
        happenings.close()
        log.setLevel(logging.NOTSET)
    log.warning("a spike that nobody counts")
    assert [cell.plain for cell in format_log_events(happenings)] == [
        "saved step 20 1:05 ago",
        "1 warning",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0:00"),
        (65, "1:05"),
        (3599.6, "1:00:00"),
        (7745, "2:09:05"),
        (3 * 86400 + 7745, "3d 02:09"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_elapsed_time(seconds) == text


def test_a_resumed_run_is_timed_by_its_own_steps() -> None:
    now = [0.0]
    state = RunProgress(100, first_step=50, clock=lambda: now[0])
    assert state.remaining_seconds is None
    now[0] = 10.0
    state.advance(60)
    assert state.remaining_seconds == 40
    now[0] = 15.0
    assert state.remaining_seconds == 35


def test_what_comes_before_the_first_line_is_not_expected_of_every_step() -> None:
    now = [0.0]
    state = RunProgress(100, clock=lambda: now[0])
    # a validation and the first use of every kernel
    now[0] = 30.0
    state.advance(1, 2.0)
    assert state.remaining_seconds == pytest.approx(99 * 2.0)
    # ten steps of a second, and a save of 5 seconds
    now[0] = 45.0
    state.advance(11, 1.0)
    assert state.remaining_seconds == pytest.approx(89 * ((1 * 2.0 + 10 * 1.0) / 11 + 0.5))


def test_the_curve_covers_the_whole_run_in_a_fixed_width() -> None:
    curve = Sparkline(4)
    assert str(curve) == ""
    for value in (8.0, float("nan"), 1.0):
        curve.add(value)
    assert str(curve) == "█▁"
    falling = Sparkline(8)
    for step in range(10_000):
        falling.add(-step)
    assert str(falling) == "█▇▆▅▄▃▂▁"
    assert len(falling._buckets) <= 32
    flat = Sparkline(3)
    for _ in range(5):
        flat.add(2.0)
    assert str(flat) == "▁▁▁"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("colors", [True, False])
def test_a_terminal_is_colourful_unless_colours_are_off(
    colors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    console = ConsoleLog(100, stream, uses_colors=colors)
    console.log(1, VALUES)
    console.close()
    assert "4.12346" in stream.getvalue()
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", stream.getvalue())) == colors
