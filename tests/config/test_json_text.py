"""Row D7 of the defect list: a limit that is the same on every Python version, wherever it is read
from: interpreters differ in how deep they go."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanrun.config.json_text import MAX_JSON_DEPTH, JsonDepthError, parse_json

PACKAGE = Path(__file__).parents[2] / "titanrun"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture
def deep_recursion() -> Iterator[None]:
    """An interpreter that lets json go far deeper than the limit."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(before)


def nest(depth: int, value: str = "") -> str:
    return "[" * depth + value + "]" * depth


@given(VALUES)
def test_it_reads_what_json_reads(value: Any) -> None:
    text = json.dumps(value)
    assert parse_json(text) == parse_json(text.encode("utf-16")) == value


@pytest.mark.parametrize("text", [nest(MAX_JSON_DEPTH), "[" + "[]," * 5000 + "1]"])
def test_allowed_depth_and_wide_texts_are_read(text: str) -> None:
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize(
    "text", [nest(MAX_JSON_DEPTH + 1), nest(3000), "[" * 3000, '{"a":' * 3000, nest(3000).encode()]
)
@pytest.mark.usefixtures("deep_recursion")
def test_deeper_nesting_is_refused_at_its_bracket_on_every_interpreter(text: str | bytes) -> None:
    with pytest.raises(
        JsonDepthError, match=f"nested deeper than {MAX_JSON_DEPTH} levels"
    ) as error:
        parse_json(text)
    assert error.value.pos == MAX_JSON_DEPTH * (5 if text[:1] == "{" else 1)


def test_brackets_in_texts_are_not_nesting() -> None:
    texts = ["[{" * 500, 'a "quoted" [' * 300, "\\", '\\"[[']
    assert parse_json(json.dumps(texts)) == texts
    # a text that never ends is json's to report
    with pytest.raises(json.JSONDecodeError, match="Unterminated string"):
        parse_json('["' + "[" * 1000)


def test_only_texts_of_our_own_processes_are_read_without_the_limit() -> None:
    """Every other reader would raise RecursionError on some interpreters."""
    ours = {
        "cli/data.py",
        "cli/doctor.py",
        # text of a program that it writes
        "cli/pipeline_source.py",
        "cli/schema_words.py",
        "config/json_text.py",
        "integrations/vllm/vllm_server.py",
        "launch/worker_query.py",
        "models/transformers/config.py",
        "models/transformers/huggingface.py",
        "recipe/plugin_files.py",
        "rl/fleet/rollout_messages.py",
        # the example of a program that people write
        "rl/rewards/config.py",
        "rl/weight_sync/shared_memory_transport.py",
        # built with the package
        "ui/http_server.py",
        "worker/ray_owner.py",
    }
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "json.loads(" in path.read_text(encoding="utf-8")
        and path.parent != PACKAGE / "worker" / "commands"
    }
    assert found <= ours


def refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize("constant", ["NaN", "-Infinity"])
def test_constants_go_to_the_caller(constant: str) -> None:
    reader: Callable[[str], None] = refuse
    with pytest.raises(ValueError, match=constant):
        parse_json(f"[{constant}]", parse_constant=reader)
