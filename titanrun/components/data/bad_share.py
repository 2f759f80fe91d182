"""Limit on the share of records that cannot be read and are skipped."""

from titanrun.config.problems import problem_error


def check_bad_share(num_bad: int, num_records: int, *, max_share: float) -> None:
    """Raise a data problem if more than `max_share` of all records cannot be read."""
    if num_bad > max_share * num_records:
        raise problem_error(
            "data",
            f"{num_bad:,} of {num_records:,} records cannot be read, "
            f"more than max_bad_share {max_share:g} allows",
            path=("max_bad_share",),
            hint="repair the files; the first ones are named in the log",
        )
