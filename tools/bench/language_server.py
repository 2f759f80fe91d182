"""What `titanrun lsp` takes from an edit to the diagnostics, less its pause after the last key."""

import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
# python tools/bench begins with this folder on the path, not with the repository
sys.path.append(str(ROOT))

from tests.lsp.client import Client  # noqa: E402
from titanrun.lsp.server import DELAY_SECONDS  # noqa: E402

RECIPES = ("llama3_debug.yaml", "rl/char_share.yaml", "llama3_70b.yaml")
WARM_UP, EDITS = 10, 100
MISTAKE = "stepz: 1\n"


def language_server_report() -> None:
    """Print the times of edits that add a mistake and take it back."""
    client = Client()
    for name in RECIPES:
        file = ROOT / "recipes" / name
        text = file.read_text(encoding="utf-8")
        client.open(file)
        times = []
        for number in range(WARM_UP + EDITS):
            start = time.perf_counter()
            version = client.change(file, text + MISTAKE * (number % 2) + "#" * number)
            found = client.wait_for(file, version)
            times.append(time.perf_counter() - start - DELAY_SECONDS)
            assert bool(found) == bool(number % 2), found
        warm = times[WARM_UP:]
        print(
            f"lsp: {name}: {statistics.median(warm) * 1e3:.0f} ms from edit to diagnostics, "
            f"95th percentile {statistics.quantiles(warm, n=20)[-1] * 1e3:.0f} ms    target 40"
        )
    client.close()
