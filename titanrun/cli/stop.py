"""`titanrun stop`: stop a running run after its current step, or at once."""

import sys

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_note
from titanrun.cli.run_argument import find_run
from titanrun.cli.run_groups import check_no_groups, find_running_stage
from titanrun.config.problems import problem_error
from titanrun.launch.run_control import request_stop, wait_until_ended
from titanrun.runs.run_comparison import get_run_folder

SUMMARY = (
    "Stop a running run of this machine, or one that a Slurm job trains. It completes its current "
    "step, saves and exits with 75, so that `titanrun resume` continues it without loss. All ranks "
    "stop at the same step."
)
EXAMPLES = """  titanrun stop runs/first
  titanrun stop runs/first --wait  until it has saved
  titanrun stop runs/first --now   without saving: steps since the last checkpoint are lost"""


def run(arguments: list[str]) -> int:
    """Return 0 once the request is sent, or with --wait once the run has ended."""
    parser = CommandParser("stop", SUMMARY, EXAMPLES)
    parser.add_argument("run", help="its run directory, or the folder of its stages")
    parser.add_argument(
        "--now", action="store_true", help="do not complete the step and do not save"
    )
    parser.add_argument("--wait", action="store_true", help="wait until the run has ended")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="how long to wait for it, in seconds (600)",
    )
    options = parser.parse_args(arguments)
    check_no_groups("stop", [options.run], takes_stages=True)
    folder = get_run_folder(find_running_stage(find_run(options.run, wants="unfinished")))
    request_stop(folder, should_save=not options.now)
    if not options.wait:
        print_note(options, f"asked {folder} to stop")
        return 0
    state = wait_until_ended(folder, options.timeout)
    if state is None:
        raise problem_error(
            "usage",
            f"'{folder}' has not ended within {options.timeout:g} s",
            hint=f"check the logs in {folder / 'logs'}, or use --now",
        )
    sys.stdout.write(f"{state}\n")
    return 0
