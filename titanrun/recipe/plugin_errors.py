"""Place in the code of a plug-in where an error came from."""

import traceback
from pathlib import Path

from titanrun.recipe.plugins import get_plugin_packages


def find_plugin_place(error: BaseException) -> str | None:
    """Return the last line of a plug-in that an error passed, such as `raised in a.py, line 3`.

    Return None if it passed none. Errors that it was raised from count too.
    """
    packages, found = get_plugin_packages(), None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] in packages:
            found = f"raised in {Path(frame.f_code.co_filename).name}, line {line}"
    if found is None and error.__cause__ is not None:
        return find_plugin_place(error.__cause__)
    return found
