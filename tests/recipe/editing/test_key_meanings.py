"""Keys of other tools: what is told about them is right when it is obeyed."""

from pathlib import Path

import pytest

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.validation_levels import validate_file

SECTIONS = {
    "model": "name: llama3, flavor: debugmodel",
    "training": "dataset: tiny, steps: 400, local_batch_size: 2",
    "optimizer": "lr: 1.0e-3",
    "lr_scheduler": "decay_ratio: 0.5",
    "metrics": "log_freq: 1",
    "fault_tolerance": "group_size: 2",
}


def problems_of(folder: Path, section: str, entry: str) -> list[Problem]:
    """Return the problems of a recipe with one more entry in a section, or at the top level."""
    lines = [
        f"{name}: {{{own}, {entry}}}" if name == section else f"{name}: {{{own}}}"
        for name, own in SECTIONS.items()
    ]
    text = "\n".join(["version: 1", *lines, *([entry] if not section else [])]) + "\n"
    file = folder / "mine.yaml"
    file.write_text(text.replace("log_freq: 1, log_frequency", "log_frequency"))
    return list(validate_file(str(file), [], level="rules", environment={}).problems)


@pytest.mark.parametrize(
    ("section", "entry", "hint"),
    [
        # Row C6 of the defect list: obeying the old help changed what the recipe meant
        (
            "training",
            "gradient_accumulation_steps: 4",
            "write training.global_batch_size: local_batch_size x data-parallel ranks x "
            "accumulation steps, 8 on one rank",
        ),
        (
            "",
            "converters-: [float8_linear]",
            "converters- is for the command line: in a file, converters replaces the whole value",
        ),
        ("optimizer", "rl: 1.0e-4", "did you mean 'lr'?"),
        ("optimizer", "rl: {rewards: [exact_match]}", "'rl' belongs at the top level"),
        ("training", "lr: 1.0e-4", "'lr' belongs in optimizer"),
        ("optimizer", "betas: [0.8, 0.99]", "write beta1: 0.8 and beta2: 0.99"),
        (
            "fault_tolerance",
            "rows: fixed",
            "rows: fixed is not built, since the rows of a lost group would be lost too, and they "
            "are dealt to the groups that take part in a step; remove it",
        ),
        (
            "fault_tolerance",
            "rows: dealt",
            "the rows of a step are always dealt to the groups that take part in it; remove it",
        ),
        (
            "fault_tolerance",
            "rows: [fixed]",
            "the rows of a step are always dealt to the groups that take part in it; remove it",
        ),
        (
            "fault_tolerance",
            "process_group: mccl",
            "process_group: mccl is not built, since groups communicate over gloo, with the same "
            "sums; remove it",
        ),
        (
            "fault_tolerance",
            "process_group: gloo",
            "groups always communicate over gloo; remove it",
        ),
        (
            "fault_tolerance",
            "use_async_quorum: true",
            "use_async_quorum: true is not built, since groups agree on a step before it begins: "
            "its rows are dealt to them; remove it",
        ),
        ("training", "bf16: true", "write training.mixed_precision_param: bfloat16"),
        (
            "lr_scheduler",
            "min_lr: 1.0e-4",
            "write lr_scheduler.min_lr_factor: 0.1, the lowest rate as a part of optimizer.lr",
        ),
        # Row C14 of the defect list
        ("training", "clip_grad: 1.0", "did you mean 'max_norm'?"),
        (
            "lr_scheduler",
            "warmup_fraction: 0.03",
            "write lr_scheduler.warmup_ratio: 0.03, a share of the steps",
        ),
        (
            "training",
            "gradient_accumulation: x",
            "write training.global_batch_size: local_batch_size x data-parallel ranks x "
            "accumulation steps",
        ),
        ("metrics", "log_frequency: 3", "did you mean 'log_freq'?"),
        ("", "name: !env RUN_NAME", "write ${env:RUN_NAME}"),
    ],
)
def test_the_help_about_a_key_of_another_tool_keeps_its_meaning(
    tmp_path: Path, section: str, entry: str, hint: str
) -> None:
    (problem,) = problems_of(tmp_path, section, entry)
    assert (problem.hint, problem.fix is None or "did you mean" in hint) == (hint, True)


def test_a_folder_in_the_place_of_a_dataset_is_read_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Row C17 of the defect list: the known names were cut off before `text`
    monkeypatch.chdir(tmp_path)
    Path("mytxt").mkdir()
    Path("mytxt", "a.txt").write_text("some text")
    file = Path("mine.yaml")
    head = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\n"
    file.write_text(f"{head}training: {{dataset: mytxt}}\n")
    (problem,) = validate_file(str(file), [], level="schema", environment={}).problems
    assert problem.hint is not None and problem.hint.startswith("write {name: text, path: mytxt}; ")
    meant = problem.hint.removeprefix("write ").partition(";")[0]
    file.write_text(f"{head}training: {{dataset: {meant}}}\n")
    dataset = resolve_recipe(str(file), environment={}).run.training.dataset
    assert (dataset.name, dataset.path) == ("text", "mytxt")  # type: ignore[attr-defined]
