"""How many documents a split for validation needs. Torch-free."""

MIN_DOCUMENTS = 2
"""Documents that each side of a split needs."""
ONE_DOCUMENT_HINT = "write a jsonl file with one document per line, or name more files"
"""Hint for data in which too few documents are large ones."""
