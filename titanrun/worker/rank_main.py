"""Main program of one rank: reads the resolved recipe, trains, and returns an exit code."""

import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrun.components.checkpoints.spec.atomic_folder import delete_folder_atomically
from titanrun.components.checkpoints.spec.commit import get_name_aside, is_occupied
from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.exit_codes import EXIT_FINISHED, EXIT_PREEMPTED, EXIT_USAGE
from titanrun.config.problems import ProblemsFound
from titanrun.config.process_id import is_process_alive
from titanrun.config.secrets import fill_secrets, get_secret_values
from titanrun.distributed.data_waits import WaitStopped, end_waits_on, is_waiting_for_next_step
from titanrun.distributed.flight_recorder import dump_flight_recorder
from titanrun.distributed.process_group import abort_rendezvous, create_store
from titanrun.distributed.rank_env import RankInfo, get_environment_variables, read_rank_info
from titanrun.distributed.spec.run_signals import STOPS_AFTER_STEP
from titanrun.recipe.consent.recipe_code import check_code_is_trusted
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.rundir.first_start import pin_initial_checkpoint
from titanrun.recipe.rundir.run_files import (
    EXPORT_FOLDER,
    STATUS,
    read_json_or_empty,
    write_indented_json,
)
from titanrun.recipe.rundir.run_lock import lock_run_directory
from titanrun.recipe.rundir.run_notification import run_notify_command
from titanrun.recipe.rundir.start_undo import undo_start
from titanrun.recipe.trainer_kinds import load_trainer_builder
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.stop_notice import announce_stops
from titanrun.training.train_hook import TrainResult
from titanrun.worker.build.build_evaluation import run_evaluation
from titanrun.worker.build.run_start_log import NOTHING_SAVED
from titanrun.worker.logging_setup import FAILURES_LOGGER, SecretValues, configure_logging
from titanrun.worker.next_command import format_next_command
from titanrun.worker.oom_report import format_memory_table
from titanrun.worker.problem_origins import attach_origins
from titanrun.worker.status_file import StatusFile
from titanrun.worker.training_template import find_training_end_ids
from titanrun.worker.wait_board import WaitBoard, report_data_waits
from titanrun.worker.weights.huggingface_export import export_huggingface
from titanrun.worker.worker_failures import (
    WorkerFailure,
    add_silent_ranks,
    classify_failure,
    is_out_of_memory,
)
from titanrun.worker.worker_job import (
    JOIN,
    LEAVE,
    RENDEZVOUS_TIMEOUT_SECONDS,
    WorkerJob,
    rendezvous,
)

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop

