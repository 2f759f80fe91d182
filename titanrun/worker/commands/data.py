"""`python -m titanrun.worker.commands.data`: tokenize and inspect a recipe's data.

It also verifies and prunes the cache of tokenized data.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from titanrun.components.data.data_inspection import (
    DataSummary,
    label_text_segments,
    summarize_dataset,
)
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.sample_order import compute_epoch_order, get_epoch_size
from titanrun.components.data.token_cache_maintenance import prune_token_cache, verify_token_cache
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import DataPath, ProblemsFound, problem_error
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.rules.data import get_datasets_with_paths
from titanrun.worker.build.build_data import build_dataset, build_tokenizer, get_cache_folder
from titanrun.worker.commands.dry_build import build_problem_to_dict

DataRequest = dict[str, Any]


def main() -> int:
    """Read {"action": ..., "resolved": text, ...}, write {"answer": ..., "problems": [...]}.

    Input is stdin, output is stdout, progress goes to stderr.
    """
    request = json.loads(sys.stdin.read())
    logging.basicConfig(
        level=logging.ERROR if request["quiet"] else logging.INFO,
        format="%(message)s",
        stream=sys.stderr,
    )
    answer: DataRequest = {"answer": None, "problems": []}
    try:
        answer["answer"] = ACTIONS[request["action"]](request)
    except ProblemsFound as found:
        answer["problems"] = [build_problem_to_dict(problem) for problem in found.problems]
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def tokenize_datasets(request: DataRequest) -> list[DataRequest]:
    """Tokenize all datasets that are not cached, and return section and size of each."""
    recipe = load_resolved_text(request["resolved"])
    _, opened = open_datasets(recipe)
    folder = str(get_cache_folder(recipe, Path()))
    return [
        {"section": section, "rows": get_epoch_size(rows), "folder": folder}
        for section, rows in opened.items()
    ]


def show_samples(request: DataRequest) -> list[DataRequest]:
    """Return the first or the requested samples of a run, and a summary of all samples."""
    recipe = load_resolved_text(request["resolved"])
    tokenizer, opened = open_datasets(recipe)
    looks = {
        section: summarize_dataset(rows, eos_id=None if tokenizer is None else tokenizer.eos_id)
        for section, rows in opened.items()
    }
    return [
        {
            "section": section,
            "samples": decode_samples(recipe, section, rows, tokenizer, request)
            if request["section"] in (None, section.partition(".")[0])
            else [],
            **build_data_summary(rows, looks[section], looks.get("training")),
        }
        for section, rows in opened.items()
    ]


def compute_data_stats(request: DataRequest) -> list[DataRequest]:
    """Return a summary of all samples, with lengths of documents and loss tokens per sample."""
    recipe = load_resolved_text(request["resolved"])
    tokenizer, opened = open_datasets(recipe)
    looks = {
        section: summarize_dataset(rows, eos_id=None if tokenizer is None else tokenizer.eos_id)
        for section, rows in opened.items()
    }
    return [
        {
            "section": section,
            **build_data_summary(rows, looks[section], looks.get("training")),
            "lengths": looks[section].document_lengths,
            "counted_of_rows": looks[section].loss_tokens_per_sample,
        }
        for section, rows in opened.items()
    ]


def open_datasets(recipe: Recipe) -> tuple[Tokenizer | None, dict[str, IndexedDataset]]:
    """Build the tokenizer, and the dataset of each section that reads data."""
    if recipe.model.modality != "tokens":
        hint = "open the files directly: a run reads only their names and captions"
        raise problem_error(
            "usage",
            f"{recipe.model.name} trains on {recipe.model.modality}, "
            "but only text can be tokenized and shown",
            hint=hint,
        )
    tokenizer = build_tokenizer(recipe)
    lengths: dict[Any, Any] = {
        "training": recipe.training.seq_len,
        "validation": recipe.validation.seq_len,
    }
    return tokenizer, {
        get_dataset_name(place): build_dataset(
            config, place, recipe, tokenizer=tokenizer, seq_len=lengths[place[0]], run_dir=Path()
        )
        for place, config in get_datasets_with_paths(recipe)
    }


def get_dataset_name(path: DataPath) -> str:
    """Return the name of a dataset: training, validation, or validation.further[0] and so on."""
    return format_path(path[:-1])


def get_top_section(section: str) -> str:
    """Return the recipe section of a dataset."""
    return section.partition(".")[0]


def decode_samples(
    recipe: Recipe,
    section: str,
    rows: IndexedDataset,
    tokenizer: Tokenizer | None,
    request: DataRequest,
) -> list[DataRequest]:
    """Return samples as text."""
    if request["row"] is not None:
        numbers = [request["row"]] if request["row"] < len(rows) else []
    else:
        is_shuffled = section == "training" and recipe.training.dataset.shuffle
        order = compute_epoch_order(rows, 0, seed=recipe.debug.seed if is_shuffled else None)
        numbers = order[: request["count"]].tolist()
    return [
        {"row": number, "pieces": label_text_segments(rows[number], tokenizer)}
        for number in numbers
    ]


def build_data_summary(
    rows: IndexedDataset, data_summary: DataSummary, train_summary: DataSummary | None
) -> DataRequest:
    """Return statistics of a dataset, with the number of documents shared with training."""
    shared = (
        len(set(data_summary.document_digests) & set(train_summary.document_digests))
        if train_summary is not None and train_summary is not data_summary
        else None
    )
    return {
        "rows": get_epoch_size(rows),
        "looked_at": data_summary.num_samples,
        "row_length": data_summary.num_tokens // max(1, data_summary.num_samples),
        "documents": len(data_summary.document_lengths),
        "longest": max(data_summary.document_lengths, default=0),
        "filled": data_summary.num_nonpadding_tokens / max(1, data_summary.num_tokens),
        "counted": data_summary.num_loss_tokens
        / max(1, data_summary.num_tokens - data_summary.num_samples),
        "without_labels": data_summary.loss_tokens_per_sample.count(0),
        "duplicates": len(data_summary.document_digests) - len(set(data_summary.document_digests)),
        "in_training": shared,
        "left_out": getattr(rows, "num_dropped", 0),
        "cut": getattr(rows, "num_truncated", 0),
    }


ACTIONS: dict[str, Callable[[DataRequest], Any]] = {
    "build": tokenize_datasets,
    "show": show_samples,
    "stats": compute_data_stats,
    "verify": lambda request: verify_token_cache(Path(request["folder"])),
    "prune": lambda request: prune_token_cache(
        Path(request["folder"]),
        should_delete_all=request["all"],
        max_unused_days=request["days"],
        should_delete=request["yes"],
    ),
}


if __name__ == "__main__":
    sys.exit(main())
