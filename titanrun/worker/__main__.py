"""`python -m titanrun.worker`."""

import sys

from titanrun.worker.main import main

if __name__ == "__main__":
    sys.exit(main())
