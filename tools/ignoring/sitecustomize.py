"""Python imports this before anything else in the processes that tools/try_leaves.py starts: one setting is ignored in them."""

import os

from recipe_leaves import ignore, leaves

if "TITANRUN_IGNORED" in os.environ:
    ignore(leaves()[os.environ["TITANRUN_IGNORED"]])
