"""Explanations of the words that titanrun prints."""

from typing import get_args

import pytest

from titanrun.cli.explain import run as explain
from titanrun.components.data.source_faults import FaultKind
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.migrate.axolotl import AXOLOTL
from titanrun.recipe.migrate.llamafactory import LLAMAFACTORY
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.reference.explain import explain_word
from titanrun.recipe.reference.program_words import describe_program_word
from titanrun.recipe.reference.reference_search import MAX_HITS, search_reference
from titanrun.recipe.reference.schema_topics import find_field_locations, list_explainable_paths
from titanrun.recipe.reference.tool_words import TOOL_WORDS
from titanrun.training.config import TrainingConfig


@pytest.mark.parametrize(
    "word", ["another-run", "conflict/run-in-use", "non-finite", "memory", "disk"]
)
def test_what_ends_a_run_is_explained(word: str) -> None:
    told = explain_word(word)
    assert told.startswith(f"error[{word}]\n")
    assert "cause" in told and "fix" in told


def test_the_examples_without_a_word_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain([]) == 0
    shown = capsys.readouterr().out
    assert "training, parallelism" in shown
    for line in shown.splitlines()[2:-1]:
        for word in line[17:].partition(" ... ")[0].split(", "):
            assert word in explain_word(word)


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_every_fault_of_a_remote_file_is_explained(kind: str) -> None:
    for word in (f"source-{kind}", f"data/source-{kind}"):
        told = explain_word(word)
        assert told.startswith(f"error[{word}]\n")
        assert "cause" in told and "fix" in told


@pytest.mark.parametrize("code", ["conflict", "usage"])
def test_a_code_in_the_place_of_its_rule_is_explained(code: str) -> None:
    """error[conflict] beside error[conflict/run-in-use] reads as conflict/conflict."""
    assert explain_word(f"{code}/{code}") == explain_word(code)


def test_a_block_that_many_components_share_is_printed_once() -> None:
    """Row C15: the same eight lines came for each of seven models."""
    told = explain_word("model.n_heads")
    assert told.count("Number of query heads") == 1
    assert "(of model: decoder, " in told and "llama3" in told.splitlines()[0]
    differing = explain_word("training.dataset.shuffle")
    assert "(of dataset:tokens)" in differing
    assert differing.count("in a recipe  ") == 2


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("steps", "training.steps"),
        ("warmup", "lr_scheduler.warmup_steps"),
        ("adamw", "optimizer:adamw"),
        ("lr", "optimizer.lr"),
        ("learning_rate", "optimizer.lr"),
        ("pipeline", "parallelism.pipeline_parallel_degree"),
        ("horizon", "lr_scheduler"),
        ("seqlen", "training.seq_len"),
        ("stage", "stages"),
        ("tracker", "trackers"),
        ("Batch size", "evaluation.batch_size"),
    ],
)
def test_a_word_is_searched_in_names_and_descriptions(word: str, first: str) -> None:
    head, *lines = explain_word(word, columns=80).splitlines()
    assert head.startswith(f"'{word}' is found in ")
    assert lines[0].split()[0].startswith(first)
    assert len(lines) <= MAX_HITS + 1
    assert max(map(len, lines)) <= 80
    assert all(explain_word(line.split()[0]) for line in lines[:MAX_HITS])


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("lora_r", "converters.rank"),
        ("lora_alpha", "converters.alpha"),
        ("lora_dropout", "converters.dropout"),
        ("max_samples", "training.dataset.max_documents"),
        ("validation_split", "validation.holdout"),
        ("val_set_size", "validation.holdout"),
        ("deepspeed", "parallelism.data_parallel_shard_degree"),
        ("fsdp", "parallelism.data_parallel_shard_degree"),
        ("early stopping", "checkpoint.keep_best"),
        ("gradient_accumulation_steps", "training.global_batch_size"),
        ("per_device_train_batch_size", "training.local_batch_size"),
        ("num_train_epochs", "training.epochs"),
        ("max_seq_length", "training.seq_len"),
        ("bf16", "training.mixed_precision_param"),
        ("packing", "training.dataset.packing"),
        ("Flash-Attention", "model.attention.backend"),
        ("warmup_ratio", "lr_scheduler.warmup_ratio"),
        ("save_steps", "checkpoint.interval"),
        ("eval_steps", "validation.freq"),
        ("logging_steps", "metrics.log_freq"),
        ("logger", "metrics.trackers"),
        ("logging", "metrics.log_freq"),
        ("report_to", "metrics.trackers"),
    ],
)
def test_a_word_of_other_tools_leads_to_the_setting(word: str, path: str) -> None:
    assert explain_word(word, columns=80).splitlines()[1].split()[0] == path


