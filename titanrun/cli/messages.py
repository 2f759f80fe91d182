"""Messages of a command on stderr: notes unless -q is given, details with -v."""

import sys
from argparse import Namespace

from titanrun.config.problems import SourceText
from titanrun.config.tree import Node, iter_nodes
from titanrun.launch.launcher_log import log_line


def print_note(options: Namespace, text: str) -> None:
    """Print one line that -q silences."""
    if not options.quiet:
        log_line(text)


def print_detail(options: Namespace, text: str) -> None:
    """Print one line that only -v shows."""
    if options.verbose:
        print(text, file=sys.stderr)


def print_source_files(options: Namespace, tree: Node | None) -> None:
    """With -v, print the files that values came from, and where each is included."""
    if tree is None or not options.verbose:
        return
    texts: dict[int, SourceText] = {id(tree.origin.source): tree.origin.source}
    for _, node in iter_nodes(tree):
        for origin in (node.origin, *node.shadowed_origins):
            texts.setdefault(id(origin.source), origin.source)
    for text in texts.values():
        if text.kind == "file":
            chain = f" (included from {text.included_from})" if text.included_from else ""
            print_detail(options, f"read {text.name}{chain}")
