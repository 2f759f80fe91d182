"""Optuna's study of a search. With `search_pruners`, the only module that imports Optuna.

Every method but `load_trials` and `compute_importance` must be called under the lock of the
sweep's folder: several processes share one study.
"""

import hashlib
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
import sqlalchemy.exc
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, NopPruner
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import to_plain_data
from titanrun.sweep.distributions import Distribution
from titanrun.sweep.search_space import (
    DEFAULT_STARTUP,
    OVERRIDES,
    RECIPE_CONTENT,
    SearchSpace,
    label_choices,
)
from titanrun.sweep.sweep_file import SQLITE

SETTINGS = "titanrun_search"
VERSION = "optuna_version"
# why a trial was told FAIL without a run: it does not count
REJECTED = "rejected"
ENDED = ("complete", "pruned", "failed")
State = Literal["waiting", "running", "complete", "pruned", "failed"]
STATES: dict[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


STORAGE_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OSError,
    ImportError,
    optuna.exceptions.StorageInternalError,
    sqlalchemy.exc.SQLAlchemyError,
)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial: its number and state, what was drawn, its value, and titanrun's notes on it.

    `reported_step` is the last step whose value was reported, -1 for none.
    """

    number: int
    state: State
    drawn: Mapping[str, Any]
    value: float | None
    notes: Mapping[str, Any]
    reported_step: int = -1

    @property
    def has_run(self) -> bool:
        """Whether the trial counts: it has a run, or the result of one."""
        return "run" in self.notes


class SearchStudy:
    """Study of one search."""

    def __init__(self, study: optuna.Study, storage: BaseStorage, space: SearchSpace) -> None:
        self._study = study
        self._storage = storage
        self._space = space
        self._pruner: BasePruner = NopPruner()
        self._distributions = {
            path: to_optuna_distribution(item) for path, item in space.distributions.items()
        }

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of all runs, as the search was begun with."""
        return tuple(self._study.user_attrs[SETTINGS][OVERRIDES])

    @property
    def recipe_digest(self) -> str:
        """Digest of the recipe, as the search was begun with."""
        return str(self._study.user_attrs[SETTINGS][RECIPE_CONTENT])

    def load_trials(self) -> list[TrialRecord]:
        """Return all trials by number, as all processes have recorded them so far."""
        return [to_trial_record(trial) for trial in self._study.get_trials(deepcopy=False)]

    def ask(self) -> TrialRecord:
        """Draw the values of a new trial, from all trials that have ended.

        A sampler is made for each draw, whose seed depends on the seed of the search and on how
        many were drawn before: a search that is started again draws what it would have drawn.
        """
        trials = self.load_trials()
        index = sum(trial.has_run or REJECTED in trial.notes for trial in trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.sampler = build_sampler(self._space, index)
            trial = self._study.ask(self._distributions)
        ended = [item.number for item in trials if item.state in ENDED]
        trial.set_user_attr("after", ended)
        return self.load_trials()[trial.number]

    def note(self, number: int, **notes: Any) -> None:
        """Record plain data about a trial that has not ended."""
        trial_id = self._get_trial_id(number)
        for name, value in notes.items():
            self._storage.set_trial_user_attr(trial_id, name, value)

    def end_complete(self, number: int, value: float) -> None:
        """Record the value of a trial."""
        self._study.tell(number, value, skip_if_finished=True)

    def use_pruner(self, pruner: BasePruner) -> None:
        """Let a pruner judge what is reported.

        Optuna's study does not get it: some releases would show the sampler the trials of one group
        of `hyperband` only, and only after the process has judged a first value.
        """
        self._pruner = pruner

    def report(self, number: int, step: int, value: float) -> bool:
        """Report a value of a trial that has not ended. Return whether its pruner ends it there."""
        self.record_value(number, step, value)
        trial = self._storage.get_trial(self._get_trial_id(number))
        return self._pruner.prune(self._study, trial)

    def record_value(self, number: int, step: int, value: float) -> None:
        """Record a value of a trial that has not ended, which no pruner judges."""
        self._storage.set_trial_intermediate_value(self._get_trial_id(number), step, value)

    def end_pruned(self, number: int) -> None:
        """Record that a trial was stopped early: its value is the last one that was recorded."""
        self._study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)

    def end_failed(self, number: int, **notes: Any) -> None:
        """Record that a trial has no value, and why."""
        self.note(number, **notes)
        self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def drop_unfinished_draws(self) -> None:
        """End trials whose process died while it drew them; first points are put back."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if "run" not in trial.user_attrs:
                self._study.tell(trial.number, state=TrialState.FAIL)
                if fixed := trial.system_attrs.get("fixed_params"):
                    self._study.enqueue_trial(fixed)

    def compute_importance(self) -> dict[str, float]:
        """Return the share of each path in the spread of the values, the largest first.

        Computed by functional ANOVA over finished trials
        (https://proceedings.mlr.press/v32/hutter14.html). Optuna's default looks at the best tenth
        only: two of twenty trials.
        """
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {path: float(share) for path, share in found.items()}

    def _get_trial_id(self, number: int) -> int:
        study_id = self._storage.get_study_id_from_name(self._study.study_name)
        return self._storage.get_trial_id_from_study_id_trial_number(study_id, number)


def open_study(
    space: SearchSpace,
    storage: str,
    *,
    name: str,
    goal: str,
    settings: Mapping[str, object],
    uncompared: Collection[str] = (),
) -> SearchStudy:
    """Open the study of a search, or begin it.

    Args:
        space: What is searched.
        storage: A journal file, or `sqlite:///FILE`.
        name: Name of the study in its storage.
        goal: `min` or `max`.
        settings: What must not change while the search goes on.
        uncompared: Settings that are not compared with those it was begun with.

    Raises:
        ProblemsFound: The storage cannot be read, or the study was begun with other settings.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            opened = open_storage(storage)
            study = optuna.create_study(
                storage=opened,
                study_name=name,
                direction="minimize" if goal == "min" else "maximize",
                load_if_exists=True,
            )
    except STORAGE_ERRORS as error:
        raise build_storage_problem(storage, error) from error
    known = study.user_attrs.get(SETTINGS)
    if known is None:
        begin_study(study, space, settings)
    elif changed := [
        key
        for key in {**known, **settings}
        if known.get(key) != settings.get(key) and key not in uncompared
    ]:
        raise build_changed_search_problem(storage, changed)
    return SearchStudy(study, opened, space)


def begin_study(study: optuna.Study, space: SearchSpace, settings: Mapping[str, object]) -> None:
    """Put the first points of a new study into its queue, and record its settings."""
    for point in space.first:
        values = {
            path: to_flow_yaml(to_plain_data(node))
            if space.distributions[path].kind == "choice"
            else node.value
            for path, node in point.items()
        }
        # a process that died here has put some of them there already
        study.enqueue_trial(values, skip_if_exists=True)
    study.set_user_attr(VERSION, optuna.__version__)
    study.set_user_attr(SETTINGS, dict(settings))


def has_settings(journal: Path) -> bool:
    """Return whether a journal holds the settings of a search."""
    try:
        return f'"{SETTINGS}"'.encode() in journal.read_bytes()
    except OSError:
        return False


def open_storage(storage: str) -> BaseStorage:
    """Open a journal file, whose last line may be torn, or a database."""
    if storage.startswith(SQLITE):
        return RDBStorage(storage)
    lock = JournalFileSymlinkLock(storage)
    remove_torn_line(Path(storage), lock)
    return JournalStorage(JournalFileBackend(storage, lock))


def remove_torn_line(journal: Path, lock: JournalFileSymlinkLock) -> None:
    """Remove what a process wrote that died, or had no disk space, in the middle of a line.

    The next line would be appended to it, and no process could read the journal any more.
    """
    if not journal.is_file():
        return
    lock.acquire()
    try:
        with journal.open("r+b") as file:
            text = file.read()
            if not text.endswith(b"\n"):
                file.truncate(text.rfind(b"\n") + 1)
    finally:
        lock.release()


def build_storage_problem(storage: str, error: Exception) -> ProblemsFound:
    """Build the problem of a storage that is not one, or cannot be opened."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    kind = "database" if storage.startswith(SQLITE) else "journal of a search"
    return problem_error(
        "usage",
        f"'{storage}' cannot be used as the {kind}: {reason}",
        path=("search", "storage"),
        hint="move it away, or set another storage",
    )


def build_changed_search_problem(storage: str, changed: Sequence[str]) -> ProblemsFound:
    """Build the problem of a search that was begun with other settings."""
    return problem_error(
        "conflict",
        f"the search in '{storage}' was begun with other {format_word_list(changed)}",
        path=("search",),
        hint="undo the change, or set another folder: its trials cannot be compared",
    )


def build_sampler(space: SearchSpace, index: int) -> optuna.samplers.BaseSampler:
    """Build the sampler of one trial, of which `index` were drawn before."""
    config = space.config
    digest = hashlib.sha256(f"{config.seed} {index}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    startup = config.startup or DEFAULT_STARTUP
    samplers = optuna.samplers
    if config.sampler == "tpe":
        # defaults differ between releases of Optuna
        return samplers.TPESampler(
            seed=seed, n_startup_trials=startup, multivariate=True, constant_liar=True
        )
    if config.sampler == "cmaes":
        return samplers.CmaEsSampler(seed=seed, n_startup_trials=startup)
    if config.sampler == "gp":
        return samplers.GPSampler(seed=seed, n_startup_trials=startup)
    if config.sampler == "qmc":
        # one sequence for all trials: the study counts how much of it was drawn
        return samplers.QMCSampler(seed=config.seed, scramble=True, warn_independent_sampling=False)
    return samplers.RandomSampler(seed=seed)


def to_optuna_distribution(item: Distribution) -> BaseDistribution:
    """Convert a distribution of the sweep file to Optuna's."""
    if item.kind == "choice":
        return CategoricalDistribution(tuple(label_choices(item)))
    if item.kind == "integer":
        return IntDistribution(item.low, item.high)
    return FloatDistribution(item.low, item.high, log=item.kind == "log_uniform")


def to_trial_record(trial: FrozenTrial) -> TrialRecord:
    """Convert a trial of Optuna."""
    return TrialRecord(
        trial.number,
        STATES[trial.state],
        dict(trial.params),
        trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        dict(trial.user_attrs),
        -1 if trial.last_step is None else trial.last_step,
    )
