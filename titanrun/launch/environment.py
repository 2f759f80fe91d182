"""The environment as the description wing sees it: the only module of this wing that reads os.environ."""

import os
from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    """The environment variables that recipes may name in `${env:NAME}`."""
    return dict(os.environ)


def leave_out_pydantic_plugins() -> None:
    """Keep pydantic from importing what other packages register with it: foreign code in `validate`, and a search of all packages."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def ranks_around() -> int:
    """How many ranks torchrun or srun started beside and including this process."""
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdigit() else 1


def colour_wanted(stream_is_terminal: bool) -> bool:
    """Colour on a terminal only, never with NO_COLOR or on a dumb terminal."""
    return stream_is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
