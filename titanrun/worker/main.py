"""One rank of a run: reads the resolved recipe, trains, and ends with the exit code that says how it went."""

import logging
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from titanrun.components.checkpoints.whole_folder import remove_whole
from titanrun.config.problems import ProblemsFound
from titanrun.config.render import render_text
from titanrun.config.secrets import revealed, values_to_hide
from titanrun.distributed.environment import Place, read_place, variables
from titanrun.distributed.flight_recorder import write_collectives
from titanrun.distributed.processes import leave, meet
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.kinds import assembler
from titanrun.recipe.notice import notify
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.recipe.run_dir import STATUS, read_json, write_json
from titanrun.recipe.run_files import EXPORT_FOLDER
from titanrun.training.signals import SignalRequests
from titanrun.training.trainer import Outcome, Trainer
from titanrun.worker.evaluation_run import evaluate
from titanrun.worker.failures import Failure, failure_of, is_out_of_memory
from titanrun.worker.job import JOIN, LEAVE, MEETING_SECONDS, Job, meet_others
from titanrun.worker.memory_table import memory_table
from titanrun.worker.origins import with_origins
from titanrun.worker.run_lock import run_lock
from titanrun.worker.status import StatusFile
from titanrun.worker.talk import FAILURES, Hidden, talking
from titanrun.worker.weights import export_huggingface

