"""One rank of a run: reads the resolved recipe, trains, and ends with the exit code that says how it went."""

import logging
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from titanrun.components.checkpoints.whole_folder import remove_whole
from titanrun.config.problems import ProblemsFound
from titanrun.config.render import render_text
from titanrun.config.secrets import revealed, secrets
from titanrun.distributed.environment import read_place, variables
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.run_dir import read_json, write_json
from titanrun.training.signals import SignalRequests
from titanrun.training.trainer import Outcome, Trainer
from titanrun.worker.assemble import assembled
from titanrun.worker.failures import Failure, failure_of
from titanrun.worker.origins import with_origins
from titanrun.worker.run_lock import run_lock
from titanrun.worker.status import StatusFile
from titanrun.worker.talk import Hidden, talking
from titanrun.worker.weights import export_huggingface

EXIT_OF_STATE = {"finished": 0, "preempted": 75}
EXIT_USAGE = 2
EXPORT_FOLDER = "hf"
EXPORT_RECORD = "titanrun.json"
INTERNAL_ERROR = Path("logs") / "internal-error.txt"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None, *, signals: SignalRequests | None = None) -> int:
    """`python -m titanrun.worker <run dir>/resolved.yaml`. Returns the exit code.

    Args:
        arguments: what follows the module's name; None takes the command line's.
        signals: requests that are listened for already.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1 or not Path(given[0]).is_file():
        sys.stderr.write("usage: python -m titanrun.worker <run dir>/resolved.yaml\n")
        return EXIT_USAGE
    resolved = Path(given[0])
    try:
        with run_lock(resolved.parent), nullcontext(signals) if signals is not None else SignalRequests() as listening:
            return run(resolved, listening)
    except ProblemsFound as error:
        # only the lock raises here, and its loser writes nothing into the other's folder
        sys.stderr.write(render_text(error.problems))
        return error.exit_code


def run(resolved: Path, signals: SignalRequests) -> int:
    """Trains what `resolved` describes, in its folder, and notes in status.json how it goes. Returns the exit code."""
    run_dir = resolved.parent
    place = read_place()
    status = StatusFile(run_dir / "status.json")
    hidden = Hidden()
    with talking(run_dir / "logs" / f"rank-{place.rank}.log", hidden):
        status.change("starting")
        try:
            outcome = train(resolved, signals, status, hidden)
        except (Exception, KeyboardInterrupt) as error:
            failure = failure_of(with_origins(error, run_dir))
            status.change("failed", exit_code=failure.exit_code)
            report(failure, error, run_dir, hidden)
            return failure.exit_code
        exit_code = signals.exit_code if outcome.state == "failed" else EXIT_OF_STATE[outcome.state]
        log.info("%s", outcome.message)
        status.change(outcome.state, step=outcome.step, exit_code=exit_code)
        return exit_code


def train(resolved: Path, signals: SignalRequests, status: StatusFile, hidden: Hidden) -> Outcome:
    """Builds the run, trains it to its end, and writes what its end asks for."""
    recipe = with_secrets(read_resolved(resolved), hidden)
    if signals.stop:
        return Outcome("preempted", status.step, f"stopped by {signals.stop_signal} before the first step")
    with assembled(recipe, resolved, place=read_place(), signals=signals, on_step=status.beat) as trainer:
        status.step = trainer.state.step
        outcome = trainer.fit()
        if outcome.state == "finished" and recipe.checkpoint.last_save_in_hf:
            export(recipe, trainer, resolved.parent / EXPORT_FOLDER)
    return outcome


def with_secrets(recipe: Recipe, hidden: Hidden) -> Recipe:
    """The run with the values of its secrets, which no line shows from here on."""
    environment = variables()
    hidden.values = frozenset(environment[name] for _, name in secrets(recipe) if environment.get(name))
    return revealed(recipe, environment)


def export(recipe: Recipe, trainer: Trainer, folder: Path) -> None:
    """The finished model as a Hugging Face folder; the one of an earlier, shorter end of this run makes way."""
    if read_json(folder / EXPORT_RECORD).get("step") == trainer.state.step:
        return
    if folder.exists():
        remove_whole(folder)
    assert recipe.tokenizer != "auto"
    export_huggingface(
        folder,
        model=trainer.engine.model,
        model_config=recipe.model,
        tokenizer=recipe.tokenizer,
        dtype_name=recipe.checkpoint.export_dtype,
    )
    # last: an export without it is one that something broke off
    write_json(folder / EXPORT_RECORD, {"step": trainer.state.step})


def report(failure: Failure, error: BaseException, run_dir: Path, hidden: Hidden) -> None:
    """Says why the run failed; the traceback of an internal fault goes to a file of its own."""
    text = failure.text
    if failure.is_internal:
        path = run_dir / INTERNAL_ERROR
        path.write_text(hidden.masked("".join(traceback.format_exception(error))), encoding="utf-8")
        text = f"{text} (traceback: {path})"
    log.error("%s", text)
