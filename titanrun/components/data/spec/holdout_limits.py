"""How many documents a split for validation needs. Torch-free."""

from titanrun.config.pluralize import pluralize

MIN_DOCUMENTS = 2
"""Documents that each side of a split needs."""
HOLDOUT_SHARE = 0.05
"""Share that is held out where nobody knows better."""
ONE_DOCUMENT_HINT = (
    "write a jsonl file with one document per line, name more files, or remove section validation"
)
"""Hint for data in which too few documents are large ones."""


def describe_small_side(
    size: float, held: int, total: int, *, noun: str, source: str, takes_number: bool = True
) -> tuple[str, str] | None:
    """Return message and hint of a split of which a side has too few documents, or None.

    Args:
        size: `validation.holdout`.
        held: Number of documents that are held out.
        total: Number of documents.
        noun: Name of a document.
        source: Path or name of the data.
        takes_number: Whether `validation.holdout` may be a number of documents.
    """
    trained = total - held
    if held >= MIN_DOCUMENTS and trained >= MIN_DOCUMENTS:
        return None
    side, found = ("held out", held) if held < MIN_DOCUMENTS else ("left to train on", trained)
    message = (
        f"validation.holdout {size:g}: {found} of the {pluralize(total, noun)} of '{source}' would "
        f"be {side}"
    )
    rule = f"each side needs {MIN_DOCUMENTS} or more"
    if total < 2 * MIN_DOCUMENTS:
        few = "no share is enough for so few"
        if source.endswith(".txt"):
            return message, f"{few} (a .txt file is one document): {ONE_DOCUMENT_HINT}"
        return message, f"{few}: remove section validation, or use more data"
    if not takes_number:
        return message, f"{rule}: set another share, or use more data"
    wanted = round(size * total) if size < 1 else int(size)
    if wanted > total - MIN_DOCUMENTS:
        number = max(MIN_DOCUMENTS, round(HOLDOUT_SHARE * total))
        usual = f"set validation.holdout: {number}, which is {HOLDOUT_SHARE:.0%} of them"
        return message, f"{rule}: {usual}"
    number = max(wanted, MIN_DOCUMENTS)
    return message, f"{rule}: set validation.holdout: {number} to hold out that many"