EXIT_CODES = {"finished": EXIT_FINISHED, "preempted": EXIT_PREEMPTED}
EXPORT_RECORD = "titanrun.json"
STOPS_UNSAVED = f"stopping after this step; {NOTHING_SAVED}"
EVALUATION_GOES_ON = "an evaluation goes on to its end"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None, *, signals: SignalRequests | None = None) -> int:
    """Run `python -m titanrun.worker <run dir>/resolved.yaml` and return the exit code.

    Args:
        arguments: arguments after the module name. None for those of the command line. With
            `--join` instead of the file, the main rank sends the job. With `--leave CODE`, this
            main rank has no run to start, and makes the others exit.
        signals: requests to stop or save, already installed. None to install them here.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    place = read_rank_info()
    if len(given) == 2 and given[0] == LEAVE:
        abort_rendezvous(
            create_store(place, timeout_seconds=RENDEZVOUS_TIMEOUT_SECONDS), int(given[1])
        )
        return int(given[1])
    joins = given == [JOIN] and not place.is_main_rank
    if not joins and (len(given) != 1 or not Path(given[0]).is_file()):
        sys.stderr.write(f"usage: python -m titanrun.worker <run dir>/resolved.yaml | {JOIN}\n")
        return EXIT_USAGE
    resolved = None if joins else Path(given[0])
    try:
        # the main rank locks the run directory for all ranks, and the launcher for all groups
        lock = (
            lock_run_directory(resolved.parent)
            if place.is_main_rank and place.group is None and resolved is not None
            else nullcontext()
        )
        listens = nullcontext(signals) if signals is not None else SignalRequests()
        with clean_up_after_launcher(place), lock, listens as listening:
            return run_job(rendezvous(resolved, place, listening), listening)
    except ProblemsFound as error:
        # only the lock raises here: a process without it must not write into the run directory
        sys.stderr.write(render_problems_as_text(error.problems))
        return error.exit_code


@contextmanager
def clean_up_after_launcher(place: RankInfo) -> Iterator[None]:
    """Remove the launcher's folder of failure files after the block if it was killed.

    Of several ranks, the last to end does it.
    """
    file, launcher = place.failure_file, place.launcher
    was_child = os.getppid() == launcher
    try:
        yield
    finally:
        # one whose end nobody has noticed still exists, but is no parent any more
        is_orphaned = was_child and os.getppid() != launcher
        has_ended = launcher is not None and (is_orphaned or not is_process_alive(launcher))
        if file is not None and has_ended:
            with suppress(OSError):
                file.unlink(missing_ok=True)
                file.parent.rmdir()


def run_job(job: WorkerJob, signals: SignalRequests) -> int:
    """Train the run of `job` in its folder and return the exit code.

    The state of the run is recorded in status.json.
    """
    run_dir, place = job.resolved_path.parent, job.rank_info
    status = StatusFile(
        run_dir / STATUS,
        is_main_rank=place.is_main_rank,
        is_in_group=place.group is not None,
    )
    hidden = SecretValues()
    with configure_logging(run_dir / "logs" / f"{place.file_stem}.log", hidden, place):
        status.set_state("starting")
        try:
            with (
                report_data_waits(job.store, status, signals.find_stop) as board,
                open_stop_notice(signals, place),
                end_waits_on(partial(find_stop_in_wait, signals, status, board)),
            ):
                outcome = train_or_stop(job, signals, status, hidden)
        except (Exception, KeyboardInterrupt) as error:
            failure = classify_failure(
                attach_origins(error, run_dir),
                is_before_step=status.state == "starting",
            )
            failure = add_memory_table(failure, error, job)
            failure = add_silent_ranks(failure, job.heartbeats)
            # a failed peer has already written its own failure, or undone the start
            if not failure.is_peer_failure or read_json_or_empty(run_dir / STATUS).get("state") in (
                "starting",
                "running",
            ):
                status.set_state("failed", exit_code=failure.exit_code)
            log_failure(failure, error, job, hidden)
            notify_run_end(job, status, failure.exit_code, hidden.redact(failure.text))
            # a launcher may start this rank again, and undoes the start at its own end
            if place.failure_file is None:
                undo_start(run_dir)
            return failure.exit_code
        exit_code = EXIT_CODES[outcome.state] if outcome.exit_code is None else outcome.exit_code
        log.info("%s", outcome.message)
        if place.is_main_rank and place.group is None:
            log.info("%s", format_next_command(run_dir, outcome))
        stop_signal = signals.stop_signal if outcome.state == "preempted" else None
        status.set_state(
            outcome.state, step=outcome.step, exit_code=exit_code, stop_signal=stop_signal
        )
        notify_run_end(job, status, exit_code, outcome.message)
        return exit_code


def open_stop_notice(signals: SignalRequests, place: RankInfo) -> AbstractContextManager[None]:
    """Return the context that answers a signal to stop; the launcher of groups does it for them."""
    return announce_stops(signals) if place.group is None else nullcontext()


def notify_run_end(job: WorkerJob, status: StatusFile, exit_code: int, message: str) -> None:
    """Run the notification command at the end of the run, on the main rank only.

    The launcher of replica groups does it for them.
    """
    if job.rank_info.is_main_rank and job.rank_info.group is None:
        warning = run_notify_command(
            get_environment_variables(),
            job.resolved_path.parent,
            state=status.state,
            step=status.step,
            exit_code=exit_code,
            message=message,
        )
        if warning is not None:
            log.warning("%s", warning)


def add_memory_table(failure: WorkerFailure, error: BaseException, job: WorkerJob) -> WorkerFailure:
    """Add the computed memory needs of the run to an out-of-memory failure."""
    if not is_out_of_memory(error):
        return failure
    run = load_resolved_text(job.resolved_text, file=job.resolved_path)
    table = format_memory_table(run, world_size=job.rank_info.world_size)
    return replace(failure, text=f"{failure.text}\n{table}")


def find_stop_in_wait(signals: SignalRequests, status: StatusFile, board: WaitBoard) -> str | None:
    """Return the signal that asks any rank to stop, None if a wait for data shall go on.

    After the first step, only a wait that all ranks end together may end.
    """
    may_end = status.state == "starting" or is_waiting_for_next_step()
    if not may_end or signals.stop_effect == EVALUATION_GOES_ON:
        return None
    return signals.find_stop() or board.find_stop()


def train_or_stop(
    job: WorkerJob, signals: SignalRequests, status: StatusFile, secret_values: SecretValues
) -> TrainResult:
    """Train the run, or end its wait for data if it shall stop before its first step."""
    try:
        return train_run(job, signals, status, secret_values)
    except WaitStopped as stopped:
        return make_unstarted_result(status, str(stopped))


def make_unstarted_result(status: StatusFile, stop_signal: str | None) -> TrainResult:
    """Return the result of a run that was stopped before its first step."""
    return TrainResult("preempted", status.step, f"stopped by {stop_signal} before the first step")


def train_run(
    job: WorkerJob, signals: SignalRequests, status: StatusFile, secret_values: SecretValues
) -> TrainResult:
    """Build the run, train it to its end, and export the final model if enabled."""
    recipe = fill_recipe_secrets(
        load_resolved_text(job.resolved_text, file=job.resolved_path), secret_values
    )
    recipe = pin_initial_checkpoint(recipe, job.resolved_path.parent)
    check_code_is_trusted(recipe, get_environment_variables())
    # with several ranks, no rank may exit alone: they agree before the first step
    if signals.should_stop and job.store is None:
        return make_unstarted_result(status, signals.stop_signal)
    if recipe.kind == "eval":
        signals.stop_effect = EVALUATION_GOES_ON
        return run_evaluation(recipe, job.resolved_path.parent)
    with load_trainer_builder(recipe.kind)(
        recipe, job, signals=signals, on_step=status.record_step
    ) as trainer:
        status.step = trainer.state.step
        if job.rank_info.group is not None:
            trainer.session.add_writer_listener(status.set_writer)
        if recipe.checkpoint.create_seed_checkpoint:
            return save_seed_checkpoint(trainer)
        signals.stop_effect = STOPS_AFTER_STEP if recipe.checkpoint.enable else STOPS_UNSAVED
        outcome = get_train_method(trainer)()
        trainer.metrics.set_end_state(outcome.state)
        if outcome.state == "finished" and recipe.checkpoint.last_save_in_hf:
            with trainer.watchdog.watch_save():
                export_final_model(
                    recipe, trainer, job.resolved_path.parent / EXPORT_FOLDER, job.rank_info
                )
    if not recipe.checkpoint.enable and job.rank_info.is_main_rank:
        log.info("%s", NOTHING_SAVED)
    return outcome


def get_train_method(trainer: Any) -> Callable[[], TrainResult]:
    """Return the method that trains: `train`, or the former name `fit` of plug-ins."""
    train: Callable[[], TrainResult] | None = getattr(trainer, "train", None)
    if train is not None:
        return train
    log.warning("%s has no method 'train': rename its method 'fit'", type(trainer).__name__)
    fit: Callable[[], TrainResult] = trainer.fit
    return fit


def save_seed_checkpoint(trainer: "TrainLoop") -> TrainResult:
    """Save the initial weights without training."""
    assert trainer.checkpoints is not None, "a rule asks for checkpoint.enable"
    trainer.checkpoints.save_seed()
    return TrainResult(
        "finished", trainer.state.step, "finished: the seed checkpoint holds the first weights"
    )


def fill_recipe_secrets(recipe: Recipe, secret_values: SecretValues) -> Recipe:
    """Return the recipe with the values of its secrets, which are redacted from now on."""
    environment = get_environment_variables()
    secret_values.values = get_secret_values(environment, recipe)
    return fill_secrets(recipe, environment)


def export_final_model(
    recipe: Recipe, trainer: "TrainLoop", folder: Path, rank_info: RankInfo
) -> None:
    """Export the final model as a Hugging Face folder.

    The export of an earlier, shorter end of this run is replaced.
    """
    if read_json_or_empty(folder / EXPORT_RECORD).get("step") == trainer.state.step:
        return
    if rank_info.is_main_rank and is_occupied(folder):
        if folder.is_dir() and not folder.is_symlink():
            delete_folder_atomically(folder)
        else:
            log.warning("%s is not an export: renamed", folder)
            folder.rename(get_name_aside(folder, "occupied"))
    assert recipe.tokenizer != "auto"
    export_huggingface(
        folder,
        engine=trainer.engine,
        model_config=recipe.model,
        tokenizer=recipe.tokenizer,
        dtype_name=recipe.checkpoint.export_dtype,
        is_writer=rank_info.is_main_rank,
        lora=find_lora_converter(recipe),
        end_ids=find_training_end_ids(recipe),
    )
    # written last: an export without it is incomplete
    if rank_info.is_main_rank:
        write_indented_json(folder / EXPORT_RECORD, {"step": trainer.state.step})


def get_traceback_path(failure: WorkerFailure, rank_info: RankInfo) -> Path:
    """Return the path of a rank's traceback, relative to the run directory.

    No two ranks share a file, because ranks often fail together for different reasons.
    """
    name = "internal-error" if failure.is_internal else "broken-off"
    return Path("logs") / (
        f"{name}.txt"
        if rank_info.is_main_rank and rank_info.group is None
        else f"{name}-{rank_info.file_stem}.txt"
    )


def log_failure(
    failure: WorkerFailure, error: BaseException, job: WorkerJob, secret_values: SecretValues
) -> None:
    """Log why this rank failed, and write the traceback of some failures to a separate file.

    These are internal errors, and failures of a rank that seems to have lost another rank: if all
    ranks report that, one of them is wrong.
    """
    text = failure.text
    if failure.is_internal or failure.is_peer_failure:
        path = job.resolved_path.parent / get_traceback_path(failure, job.rank_info)
        path.write_text(
            secret_values.redact("".join(traceback.format_exception(error))), encoding="utf-8"
        )
        text = f"{text} (traceback: {path})"
    if failure.is_peer_failure and (collectives := dump_flight_recorder(job.rank_info)) is not None:
        text = f"{text} (last collectives: {collectives})"
    if job.rank_info.failure_file is not None:
        record = {
            "time": time.time(),
            "is_of_another": failure.is_peer_failure and not failure.silent_ranks,
            "rank": next(iter(failure.silent_ranks), job.rank_info.rank),
            "text": secret_values.redact(text),
            "exit_code": failure.exit_code,
        }
        write_indented_json(job.rank_info.failure_file, record)
    # only the failed rank logs an error, not each rank that lost it
    logging.getLogger(FAILURES_LOGGER).log(
        logging.INFO if failure.is_peer_failure and not failure.silent_ranks else logging.ERROR,
        "%s",
        text,
    )
