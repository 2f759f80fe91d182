"""One rank of a run: reads the resolved recipe, trains, and ends with the exit code that says how it went."""

import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from titanrun.components.checkpoints.whole_folder import remove_whole
from titanrun.distributed.environment import read_place
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.training.signals import SignalRequests
from titanrun.training.trainer import Outcome, Trainer
from titanrun.worker.assemble import assembled
from titanrun.worker.failures import Failure, failure_of
from titanrun.worker.status import StatusFile
from titanrun.worker.talk import talking
from titanrun.worker.weights import export_huggingface

EXIT_OF_STATE = {"finished": 0, "preempted": 75}
EXIT_USAGE = 2
EXPORT_FOLDER = "hf"
INTERNAL_ERROR = Path("logs") / "internal-error.txt"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m titanrun.worker <run dir>/resolved.yaml`. Returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1 or not Path(given[0]).is_file():
        sys.stderr.write("usage: python -m titanrun.worker <run dir>/resolved.yaml\n")
        return EXIT_USAGE
    resolved = Path(given[0])
    # handlers first: a signal that comes while torch's caches warm up must not kill the worker
    with SignalRequests() as signals:
        return run(resolved, signals)


def run(resolved: Path, signals: SignalRequests) -> int:
    """Trains what `resolved` describes, in its folder, and notes in status.json how it goes. Returns the exit code."""
    run_dir = resolved.parent
    place = read_place()
    status = StatusFile(run_dir / "status.json")
    with talking(run_dir / "logs" / f"rank-{place.rank}.log"):
        status.change("starting")
        try:
            outcome = train(resolved, signals, status)
        except (Exception, KeyboardInterrupt) as error:
            failure = failure_of(error)
            status.change("failed", exit_code=failure.exit_code)
            report(failure, error, run_dir)
            return failure.exit_code
        exit_code = EXIT_OF_STATE[outcome.state]
        log.info("%s", outcome.message)
        status.change(outcome.state, step=outcome.step, exit_code=exit_code)
        return exit_code


def train(resolved: Path, signals: SignalRequests, status: StatusFile) -> Outcome:
    """Builds the run, trains it to its end, and writes what its end asks for."""
    recipe = read_resolved(resolved)
    with assembled(recipe, resolved, place=read_place(), signals=signals, on_step=status.beat) as trainer:
        outcome = trainer.fit()
        if outcome.state == "finished" and recipe.checkpoint.last_save_in_hf:
            export(recipe, trainer, resolved.parent / EXPORT_FOLDER)
    return outcome


def export(recipe: Recipe, trainer: Trainer, folder: Path) -> None:
    """The finished model as a Hugging Face folder; the one of an earlier, shorter end of this run makes way."""
    if folder.exists():
        if not trainer.has_trained:
            return
        remove_whole(folder)
    assert recipe.tokenizer != "auto"
    export_huggingface(
        folder,
        model=trainer.engine.model,
        model_config=recipe.model,
        tokenizer=recipe.tokenizer,
        dtype_name=recipe.checkpoint.export_dtype,
    )


def report(failure: Failure, error: BaseException, run_dir: Path) -> None:
    """Says why the run failed; the traceback of an internal fault goes to a file of its own."""
    text = failure.text
    if failure.is_internal:
        path = run_dir / INTERNAL_ERROR
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        text = f"{text} (traceback: {path})"
    log.error("%s", text)
