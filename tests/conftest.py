"""What holds for every test: one thread, since the models are tiny and the machine is shared."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