@pytest.mark.parametrize(
    ("word", "command", "further"),
    [
        ("resume", "titanrun resume", "checkpoint.load_step"),
        ("export", "titanrun checkpoint export", "checkpoint.export_dtype"),
        ("fork", "titanrun fork", ""),
    ],
)
def test_a_command_is_explained_before_the_settings(
    word: str, command: str, further: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain([word]) == 0
    head, told, *settings = capsys.readouterr().out.splitlines()
    assert head == command and told.endswith(f": see {command} --help")
    assert further in "\n".join(settings)


def test_best_checkpoints_are_found_by_those_words() -> None:
    assert "checkpoint.keep_best" in explain_word("best checkpoint")


def test_a_word_without_setting_names_the_command() -> None:
    assert "titanrun push RUN OWNER/NAME" in explain_word("push_to_hub")


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("sample_packing", "write training.dataset.packing: best_fit"),
        ("base_model", "write model: {name: FAMILY"),
        ("gradient_checkpointing", "write activation_checkpoint: full\n"),
        ("load-in-4bit", "adapters are a converter: write converters: [{name: qlora,"),
        (
            "train_on_inputs",
            "for true write training.dataset.train_on: all, of dataset chat; for false write "
            "training.dataset.train_on: replies, of dataset chat\n",
        ),
        ("neftune_noise_alpha", "no setting: no noise is added to embeddings\n"),
        ("hub_strategy", "no setting: titanrun push uploads a finished run\n"),
        ("dp_shard_size", "parallelism.data_parallel_shard_degree\n"),
    ],
)
def test_keys_of_other_programs_have_the_meaning_that_validate_knows(
    word: str, meaning: str
) -> None:
    told = explain_word(word)
    assert told.startswith(f"'{word}' is a word of other tools. Here: {meaning}")


@pytest.mark.parametrize("tool", [AXOLOTL, LLAMAFACTORY], ids=lambda tool: tool.name)
def test_every_key_of_other_programs_is_known(tool: SourceTool) -> None:
    # only the value of pref_loss says which loss it is
    assert {key for key in tool.keys if not describe_program_word(key)} <= {"pref_loss"}


def test_every_word_of_other_tools_leads_to_entries() -> None:
    for word in TOOL_WORDS:
        assert explain_word(word)


def test_a_rule_is_found_by_a_word_of_its_description() -> None:
    assert "heads-divide-over-tp" in {entry.title for entry in search_reference("heads")}


@pytest.mark.parametrize(
    ("word", "meant"), [("warmpu", "warmup"), ("optimizer:moun", "optimizer:muon")]
)
def test_a_word_that_nothing_mentions_gets_the_nearest_one(word: str, meant: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        explain_word(word)
    assert found.value.exit_code == 2
    plugin = " Those of a plug-in need --plugins FILE.py" if ":" in word else ""
    assert found.value.problems[0].hint == f"did you mean '{meant}'?{plugin}"


@pytest.mark.parametrize(
    ("path", "default"),
    [
        ("parallelism.tensor_parallel_degree", "1 rank"),
        ("launch.nnodes", "1 machine"),
        ("launch.rdzv_timeout_seconds", "600 seconds"),
    ],
)
def test_a_default_agrees_with_its_unit(path: str, default: str) -> None:
    """Row C15: "default 1 ranks"."""
    assert f"default      {default}\n" in explain_word(path)


def test_fields_of_a_section_read_as_sentences() -> None:
    fields = explain_word("optimizer:adamw") + explain_word("compile") + explain_word("parallelism")
    assert "param_groups: list of sections; default []" in fields
    assert "default default" not in explain_word("debug") + explain_word("comm") + fields


def test_the_example_of_each_field_is_a_whole_section() -> None:
    count = 0
    for text in list_explainable_paths():
        for found in find_field_locations(tuple(text.split("."))):
            # a recipe and its training section need what only their user knows
            if found.recipe_example is None or found.holder in (Recipe, TrainingConfig):
                continue
            section = found.recipe_example
            for step in found.path[:-1]:
                section = section[step]
            found.holder.model_validate(section)
            count += 1
    assert count > 20_000


def test_the_example_of_a_setting_does_not_change_the_component() -> None:
    # the default has it too: naming another one would train otherwise
    assert "in a recipe  optimizer: {beta1: 0.9}\n" in explain_word("optimizer.beta1")
    assert "in a recipe  lr_scheduler: {min_lr_factor: 0.1}\n" in explain_word(
        "lr_scheduler.min_lr_factor"
    )
    assert "in a recipe  converters: [{name: lora, rank: 8}]\n" in explain_word("converters.rank")
