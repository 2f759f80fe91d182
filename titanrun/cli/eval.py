"""`titanrun eval`: measures a checkpoint or a Hugging Face folder by tasks; a process with torch does it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.generate import weights_of
from titanrun.cli.guard import print_problems
from titanrun.launch.environment import environment
from titanrun.recipe.resolve import resolve

SUMMARY = (
    "Measure the model of a checkpoint, of a run's newest checkpoint, or of a Hugging Face folder. Without overrides it measures the loss "
    "on the run's held-out data, and where that is conversations, how many replies come word by word. evaluation.tasks names others: "
    "loss, exact_match, multiple_choice, lm_eval. titanrun explain evaluation says more."
)
EXAMPLES = """  titanrun eval runs/first
  titanrun eval runs/first/checkpoint/step-40 --json
  titanrun eval runs/first 'evaluation.tasks=[{name: loss, dataset: {name: text, path: held_out.jsonl}}]'
  titanrun eval models/llama 'evaluation.tasks=[{name: multiple_choice, path: questions.jsonl}]'
  titanrun eval models/llama 'evaluation.tasks=[{name: lm_eval, task: hellaswag}]'"""


def run(arguments: list[str]) -> int:
    """Print what each task finds."""
    overrides, others = split_overrides(arguments)
    parser = Parser("eval", SUMMARY, EXAMPLES)
    parser.add_argument("folder", help="a checkpoint, a run directory, or a Hugging Face folder")
    parser.add_argument("--json", action="store_true", help="one object a task")
    parser.takes_overrides()
    options = parser.parse_args(others)
    job = {**weights_of(options.folder), "json": options.json}
    with tempfile.TemporaryDirectory(prefix="titanrun-") as folder:
        file = Path(folder) / "resolved.yaml"
        file.write_text(job["resolved"], encoding="utf-8")
        resolved = resolve(str(file), overrides, environment=environment())
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    sys.stdout.flush()
    work = {**job, "resolved": resolved.text}
    return subprocess.run(
        [sys.executable, "-m", "titanrun.worker.evaluate"],
        input=json.dumps(work),
        text=True,
        check=False,
    ).returncode
