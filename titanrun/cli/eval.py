"""`titanrun eval`: evaluate a checkpoint or a Hugging Face folder by tasks, with torch.

A separate process with torch does the work.
"""

import tempfile
from pathlib import Path

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.consent import request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.generate import get_weight_source
from titanrun.launch.launch_env import get_environment
from titanrun.launch.torch_requirement import require_torch
from titanrun.launch.worker_command import run_worker_command
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.started_from import build_moved_overrides

SUMMARY = (
    "Evaluate the model of a checkpoint, of a run's newest checkpoint, or of a Hugging Face "
    "folder. The default is the loss on the run's validation data and, for conversations, the "
    "exact-match rate of replies. evaluation.tasks selects other tasks: loss, exact_match, "
    "multiple_choice, lm_eval. See titanrun explain evaluation."
)
EXAMPLES = """  titanrun eval runs/first
  titanrun eval runs/first/checkpoint/step-40 --json
  titanrun eval runs/first 'evaluation.tasks=[{name: loss, dataset: {name: text, path: val.jsonl}}]'
  titanrun eval models/llama 'evaluation.tasks=[{name: multiple_choice, path: questions.jsonl}]'
  titanrun eval models/llama 'evaluation.tasks=[{name: lm_eval, task: hellaswag}]'"""


def run(arguments: list[str]) -> int:
    """Print the result of each task."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser("eval", SUMMARY, EXAMPLES)
    parser.add_argument("folder", help="a checkpoint, a run directory, or a Hugging Face folder")
    parser.add_argument("--json", action="store_true", help="one object per task")
    parser.add_moved_option()
    parser.add_trust_option()
    parser.allow_overrides()
    options = parser.parse_args(others)
    require_torch()
    job = {**get_weight_source(options.folder), "json": options.json}
    with tempfile.TemporaryDirectory(prefix="titanrun-") as folder:
        file = Path(folder) / "resolved.yaml"
        file.write_text(job["resolved"], encoding="utf-8")
        resolved = resolve_recipe(
            str(file),
            [*overrides, *build_moved_overrides(str(file))],
            environment=get_environment(),
        )
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    request_consent([resolved], options, ["eval", *arguments])
    return run_worker_command("evaluate", {**job, "resolved": resolved.text}).returncode
