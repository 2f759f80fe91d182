"""Rules about the teacher of a loss of distillation."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from titanrun.components.data.chat_config import ConversationsConfig
from titanrun.components.data.spec.taught_record import PATH, WRITE_OTHERS, read_taught_record
from titanrun.components.losses.distillation_config import DistillationConfig
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.hub_models import RL_TEACHER
from titanrun.recipe.resolving.teacher import (
    find_teacher_place,
    find_teacher_problems,
    open_teacher,
)
from titanrun.recipe.rules.data import get_datasets_with_paths
from titanrun.recipe.rules.registry import RuleViolation, rule

LOSS: DataPath = ("loss", "name")


@rule("distillation-has-a-teacher")
def distillation_has_a_teacher(run: Recipe) -> Iterator[RuleViolation]:
    """Require a teacher for losses that compare the model with one.

    Name a model, or the folder of its predictions.
    """
    loss = run.loss
    if loss.needs_teacher and loss.teacher_path is None and loss.taught_logprobs is None:
        yield RuleViolation(
            f"loss '{loss.name}' has no teacher",
            (LOSS,),
            hint="set loss.teacher: FOLDER, or loss.teacher_logprobs: {path: FOLDER}",
        )


@rule("teacher-needs-whole-models")
def teacher_needs_whole_models(run: Recipe) -> Iterator[RuleViolation]:
    """Require losses and references with a teacher where both models run one after the other.

    The teacher predicts the tokens of a pass on the ranks that then train on them, which pipeline
    stages do not. RL distills from a reference with rl.algorithm: ref_kl. Split large models with
    tensor parallelism or FSDP.
    """
    named, place = find_teacher_place(run)
    if named is None and run.loss.taught_logprobs is None:
        return
    degree = run.parallelism.pipeline_parallel_degree
    is_reference = place == RL_TEACHER
    reader = "rl.reference 'teacher'" if is_reference else f"loss '{run.loss.name}'"
    obstacles: list[tuple[bool, DataPath, str, str]] = [
        (
            degree > 1,
            ("parallelism", "pipeline_parallel_degree"),
            f"pipeline_parallel_degree {degree}",
            "set pipeline_parallel_degree: 1, and tensor_parallel_degree for large models",
        ),
        (
            run.kind == "rl" and not is_reference,
            ("kind",),
            "kind rl",
            "set rl.algorithm: ref_kl and rl.reference: teacher, which distill from rl.teacher",
        ),
    ]
    for is_present, path, noun, hint in obstacles:
        if is_present:
            places = (path, ("rl", "reference") if is_reference else LOSS)
            yield RuleViolation(f"{reader} does not support {noun}", places, hint=hint)


@rule("teacher-fits", level="environment")
def teacher_fits(run: Recipe) -> Iterator[RuleViolation]:
    """Require the teacher to exist, and to read and predict the same tokens as the model.

    Its vocabulary and tokenizer must be those of the run, its context as long as the sequences, and
    the parallel degrees must fit it too. Use a larger model of the same family.
    """
    try:
        teacher = open_teacher(run)
        problems = [] if teacher is None else find_teacher_problems(run, teacher)
    except ProblemsFound as error:
        problems = list(error.problems)
    for problem in problems:
        yield RuleViolation(
            problem.message,
            (problem.path,),
            hint=problem.hint,
            code="file" if problem.code == "file" else "conflict",
        )


@rule("teacher-has-predicted", level="environment")
def teacher_has_predicted(run: Recipe) -> Iterator[RuleViolation]:
    """Require the predictions of a teacher that the loss reads from files.

    They are those of the training data and of each held-out set, with the temperature of the loss
    and at least as many tokens as it reads. Whether they are of the same sequences is found when a
    run reads its data. Write them with titanrun data teach, which does not require this rule.
    """
    taught = run.loss.taught_logprobs
    if taught is None:
        return
    further = [f"validation/{one.id}" for one in run.validation.further]
    sections = ["training", *(["validation", *further] if run.validation.enable else [])]
    folders = [taught.folder / one for one in sections]
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        yield RuleViolation(
            f"no predictions of a teacher in '{missing[0]}'",
            (PATH,),
            hint="titanrun data teach RECIPE writes them",
            code="data",
        )
    elif isinstance(run.loss, DistillationConfig):
        yield from find_other_predictions(run.loss, folders, taught.top_k)


def find_other_predictions(
    loss: DistillationConfig, folders: Sequence[Path], top_k: int
) -> Iterator[RuleViolation]:
    """Yield a violation for the first folder whose predictions the loss cannot read."""
    for folder in folders:
        try:
            record = read_taught_record(folder)
        except ProblemsFound as error:
            (problem,) = error.problems
            yield RuleViolation(problem.message, (PATH,), hint=problem.hint, code="data")
            return
        if record is None:
            message: str | None = f"no predictions of a teacher in '{folder}'"
        else:
            wrong = record.find_difference(top_k=top_k, temperature=loss.temperature)
            message = None if wrong is None else f"the predictions in '{folder}' are {wrong}"
        if message is not None:
            yield RuleViolation(message, (PATH,), hint=WRITE_OTHERS, code="data")
            return


@rule("predictions-are-of-conversations")
def predictions_are_of_conversations(run: Recipe) -> Iterator[RuleViolation]:
    """Require conversations from an index for predictions of a teacher in files.

    They are those of the replies of each sequence, so all sequences must be known before the run.
    Name the teacher without teacher_logprobs for other data.
    """
    if run.loss.taught_logprobs is None:
        return
    path: DataPath = ("loss", "teacher_logprobs")
    for place, dataset in get_datasets_with_paths(run):
        if isinstance(dataset, ConversationsConfig) and not dataset.is_streamed:
            continue
        state = "is a stream" if dataset.is_streamed else f"'{dataset.name}' has no conversations"
        yield RuleViolation(
            f"predictions in files are of conversations, but the dataset {state}",
            (path, place),
            hint="remove loss.teacher_logprobs and set loss.teacher, which then predicts in memory",
        )
