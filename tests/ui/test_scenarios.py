"""Each of the 30 scenarios of the page names tests that exist."""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent


def test_every_scenario_has_its_tests() -> None:
    scenarios = tomllib.loads((HERE / "scenarios.toml").read_text())["scenario"]
    assert len(scenarios) == len({one["title"] for one in scenarios}) == 30
    for one in scenarios:
        assert one["tests"], one["title"]
        for name in one["tests"]:
            file, _, function = name.partition("::")
            text = (HERE / file).read_text()
            assert re.search(rf"^def {function}\(", text, re.MULTILINE), name
