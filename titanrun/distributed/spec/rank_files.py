"""Names of the files of a rank."""


def build_file_stem(rank: int, group: int | None) -> str:
    """Return a rank in the names of its files. `group` is its replica group, if there are any."""
    return f"rank-{rank}" if group is None else f"group-{group}-rank-{rank}"
