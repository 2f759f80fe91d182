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
    "parallelism": "pipeline_parallel_degree: 1",
    "checkpoint": "interval: 10",
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
        ("optimizer", "rl: 1.0e-4", "did you mean 'lr', which is given too, in line 4?"),
        ("optimizer", "rl: {rewards: [exact_match]}", "'rl' belongs at the top level"),
        ("training", "lr: 1.0e-4", "'lr' belongs in optimizer"),
        # the place nearest to the top, not the first one of the schema
        ("", "seed: 3", "write debug.seed: 3"),
        ("", "eval_steps: 3", "write validation.freq: 3"),
        # a word that certainly means another key, though some section has a key of that name
        ("", "batch_size: 3", "'batch_size' is training.local_batch_size here"),
        # torchtitan's section of this name is a mapping
        ("", "data: x.txt", "'data' is training.dataset here"),
        ("parallelism", "tensor_parallel: 2", "did you mean 'tensor_parallel_degree'?"),
        (
            "optimizer",
            "momentum: 0.9",
            "a key of optimizer 'muon' or 'sgd': add name, or remove it",
        ),
        ("optimizer", "lr:1.0e-4", "write a space after the colon: lr: 1.0e-4"),
        (
            "optimizer",
            "learning_rate: 1.0e-4",
            "did you mean 'lr', which is given too, in line 4?",
        ),
        ("checkpoint", "path: x", "did you mean 'folder'?"),
        ("metrics", "wandb: true", "write metrics.trackers: [wandb]"),
        ("", "gradient_checkpointing: true", "write activation_checkpoint: full"),
        ("", "gradient_checkpointing: false", "write activation_checkpoint: none"),
        ("", "gpus: 8", "write launch.nproc_per_node, or --nproc on the command line"),
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
            "training",
            "fp16: true",
            "nothing is computed in float16: write training.mixed_precision_param: bfloat16",
        ),
        ("training", "fp16: false", "remove it: nothing is computed in float16"),
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
    assert problem.hint is not None and "or {name: text, path: mytxt} for texts; " in problem.hint
    meant = problem.hint.partition(" or ")[2].partition(" for texts")[0]
    file.write_text(f"{head}training: {{dataset: {meant}}}\n")
    dataset = resolve_recipe(str(file), environment={}).run.training.dataset
    assert (dataset.name, dataset.path) == ("text", "mytxt")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "hint"),
    [("true", "write best_fit, or null"), ("yes", "write best_fit, or null"), ("no", "write null")],
)
def test_a_switch_for_packing_is_told_the_name(value: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "version: 1\nkind: sft\nmodel: {name: llama3, flavor: debugmodel}\n"
        f"training: {{dataset: {{name: tiny_chat, packing: {value}}}, steps: 4}}\n"
    )
    (problem,) = validate_file(str(file), [], level="rules", environment={}).problems
    assert problem.hint == hint


@pytest.mark.parametrize(("loss", "dataset"), [("dpo", "preference"), ("kto", "labelled")])
def test_a_loss_in_the_place_of_rl_is_told_its_own(loss: str, dataset: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"version: 1\nrl: {loss}\ntraining: {{dataset: tiny, steps: 4}}\n")
    found = validate_file(str(file), [], level="rules", environment={}).problems
    (hint,) = [problem.hint for problem in found if problem.path == ("rl",)]
    assert hint == f"write loss: {loss}, and training.dataset: {{name: {dataset}, path: FILE}}"


def test_a_part_of_an_epoch_is_told_the_steps(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
        "training: {dataset: tiny, epochs: 0.5}\n"
    )
    (problem,) = validate_file(str(file), [], level="rules", environment={}).problems
    assert problem.hint == (
        "epochs are whole: write training.steps, 0.5 x sequences / global_batch_size; titanrun "
        "data stats counts the sequences"
    )


def test_a_key_in_a_misspelled_section_keeps_its_value_in_the_help(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
        "traning: {dataset: tiny, lora_r: 8}\n"
    )
    found = validate_file(str(file), [], level="rules", environment={}).problems
    assert [problem.hint for problem in found] == [
        "did you mean 'training'?",
        "adapters are a converter: write converters: [{name: lora, rank: 8}]",
    ]


def test_a_file_in_the_place_of_a_task_is_the_data_of_a_loss(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "", "evaluation: {tasks: [data/chats.jsonl]}")
    assert problem.hint is not None
    meant = "{name: loss, dataset: {name: chat, path: data/chats.jsonl}}"
    assert problem.hint.startswith(f"write {meant} for conversations or {{name: ")
    found = problems_of(tmp_path, "", f"evaluation: {{tasks: [{meant}]}}")
    assert [one for one in found if one.code == "unknown-name"] == []


@pytest.mark.parametrize(
    ("section", "entry", "hint"),
    [
        ("training", "epochs: two", "write 2"),
        ("training", "epochs: 3 epochs", "write 3"),
        ("training", "epochs: 100 steps", "write training.steps: 100 in place of epochs"),
        ("training", "tokens: 3 epochs", "write training.epochs: 3 in place of tokens"),
        ("validation", "freq: 3 steps", "write 3"),
        ("validation", "freq: 1 epoch", "write a number of steps, not of epochs"),
        ("checkpoint", "interval: 20 steps", "write 20"),
        ("checkpoint", "keep_latest_k: 2.5", "write 2 or 3"),
        ("lr_scheduler", "warmup_ratio: 3", "write 0.03 for 3%"),
        ("lr_scheduler", "decay_ratio: 12.5", "write 0.125 for 12.5%"),
        ("metrics", "log_freq: never", "write a number; the default is 10"),
        (
            "",
            "kind: lora",
            "write sft for conversations or pretrain for texts, and converters: [lora]",
        ),
        ("", "kind: dpo", "remove kind, and write loss: dpo"),
        ("", "kind: rm", "remove kind, and write loss: reward and model.head: scalar"),
        ("", "kind: cpt", "write pretrain"),
        ("", "kind: full", "write sft"),
        ("", "kind: grpo", "write rl; rl.algorithm names its loss"),
    ],
)
def test_a_wrong_value_is_told_the_one_that_is_meant(
    tmp_path: Path, section: str, entry: str, hint: str
) -> None:
    text = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\n"
    training = entry if section == "training" else "steps: 400"
    text += f"training: {{dataset: tiny, {training}}}\n"
    if section != "training":
        text += f"{section}: {{{entry}}}\n" if section else f"{entry}\n"
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    (found,) = validate_file(str(file), [], level="rules", environment={}).problems
    assert found.hint == hint


def test_dropout_in_percent_is_told_its_share(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, "", "converters: [{name: lora, dropout: 5}]")
    assert found.hint == "write 0.05 for 5%"
