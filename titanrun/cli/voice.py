"""What a command says beside its answer, on stderr: notes unless -q was given, details where -v was."""

import sys
from argparse import Namespace

from titanrun.config.problems import SourceText
from titanrun.config.tree import Node, walk
from titanrun.launch.saying import say


def note(options: Namespace, text: str) -> None:
    """One line that -q silences."""
    if not options.quiet:
        say(text)


def detail(options: Namespace, text: str) -> None:
    """One line that only -v shows."""
    if options.verbose:
        print(text, file=sys.stderr)


def detail_files(options: Namespace, tree: Node | None) -> None:
    """With -v: the files that values came from, and where each is included."""
    if tree is None or not options.verbose:
        return
    texts: dict[int, SourceText] = {id(tree.origin.source): tree.origin.source}
    for _, node in walk(tree):
        for origin in (node.origin, *node.shadowed):
            texts.setdefault(id(origin.source), origin.source)
    for text in texts.values():
        if text.kind == "file":
            chain = f" (included from {text.included_from})" if text.included_from else ""
            detail(options, f"read {text.name}{chain}")
