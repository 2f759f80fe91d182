"""The teacher of a distillation: its recipe, and whether it fits the run."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.optimizers.config import SgdConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import (
    TOKENIZER_JSON,
    VOCABULARY_AND_MERGES,
    load_vocab,
)
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.distributed.config import NoActivationCheckpointConfig
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.models.shared.config import AttentionConfig, ModelConfig
from titanrun.models.shared.decoder_config import choose_attention_backend
from titanrun.models.shared.huggingface_config import is_huggingface_folder
from titanrun.recipe.plugins import activate_plugins, get_plugin_places
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.hub_models import (
    HUB_PREFIX,
    RL_TEACHER,
    TEACHER,
    suggest_fetching,
)
from titanrun.recipe.resolving.recipe_from_hf import resolve_from_huggingface
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rules.registry import get_active_rules
from titanrun.recipe.rundir.checkpoint_lookup import fetch_resolved_recipe, select_checkpoint

LAYOUT_RULES = frozenset(
    f"titanrun.recipe.rules.{name}"
    for name in ("context_parallel", "experts", "model", "sequence_length", "tensor_parallel")
)
"""Modules of the rules about how a model and its sequences are split."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """Teacher of a run.

    Args:
        recipe: the run's recipe with the model of the teacher, which trains nothing.
        weights: location of the weights, with the key `checkpoint` or `huggingface`.
        folder: folder of the weights and, if it has one, of the tokenizer.
    """

    recipe: Recipe
    weights: dict[str, str]
    folder: str


def find_teacher_place(run: Recipe) -> tuple[str | None, DataPath]:
    """Return the teacher that a recipe names, None if it names none, and its path in the recipe.

    A loss has a teacher, or a policy whose reference is one.
    """
    if run.rl is not None and run.rl.reference == "teacher":
        return run.rl.teacher, RL_TEACHER
    return run.loss.teacher_path, TEACHER


def open_teacher(run: Recipe) -> Teacher | None:
    """Return the teacher that the recipe names, None if it names none.

    Raises:
        ProblemsFound: There is no such model, or none that titanrun reads.
    """
    named, path = find_teacher_place(run)
    if named is None:
        return None
    check_teacher_place(named, path)
    places = get_plugin_places()
    try:
        weights, own = find_teacher(named)
    except ProblemsFound as error:
        raise ProblemsFound(
            Problem(problem.code, f"teacher: {problem.message}", path, hint=problem.hint)
            for problem in error.problems
        ) from error
    finally:
        # reading another recipe has activated its plug-ins
        activate_plugins(run.plugins, places)
    missing = sorted(set(own.plugins) - set(run.plugins))
    if missing:
        message = f"the teacher in {named} needs plug-in {missing[0]}"
        raise ProblemsFound(
            [Problem("conflict", message, path, hint=f"add {missing[0]} to plugins")]
        )
    (folder,) = weights.values()
    return Teacher(build_teacher_recipe(run, own), weights, folder)


def find_teacher_model(run: Recipe) -> ModelConfig | None:
    """Return the model of the run's teacher, None if there is none on this machine."""
    try:
        teacher = open_teacher(run)
    except ProblemsFound:
        return None
    return None if teacher is None else teacher.recipe.model


def check_teacher_place(named: str, recipe_path: DataPath) -> None:
    """Raise for a place that exists nowhere on this machine."""
    path = parse_storage_path(named)
    if not isinstance(path, Path) or path.exists():
        return
    hint = suggest_fetching(named)
    if named.startswith(HUB_PREFIX):
        hint = f"titanrun download {named}; titanrun train does it, too"
    raise ProblemsFound([Problem("file", f"folder not found: '{named}'", recipe_path, hint=hint)])


def find_teacher(named: str) -> tuple[dict[str, str], Recipe]:
    """Return the location of the weights, and the recipe of the run or folder that has them."""
    path = parse_storage_path(named)
    if isinstance(path, Path) and is_huggingface_folder(path):
        return {"huggingface": named}, resolve_from_huggingface(path).run
    checkpoint = select_checkpoint(path)
    return (
        {"checkpoint": str(checkpoint)},
        load_resolved(Path(fetch_resolved_recipe(checkpoint))),
    )


def build_teacher_recipe(run: Recipe, own: Recipe) -> Recipe:
    """Return the recipe by which the teacher is built in the layout of the run.

    Its weights are stored in the compute dtype: nothing updates them.
    """
    # layers of two sizes share their code: compiled twice, it would be compiled for any size, which
    # attention does not support
    compiling = {**dict(run.compile), "enable": False}
    training = {**dict(run.training), "dtype": run.training.mixed_precision_param}
    debug = {**dict(run.debug), "moe_force_load_balance": False}
    changes = {
        "model": share_attention_mask(run.model, own.model),
        "replace": own.replace,
        "converters": (),
        "optimizer": SgdConfig(),
        "activation_checkpoint": NoActivationCheckpointConfig(),
        "fault_tolerance": FaultToleranceConfig(),
        "compile": type(run.compile).model_validate(compiling),
        "training": type(run.training).model_validate(training),
        "debug": type(run.debug).model_validate(debug),
    }
    # not through plain data, which fails validation if the worker has filled in a secret
    return type(run).model_validate({**dict(run), **changes})


