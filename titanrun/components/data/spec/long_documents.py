"""What is said of documents longer than a sequence. Torch-free."""

from titanrun.config.pluralize import pluralize


def describe_long_documents(
    noun: str, too_long: int, total: int, *, sample_length: int, longest: int
) -> str:
    """Return how many documents are longer than a sequence, for messages.

    Args:
        noun: Name of a document.
        too_long: Number of documents that are longer.
        total: Number of documents.
        sample_length: Tokens of a sequence with its label.
        longest: Tokens of the longest document.
    """
    return (
        f"{pluralize(too_long, noun)} of {total:,} longer than a sequence of {sample_length:,} "
        f"tokens, the longest {longest:,}"
    )


def suggest_sequence_length(longest: int) -> str:
    """Return the setting of the sequence length, a power of two, that holds the longest."""
    return f"set seq_len: {round_up_to_power(longest)}, which holds the longest"


def round_up_to_power(length: int) -> int:
    """Return the power of two that is no less than a length."""
    return 1 << (length - 1).bit_length()
