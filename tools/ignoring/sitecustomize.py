"""Ignore one setting in the processes that tools/try_leaves.py starts.

Python imports this file before anything else in them.
"""

import os

from recipe_leaves import ignore, leaves

if "TITANRUN_IGNORED" in os.environ:
    ignore(leaves()[os.environ["TITANRUN_IGNORED"]])