def share_attention_mask(student: ModelConfig, teacher: ModelConfig) -> ModelConfig:
    """Return the teacher's model with attention to the same tokens as the student's."""
    own, wanted = (getattr(model, "attention", None) for model in (teacher, student))
    if not isinstance(own, AttentionConfig):
        return teacher
    mask = (
        {"mask": wanted.mask, "documents": wanted.documents}
        if isinstance(wanted, AttentionConfig)
        else {"mask": "causal", "documents": None}
    )
    backend = choose_attention_backend(mask) if own.backend == "sdpa" else own.backend
    attention = type(own).model_validate({**dict(own), **mask, "backend": backend})
    return type(teacher).model_validate({**dict(teacher), "attention": attention})


def find_teacher_problems(run: Recipe, teacher: Teacher, ranks: int | None = None) -> list[Problem]:
    """Return why the run cannot use the teacher, at its path in the recipe."""
    model = teacher.recipe.model
    named, path = find_teacher_place(run)
    if model.modality != "tokens" or getattr(model, "head", "lm") != "lm":
        message = f"{named} has no predictions of tokens to learn from"
        return [Problem("conflict", message, path, hint="use a language model")]
    found = [*find_vocabulary_problems(run, teacher), *find_mask_problems(run, teacher)]
    for entry in get_active_rules():
        if entry.module in LAYOUT_RULES:
            found += [
                Problem("conflict", f"teacher: {violation.message}", path, hint=violation.hint)
                for violation in entry.check(teacher.recipe, ranks)
                if violation.severity == "error"
            ]
    return found


def find_mask_problems(run: Recipe, teacher: Teacher) -> Iterator[Problem]:
    """Yield a problem if the teacher cannot keep documents apart as the student does."""
    wanted = getattr(run.model, "attention", None)
    if (
        isinstance(wanted, AttentionConfig)
        and wanted.mask == "block_causal"
        and not isinstance(getattr(teacher.recipe.model, "attention", None), AttentionConfig)
    ):
        message = (
            f"teacher '{teacher.recipe.model.name}' has no attention within documents, which "
            "model.attention.mask: block_causal asks for"
        )
        hint = "set model.attention.mask: causal, without packing"
        yield Problem("conflict", message, find_teacher_place(run)[1], hint=hint)


def find_vocabulary_problems(run: Recipe, teacher: Teacher) -> Iterator[Problem]:
    """Yield a problem if a token id means different things to teacher and student."""
    theirs, ours = teacher.recipe.model.vocab_size, run.model.vocab_size
    if theirs != ours:
        message = (
            f"the teacher predicts {theirs:,} tokens, but the model {ours:,}: "
            "both need the same vocabulary"
        )
        hint = "use a teacher of the same family as the model"
        yield Problem("conflict", message, find_teacher_place(run)[1], hint=hint)
        return
    if not isinstance(run.tokenizer, TokenizerConfig):
        return
    differing = find_differing_token(teacher.folder, run.tokenizer.folder)
    if differing is not None:
        number, others, own = differing
        message = (
            f"the teacher has another tokenizer: its token {number} is {others!r}, "
            f"the run's {own!r}"
        )
        hint = "use a teacher of the same family as the model"
        yield Problem("conflict", message, find_teacher_place(run)[1], hint=hint)


def find_differing_token(teacher: str, student: Path) -> tuple[int, str | None, str | None] | None:
    """Return the first id with two meanings, and its token in each folder.

    Return None if the vocabularies are equal, or the teacher's folder has none.
    """
    folder = parse_storage_path(teacher)
    names = (TOKENIZER_JSON, VOCABULARY_AND_MERGES[0])
    if not isinstance(folder, Path) or not any((folder / name).is_file() for name in names):
        return None
    theirs, ours = (
        {number: token for token, number in load_vocab(place).items()}
        for place in (folder, student)
    )
    return next(
        (
            (number, theirs.get(number), ours.get(number))
            for number in sorted(theirs.keys() | ours.keys())
            if theirs.get(number) != ours.get(number)
        ),
        None,
    )


def require_teacher(run: Recipe, ranks: int | None = None) -> Teacher:
    """Return the teacher of a run that names one.

    Raises:
        ProblemsFound: There is none, or it does not fit the run.
    """
    teacher = open_teacher(run)
    assert teacher is not None, "the recipe names a teacher"
    problems = find_teacher_problems(run, teacher, ranks)
    if problems:
        raise ProblemsFound(problems)
    return teacher
