"""Edits that write the word of a hint in the place of a name of another program."""

import re

from titanrun.config.problems import Fix, Problem
from titanrun.config.text_edits import build_word_fix
from titanrun.config.tree import Node, find_node

SINGLE_WORD = re.compile(r"write (?:\{name: (\w+)\}|(\w+)(?:, which is the accelerator [^;]*)?)")
DECIDED_BY_AUTHOR = ("kind",)
"""Fields whose other words are too vague: `full` may be any kind of training."""


def build_hinted_fix(problem: Problem, hint: str, tree: Node) -> Fix | None:
    """Return the edit that writes the only word of a hint, None if the hint has more than one.

    Values that an alias or a reference leads to are left alone.
    """
    found = SINGLE_WORD.fullmatch(hint)
    node = find_node(tree, problem.path)
    is_other = problem.code != "unknown-name" or problem.path[-1] in DECIDED_BY_AUTHOR
    if found is None or is_other or node is None or node.alias_origins or node.via != "file":
        return None
    name = problem.got.get("name") if isinstance(problem.got, dict) else problem.got
    return build_word_fix(problem.origin, str(name), found[1] or found[2])
