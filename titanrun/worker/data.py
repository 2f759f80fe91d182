"""`python -m titanrun.worker.data`: tokenises the data of a recipe and looks at it; checks and clears what was tokenised."""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from titanrun.components.data.cache_care import prune, verify
from titanrun.components.data.loader import row_order
from titanrun.components.data.looked_at import Look, look, pieces
from titanrun.components.data.rows import Rows
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import DataPath, ProblemsFound, fail
from titanrun.config.tree import path_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.recipe.rules.data import placed_datasets
from titanrun.worker.build_data import build_rows, build_tokenizer, cache_folder
from titanrun.worker.try_build import as_data

Request = dict[str, Any]


def main() -> int:
    """Reads {"action": ..., "resolved": text, ...} from stdin, writes {"answer": ..., "problems": [...]}; progress goes to stderr."""
    request = json.loads(sys.stdin.read())
    logging.basicConfig(
        level=logging.ERROR if request["quiet"] else logging.INFO,
        format="%(message)s",
        stream=sys.stderr,
    )
    answer: Request = {"answer": None, "problems": []}
    try:
        answer["answer"] = ACTIONS[request["action"]](request)
    except ProblemsFound as found:
        answer["problems"] = [as_data(problem) for problem in found.problems]
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def build(request: Request) -> list[Request]:
    """Tokenises what is not tokenised yet; for each dataset where it is used and what came of it."""
    recipe = read_resolved_text(request["resolved"])
    _, opened = open_all(recipe)
    folder = str(cache_folder(recipe, Path()))
    return [
        {"section": section, "rows": len(rows), "folder": folder}
        for section, rows in opened.items()
    ]


def show(request: Request) -> list[Request]:
    """The rows that a run begins with, or the ones asked for, and what all of them hold."""
    recipe = read_resolved_text(request["resolved"])
    tokenizer, opened = open_all(recipe)
    looks = {
        section: look(rows, eos_id=None if tokenizer is None else tokenizer.eos_id)
        for section, rows in opened.items()
    }
    return [
        {
            "section": section,
            "samples": samples(recipe, section, rows, tokenizer, request)
            if request["section"] in (None, section.partition(".")[0])
            else [],
            **summary(rows, looks[section], looks.get("training")),
        }
        for section, rows in opened.items()
    ]


def stats(request: Request) -> list[Request]:
    """What all rows hold, with lengths of documents and labels of rows one by one."""
    recipe = read_resolved_text(request["resolved"])
    tokenizer, opened = open_all(recipe)
    looks = {
        section: look(rows, eos_id=None if tokenizer is None else tokenizer.eos_id)
        for section, rows in opened.items()
    }
    return [
        {
            "section": section,
            **summary(rows, looks[section], looks.get("training")),
            "lengths": looks[section].lengths,
            "counted_of_rows": looks[section].counted_of_rows,
        }
        for section, rows in opened.items()
    ]


def open_all(recipe: Recipe) -> tuple[Tokenizer | None, dict[str, Rows]]:
    """The tokenizer, and the rows of each section that reads data."""
    if recipe.model.takes != "tokens":
        help = "look at the files themselves: their names and captions are all that a run reads"
        raise fail(
            "usage",
            f"{recipe.model.name} trains on {recipe.model.takes}, and only text is tokenised and shown",
            help=help,
        )
    tokenizer = build_tokenizer(recipe)
    lengths: dict[Any, Any] = {
        "training": recipe.training.seq_len,
        "validation": recipe.validation.seq_len,
    }
    return tokenizer, {
        name_of(place): build_rows(
            config, place, recipe, tokenizer=tokenizer, seq_len=lengths[place[0]], run_dir=Path()
        )
        for place, config in placed_datasets(recipe)
    }


def name_of(place: DataPath) -> str:
    """What a dataset is called in answers: training, validation, or of the further ones validation.further[0]."""
    return path_text(place[:-1])


def top(section: str) -> str:
    """The section of the recipe that a dataset stands in."""
    return section.partition(".")[0]


def samples(
    recipe: Recipe, section: str, rows: Rows, tokenizer: Tokenizer | None, request: Request
) -> list[Request]:
    """Rows as text."""
    if request["row"] is not None:
        numbers = [request["row"]] if request["row"] < len(rows) else []
    else:
        is_shuffled = section == "training" and recipe.training.dataset.shuffle
        order = row_order(len(rows), seed=recipe.debug.seed if is_shuffled else None, epoch=0)
        numbers = order[: request["count"]].tolist()
    return [{"row": number, "pieces": pieces(rows[number], tokenizer)} for number in numbers]


def summary(rows: Rows, seen: Look, trained: Look | None) -> Request:
    """Numbers about rows, and how many documents are in training as well."""
    shared = (
        len(set(seen.digests) & set(trained.digests))
        if trained is not None and trained is not seen
        else None
    )
    return {
        "rows": len(rows),
        "looked_at": seen.rows,
        "row_length": seen.tokens // max(1, seen.rows),
        "documents": len(seen.lengths),
        "longest": max(seen.lengths, default=0),
        "filled": seen.filled / max(1, seen.tokens),
        "counted": seen.counted / max(1, seen.tokens - seen.rows),
        "without_labels": seen.counted_of_rows.count(0),
        "duplicates": len(seen.digests) - len(set(seen.digests)),
        "in_training": shared,
        "left_out": getattr(rows, "left_out", 0),
        "cut": getattr(rows, "cut", 0),
    }


ACTIONS: dict[str, Callable[[Request], Any]] = {
    "build": build,
    "show": show,
    "stats": stats,
    "verify": lambda request: verify(Path(request["folder"])),
    "prune": lambda request: prune(
        Path(request["folder"]),
        everything=request["all"],
        days=request["days"],
        really=request["yes"],
    ),
}


if __name__ == "__main__":
    sys.exit(main())
