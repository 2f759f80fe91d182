"""What holds for every test: one thread, since the models are tiny and the machine is shared; the same examples in every run.

`pytest --hypothesis-profile=default` draws new ones.
"""

import os

import hypothesis

os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile("same", derandomize=True, database=None, print_blob=True, deadline=None)
hypothesis.settings.load_profile("same")
