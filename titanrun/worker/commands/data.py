"""`python -m titanrun.worker.commands.data`: tokenize and inspect a recipe's data.

It also verifies and prunes the cache of tokenized data.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrun.components.data.chat_config import (
    ChatDatasetConfig,
    ConversationsConfig,
)
from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.data_inspection import (
    DataSummary,
    label_text_segments,
    summarize_dataset,
)
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.reply_ends import ReplyEnds
from titanrun.components.data.sample_order import compute_epoch_order, get_epoch_size
from titanrun.components.data.stream_preview import PREVIEW_SEQUENCES, StreamPreview
from titanrun.components.data.token_cache_maintenance import (
    discard_damaged_indexes,
    finish_repair,
    prune_token_cache,
    verify_token_cache,
)
from titanrun.components.data.token_file_digests import prune_token_files, verify_token_files
from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.end_of_turn import find_end_ids
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import DataPath, Problem, ProblemsFound, problem_error
from titanrun.config.tree import format_path
from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.recipe.rules.data import get_all_datasets, get_datasets_with_paths
from titanrun.worker.build.build_data import (
    DataParallelRank,
    build_dataset,
    build_tokenizer,
    count_validation_rows,
    get_cache_folder,
    get_holdout,
    list_held_out_sets,
)
from titanrun.worker.build.build_stream_loader import (
    DATASET_PATH,
    build_stream_loader,
    plan_training_streams,
)
from titanrun.worker.commands.build_units import (
    Part,
    finish_units,
    list_streamed_sections,
    tokenize_units,
)
from titanrun.worker.commands.data_statistics import build_data_summary
from titanrun.worker.commands.dry_build import build_problem_to_dict

if TYPE_CHECKING:
    from titanrun.worker.commands import teach
else:
    # imports the models
    teach = LazyModule("titanrun.worker.commands.teach")

DataRequest = dict[str, Any]


def main() -> int:
    """Read {"action": ..., "resolved": text, ...}, write {"answer": ..., "problems": [...]}.

    Input is stdin, output is stdout, progress goes to stderr.
    """
    request = json.loads(sys.stdin.read())
    logging.basicConfig(
        level=logging.ERROR if request["quiet"] else logging.WARNING,
        format="%(message)s",
        stream=sys.stderr,
    )
    if not request["quiet"]:
        # the clients of the Hub and of stores log each of their requests
        logging.getLogger("titanrun").setLevel(logging.INFO)
    answer: DataRequest = {"answer": None, "problems": []}
    try:
        answer["answer"] = ACTIONS[request["action"]](request)
    except ProblemsFound as found:
        answer["problems"] = [build_problem_to_dict(problem) for problem in found.problems]
    except OSError as error:
        # of a file: what else fails is an internal error
        if error.filename is None:
            raise
        message = f"cannot use '{error.filename}': {(error.strerror or str(error)).lower()}"
        answer["problems"] = [build_problem_to_dict(Problem("file", message))]
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def tokenize_datasets(request: DataRequest) -> list[DataRequest]:
    """Tokenize all datasets that are not cached, and return section and size of each.

    With `part`, only the units of this part are tokenized, and the answer is their number and the
    sections that are streams.
    """
    recipe = load_resolved_text(request["resolved"])
    folder = get_cache_folder(recipe, Path())
    workers, part = request["workers"], Part(*(request["part"] or ()))
    if request["part"]:
        check_has_tokens(recipe)
        tokenizer = build_tokenizer(recipe)
        count = tokenize_units(recipe, tokenizer, part, num_workers=workers or 1)
        streams = [
            {"section": section, "rows": None, "folder": str(folder)}
            for section in list_streamed_sections(recipe)
        ]
        return [{"part": request["part"], "units": count}, *streams]
    discarded = discard_damaged_indexes(folder) if request["repair"] else {}
    try:
        if workers or request["finish"] or any(record.units for record in discarded.values()):
            check_has_tokens(recipe)
            tokenizer = build_tokenizer(recipe)
            if not request["finish"]:
                tokenize_units(recipe, tokenizer, part, num_workers=workers or 1)
            finish_units(recipe, tokenizer)
        _, opened = open_datasets(recipe, preview=0)
    finally:
        repaired = finish_repair(folder, discarded)
    return [
        {
            "section": section,
            "rows": None if isinstance(rows, StreamPreview) else get_epoch_size(rows),
            # data that ships with titanrun, and files of tokens, make no cache
            "folder": str(folder) if folder.is_dir() else None,
        }
        for section, rows in opened.items()
    ] + [{"repaired": entry} for entry in repaired]


def export_tokenizer(request: DataRequest) -> DataRequest:
    """Return the tokenizer of the training data as a file of the tokenizers library.

    It adds the tokens before and after each document itself, which are returned too.
    """
    recipe = load_resolved_text(request["resolved"])
    tokenizer, config = build_tokenizer(recipe), recipe.training.dataset
    if not isinstance(tokenizer, HuggingFaceTokenizer) or not isinstance(config, DocumentsConfig):
        raise problem_error(
            "usage",
            "this tokenizer is not one of the tokenizers library",
            path=("tokenizer",),
            hint="use titanrun data build without --pipeline",
        )
    begin = tokenizer.encode("", add_bos=True, add_eos=False) if config.add_bos else []
    end = tokenizer.encode("", add_bos=False, add_eos=True) if config.add_eos else []
    return {
        "tokenizer": tokenizer.dump_json(begin, end),
        "fingerprint": tokenizer.fingerprint,
        "begin": [(tokenizer.get_token_text(token), token) for token in begin],
        "end": [(tokenizer.get_token_text(token), token) for token in end],
    }


def write_teacher_predictions(request: DataRequest) -> list[DataRequest]:
    """Write what the teacher of a recipe predicts for its data, and return the folders."""
    recipe = load_resolved_text(request["resolved"])
    tokenizer, opened = open_datasets(recipe)
    return teach.write_predictions(recipe, opened, tokenizer)


def show_samples(request: DataRequest) -> list[DataRequest]:
    """Return the first or the requested samples of a run, and a summary of all samples."""
    recipe = load_resolved_text(request["resolved"])
    preview = max(PREVIEW_SEQUENCES, request["count"], (request["row"] or 0) + 1)
    tokenizer, opened = open_datasets(recipe, preview=preview)
    reply_ends = build_reply_ends(recipe, tokenizer)
    looks = summarize_datasets(opened, tokenizer, reply_ends)
    return [
        {
            "section": section,
            "samples": decode_samples(
                recipe, section, rows, tokenizer, request, reply_ends.get(section)
            )
            if request["section"] in (None, section.partition(".")[0])
            else [],
            **build_data_summary(section, opened, looks),
        }
        for section, rows in opened.items()
    ]


def compute_data_stats(request: DataRequest) -> list[DataRequest]:
    """Return a summary of all samples, with lengths of documents and loss tokens per sample."""
    recipe = load_resolved_text(request["resolved"])
    tokenizer, opened = open_datasets(recipe)
    looks = summarize_datasets(opened, tokenizer, build_reply_ends(recipe, tokenizer))
    return [
        {
            "section": section,
            **build_data_summary(section, opened, looks),
            "lengths": looks[section].document_lengths,
            "counted_of_rows": looks[section].loss_tokens_per_sample,
        }
        for section in opened
    ]


def summarize_datasets(
    opened: Mapping[str, IndexedDataset],
    tokenizer: Tokenizer | None,
    reply_ends: Mapping[str, ReplyEnds],
) -> dict[str, DataSummary]:
    """Return a summary of each dataset."""
    eos_id = None if tokenizer is None else tokenizer.eos_id
    return {
        section: summarize_dataset(rows, eos_id=eos_id, reply_ends=reply_ends.get(section))
        for section, rows in opened.items()
    }


def build_reply_ends(recipe: Recipe, tokenizer: Tokenizer | None) -> dict[str, ReplyEnds]:
    """Return the check of replies of each dataset with conversations."""
    if not isinstance(tokenizer, ChatTokenizer):
        return {}
    found: dict[str, set[int]] = {}
    sections = [place for place, _ in get_datasets_with_paths(recipe)]
    for path, dataset in get_all_datasets(recipe):
        section = next((place for place in sections if path[: len(place)] == place), None)
        config = dataset.to_chat_config() if isinstance(dataset, ConversationsConfig) else dataset
        if section is None or not isinstance(config, ChatDatasetConfig | RepliesConfig):
            continue
        template = load_chat_template(tokenizer)
        found.setdefault(get_dataset_name(section), set()).update(find_end_ids(template, tokenizer))
    if recipe.validation.holdout is not None and "training" in found:
        found["validation"] = found["training"]
    return {name: ReplyEnds(ids, tokenizer) for name, ids in found.items()}


def open_datasets(
    recipe: Recipe, *, preview: int = PREVIEW_SEQUENCES
) -> tuple[Tokenizer | None, dict[str, IndexedDataset]]:
    """Build the tokenizer, and the dataset of each section that reads data.

    Of a stream, only the first `preview` sequences are read.
    """
    check_has_tokens(recipe)
    tokenizer = build_tokenizer(recipe)
    opened: dict[str, IndexedDataset] = {
        "training": preview_stream(recipe, tokenizer, count=preview)
        if recipe.training.dataset.is_streamed
        else build_dataset(
            recipe.training.dataset,
            DATASET_PATH,
            recipe,
            tokenizer=tokenizer,
            seq_len=recipe.training.seq_len,
            run_dir=Path(),
            holdout=get_holdout(recipe),
        )
    }
    for one in list_held_out_sets(recipe) if recipe.validation.enable else ():
        assert recipe.validation.seq_len != "auto"
        opened[one.section] = build_dataset(
            one.dataset,
            one.path,
            recipe,
            tokenizer=tokenizer,
            seq_len=recipe.validation.seq_len,
            run_dir=Path(),
            holdout=one.holdout,
            max_rows=count_validation_rows(recipe),
        )
    return tokenizer, opened


def check_has_tokens(recipe: Recipe) -> None:
    """Raise a problem if the data of a recipe is not text."""
    if recipe.model.modality != "tokens":
        hint = "open the files directly: a run reads only their names and captions"
        raise problem_error(
            "usage",
            f"{recipe.model.name} trains on {recipe.model.modality}, "
            "but only text can be tokenized and shown",
            hint=hint,
        )


def preview_stream(recipe: Recipe, tokenizer: Tokenizer | None, *, count: int) -> IndexedDataset:
    """Return the first sequences of the training data, which is streamed."""
    assert tokenizer is not None, "a rule asks for one"
    loader = build_stream_loader(
        recipe,
        tokenizer,
        None,
        DataParallelRank(),
        RankGroup(),
        plan_training_streams(recipe, RankGroup()),
    )
    with closing(loader):
        return StreamPreview(loader, count=count)


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
    reply_ends: ReplyEnds | None,
) -> list[DataRequest]:
    """Return samples as text."""
    if request["row"] is not None:
        numbers = [request["row"]] if request["row"] < len(rows) else []
    else:
        is_shuffled = (
            section == "training"
            and recipe.training.dataset.shuffle
            and not isinstance(rows, StreamPreview)
        )
        order = compute_epoch_order(rows, 0, seed=recipe.debug.seed if is_shuffled else None)
        numbers = order[: request["count"]].tolist()
    has_labels = recipe.loss.compares == "labels"
    return [
        {
            "row": number,
            "pieces": label_text_segments(
                rows[number], tokenizer, reply_ends, has_labels=has_labels
            ),
        }
        for number in numbers
    ]


def verify_folder(request: DataRequest) -> list[DataRequest]:
    """Verify every index and token file of a folder."""
    folder = Path(request["folder"])
    return verify_token_cache(folder) + verify_token_files(folder)


def prune_folder(request: DataRequest) -> list[DataRequest]:
    """Remove what a folder no longer needs, and return it."""
    folder, should_delete = Path(request["folder"]), request["yes"]
    return prune_token_cache(
        folder,
        should_delete_all=request["all"],
        max_unused_days=request["days"],
        should_delete=should_delete,
    ) + prune_token_files(folder, should_delete_all=request["all"], should_delete=should_delete)


ACTIONS: dict[str, Callable[[DataRequest], Any]] = {
    "build": tokenize_datasets,
    "tokenizer": export_tokenizer,
    "show": show_samples,
    "teach": write_teacher_predictions,
    "stats": compute_data_stats,
    "verify": verify_folder,
    "prune": prune_folder,
}


if __name__ == "__main__":
    sys.exit(main())
