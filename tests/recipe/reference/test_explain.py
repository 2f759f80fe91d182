"""Explanations of the words that titanrun prints."""

from typing import get_args

import pytest

from titanrun.components.data.source_faults import FaultKind
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.reference.explain import explain_word
from titanrun.recipe.reference.reference_search import MAX_HITS, search_reference
from titanrun.recipe.reference.tool_words import TOOL_WORDS


@pytest.mark.parametrize(
    "word", ["another-run", "conflict/run-in-use", "non-finite", "memory", "disk"]
)
def test_what_ends_a_run_is_explained(word: str) -> None:
    told = explain_word(word)
    assert told.startswith(f"error[{word}]\n")
    assert "cause" in told and "fix" in told


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
        ("max_samples", "training.steps"),
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
        ("report_to", "metrics.trackers"),
    ],
)
def test_a_word_of_other_tools_leads_to_the_setting(word: str, path: str) -> None:
    assert explain_word(word, columns=80).splitlines()[1].split()[0] == path


def test_a_word_without_setting_names_the_command() -> None:
    assert "titanrun push RUN OWNER/NAME" in explain_word("push_to_hub")


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
    assert found.value.problems[0].hint == f"did you mean '{meant}'?"


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
