"""Tags of a run, which are words that a person gives it."""

import re
from collections.abc import Sequence
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.recipe.rundir.run_files import TAGS, write_indented_json
from titanrun.runs.run_summary import read_tags

TAG_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]*")


def change_tags(folder: Path, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
    """Add tags to a run and remove others, and return its tags.

    Raises:
        ProblemsFound: One is not a tag, or is to be removed and is not there.
    """
    for word in (*add, *remove):
        if not TAG_PATTERN.fullmatch(word):
            raise problem_error(
                "usage",
                f"'{word}' is not a valid tag",
                hint="use letters, digits and ._:/+-, a letter or a digit first",
            )
    before = read_tags(folder)
    missing = [word for word in remove if word not in before]
    if missing:
        raise problem_error(
            "usage",
            f"'{folder}' has no tag '{missing[0]}'",
            hint=f"it has {', '.join(before) or 'none'}",
        )
    after = [word for word in dict.fromkeys((*before, *add)) if word not in remove]
    if tuple(after) != before:
        write_indented_json(folder / TAGS, {"tags": after})
    return after