EXIT_OF_STATE = {"finished": 0, "preempted": 75}
EXIT_USAGE = 2
EXPORT_RECORD = "titanrun.json"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None, *, signals: SignalRequests | None = None) -> int:
    """`python -m titanrun.worker <run dir>/resolved.yaml`. Returns the exit code.

    Args:
        arguments: what follows the module's name; None takes the command line's. `--join` instead of the file: the first rank tells;
            `--leave CODE`: this first rank has found no run to begin, and tells the others.
        signals: requests that are listened for already.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    place = read_place()
    if len(given) == 2 and given[0] == LEAVE:
        leave(meet(place, timeout_seconds=MEETING_SECONDS), int(given[1]))
        return int(given[1])
    joins = given == [JOIN] and not place.is_first
    if not joins and (len(given) != 1 or not Path(given[0]).is_file()):
        sys.stderr.write(f"usage: python -m titanrun.worker <run dir>/resolved.yaml | {JOIN}\n")
        return EXIT_USAGE
    resolved = None if joins else Path(given[0])
    try:
        # the first rank holds the run directory for all
        lock = (
            run_lock(resolved.parent) if place.is_first and resolved is not None else nullcontext()
        )
        with lock, nullcontext(signals) if signals is not None else SignalRequests() as listening:
            return run(meet_others(resolved, place, listening), listening)
    except ProblemsFound as error:
        # only the lock raises here, and its loser writes nothing into the other's folder
        sys.stderr.write(render_text(error.problems))
        return error.exit_code


def run(job: Job, signals: SignalRequests) -> int:
    """Trains what `job` describes, in its folder, and notes in status.json how it goes. Returns the exit code."""
    run_dir, place = job.resolved.parent, job.place
    status = StatusFile(run_dir / STATUS, is_first=place.is_first)
    hidden = Hidden()
    with talking(run_dir / "logs" / f"rank-{place.rank}.log", hidden, place):
        status.change("starting")
        try:
            outcome = train(job, signals, status, hidden)
        except (Exception, KeyboardInterrupt) as error:
            failure = with_memory_table(failure_of(with_origins(error, run_dir)), error, job)
            # what another rank did wrong, it has written itself
            if not failure.is_of_another or read_json(run_dir / STATUS).get("state") != "failed":
                status.change("failed", exit_code=failure.exit_code)
            report(failure, error, job, hidden)
            tell(job, status, failure.exit_code, hidden.masked(failure.text))
            return failure.exit_code
        exit_code = EXIT_OF_STATE[outcome.state] if outcome.exit_code is None else outcome.exit_code
        log.info("%s", outcome.message)
        status.change(outcome.state, step=outcome.step, exit_code=exit_code)
        tell(job, status, exit_code, outcome.message)
        return exit_code


def tell(job: Job, status: StatusFile, exit_code: int, message: str) -> None:
    """Tells whoever wants to know that the run has ended; the first rank does so for all."""
    if job.place.is_first:
        untold = notify(
            variables(),
            job.resolved.parent,
            state=status.state,
            step=status.step,
            exit_code=exit_code,
            message=message,
        )
        if untold is not None:
            log.warning("%s", untold)


def with_memory_table(failure: Failure, error: BaseException, job: Job) -> Failure:
    """What ran out of memory, with what the run needs by arithmetic."""
    if not is_out_of_memory(error):
        return failure
    return replace(
        failure,
        text=f"{failure.text}\n{memory_table(read_resolved_text(job.text), ranks=job.place.world_size)}",
    )


def train(job: Job, signals: SignalRequests, status: StatusFile, hidden: Hidden) -> Outcome:
    """Builds the run, trains it to its end, and writes what its end asks for."""
    recipe = with_secrets(read_resolved_text(job.text), hidden)
    # of several ranks none may leave alone: they agree before the first step
    if signals.stop and job.store is None:
        return Outcome(
            "preempted", status.step, f"stopped by {signals.stop_signal} before the first step"
        )
    if recipe.kind == "eval":
        return evaluate(recipe, job.resolved.parent)
    with assembler(recipe.kind)(recipe, job, signals=signals, on_step=status.beat) as trainer:
        status.step = trainer.state.step
        if recipe.checkpoint.create_seed_checkpoint:
            return seed(trainer)
        outcome = trainer.fit()
        trainer.metrics.ends_as(outcome.state)
        if outcome.state == "finished" and recipe.checkpoint.last_save_in_hf:
            with trainer.watchdog.saving():
                export(recipe, trainer, job.resolved.parent / EXPORT_FOLDER, job.place)
    return outcome


def seed(trainer: Trainer) -> Outcome:
    """Saves the first weights, and that is all."""
    assert trainer.checkpoints is not None, "a rule asks for checkpoint.enable"
    trainer.checkpoints.save_seed()
    return Outcome(
        "finished", trainer.state.step, "finished: the seed checkpoint holds the first weights"
    )


def with_secrets(recipe: Recipe, hidden: Hidden) -> Recipe:
    """The run with the values of its secrets, which no line shows from here on."""
    environment = variables()
    hidden.values = values_to_hide(environment, recipe)
    return revealed(recipe, environment)


def export(recipe: Recipe, trainer: Trainer, folder: Path, place: Place) -> None:
    """The finished model as a Hugging Face folder; the one of an earlier, shorter end of this run makes way."""
    if read_json(folder / EXPORT_RECORD).get("step") == trainer.state.step:
        return
    if place.is_first and folder.exists():
        remove_whole(folder)
    assert recipe.tokenizer != "auto"
    export_huggingface(
        folder,
        engine=trainer.engine,
        model_config=recipe.model,
        tokenizer=recipe.tokenizer,
        dtype_name=recipe.checkpoint.export_dtype,
        is_writer=place.is_first,
        lora=lora_of(recipe),
    )
    # last: an export without it is one that something broke off
    if place.is_first:
        write_json(folder / EXPORT_RECORD, {"step": trainer.state.step})


def traceback_file(failure: Failure, place: Place) -> Path:
    """Where a rank's traceback goes. Ranks often fail together, each in its own way: no two share a file."""
    name = "internal-error" if failure.is_internal else "broken-off"
    return Path("logs") / (f"{name}.txt" if place.is_first else f"{name}-rank-{place.rank}.txt")


def report(failure: Failure, error: BaseException, job: Job, hidden: Hidden) -> None:
    """Says why this rank failed; the traceback of an internal fault goes to a file of its own, and so does that of a rank which seems to
    have lost another: where all ranks say so, one of them is wrong."""
    text = failure.text
    if failure.is_internal or failure.is_of_another:
        path = job.resolved.parent / traceback_file(failure, job.place)
        path.write_text(hidden.masked("".join(traceback.format_exception(error))), encoding="utf-8")
        text = f"{text} (traceback: {path})"
    if failure.is_of_another and (collectives := write_collectives(job.place)) is not None:
        text = f"{text} (last collectives: {collectives})"
    if job.place.failure_file is not None:
        told = {
            "time": time.time(),
            "is_of_another": failure.is_of_another,
            "text": hidden.masked(text),
            "exit_code": failure.exit_code,
        }
        write_json(job.place.failure_file, told)
    # nobody wants to read of every rank that it lost the one that failed
    logging.getLogger(FAILURES).log(
        logging.INFO if failure.is_of_another else logging.ERROR, "%s", text
    )
