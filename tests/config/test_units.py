"""Values with a unit: what is read, in which form it is kept, and what is said where it cannot be
read."""

from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from titanrun.config.base import Config, dump_config
from titanrun.config.describe_field import describe_fields
from titanrun.config.fields import bookkeeping
from titanrun.config.problems import Problem, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_toml, to_yaml
from titanrun.config.tree import to_plain_data
from titanrun.config.units import (
    SIZE_UNITS,
    ByteSize,
    Duration,
    StepsOrDuration,
    TokenCount,
    duration_to_seconds,
    parse_count,
    parse_milliseconds,
)
from titanrun.config.validate_tree import validate_tree


class Budget(Config):
    tokens: TokenCount | None = bookkeeping(None, examples=["10B"])
    size: ByteSize = bookkeeping(1)
    wait: Duration = bookkeeping("10m")
    every: StepsOrDuration = bookkeeping(500)


def problem(text: str, file_format: str = "yaml") -> Problem:
    (found,) = validate_tree(
        Budget, read_source_text(SourceText(f"r.{file_format}", text), file_format)
    ).problems  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("field", "written", "kept"),
    [
        ("tokens", "10B", 10_000_000_000),
        ("tokens", "500M", 500_000_000),
        ("tokens", "1.5K", 1500),
        ("tokens", "2T", 2 * 10**12),
        ("tokens", 4096, 4096),
        ("tokens", 1e9, 10**9),
        ("size", "4GiB", 4 * 2**30),
        ("size", "1.5MiB", 3 * 2**19),
        ("size", "2KB", 2000),
        ("size", "7B", 7),
        ("size", 7, 7),
        ("wait", "10m", "10m"),
        ("wait", "150m", "2h30m"),
        ("wait", "1.5h", "1h30m"),
        ("wait", "90s", "1m30s"),
        ("wait", "1500ms", "1s500ms"),
        ("wait", "24h", "1d"),
        ("every", 500, 500),
        ("every", "600s", "10m"),
    ],
)
def test_a_value_is_kept_in_one_form_and_reads_back_equal(
    field: str, written: Any, kept: Any
) -> None:
    budget = Budget.model_validate({field: written})
    assert getattr(budget, field) == kept
    assert Budget.model_validate(dump_config(budget)) == budget
    for text, file_format in (
        (to_yaml(dump_config(budget)), "yaml"),
        (to_toml(dump_config(budget)), "toml"),
    ):
        read = to_plain_data(read_source_text(SourceText(f"r.{file_format}", text), file_format))
        assert (
            Budget.model_validate(
                {key: None if value == "null" else value for key, value in read.items()}
            )
            == budget
        )


@given(st.integers(1, 10**12), st.sampled_from(["d", "h", "m", "s", "ms"]))
def test_the_form_of_a_duration_is_stable_and_loses_nothing(number: int, unit: str) -> None:
    milliseconds = number * {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}[unit]
    kept = Budget.model_validate({"wait": f"{number}{unit}"}).wait
    assert Decimal(str(duration_to_seconds(kept))) * 1000 == milliseconds or milliseconds > 2**53
    assert Budget.model_validate({"wait": kept}).wait == kept


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "tokens: 10b",
            "expected a number of tokens, such as 500M or 10B, got text '10b'",
            "did you mean '10B'?",
        ),
        (
            "tokens: 10 B",
            "expected a number of tokens, such as 500M or 10B, got text '10 B'",
            "did you mean '10B'?",
        ),
        (
            "tokens: 10GB",
            "expected a number of tokens, such as 500M or 10B, got text '10GB'",
            "units are K, M, B and T, in steps of 1000",
        ),
        (
            "tokens: '5000'",
            "expected a number of tokens, such as 500M or 10B, got text '5000'",
            "write 5000 without quotes",
        ),
        (
            "tokens: true",
            "expected a number of tokens, such as 500M or 10B, got true",
            'write a number, such as "10B"',
        ),
        ("tokens: 0B", "must be above 0, but is 0", None),
        (
            "tokens: 99999999T",
            "expected a whole number of at most 64 bits, got the number 99999999000000000000",
            None,
        ),
        (
            "size: 4g",
            "expected a size, such as 512MiB or 4GiB, got text '4g'",
            "did you mean '4GiB'?",
        ),
        ("size: 0.3B", "expected a size, such as 512MiB or 4GiB, got text '0.3B'", None),
        (
            "wait: 10",
            "expected a duration, such as 45s, 10m or 2h30m, got the number 10",
            "units are d, h, m, s and ms, the largest first",
        ),
        ("wait: 30m2h", "expected a duration, such as 45s, 10m or 2h30m, got text '30m2h'", None),
        ("wait: 0s", "expected a duration, such as 45s, 10m or 2h30m, got text '0s'", None),
        ("wait:", "expected a duration, such as 45s, 10m or 2h30m, got nothing", None),
        (
            "every: 10 min",
            "expected a number of steps, or a duration such as 10m or 2h30m, got text '10 min'",
            "did you mean '10m'?",
        ),
        (
            "wait: 2 Hours",
            "expected a duration, such as 45s, 10m or 2h30m, got text '2 Hours'",
            "did you mean '2h'?",
        ),
        (
            "every: 10M",
            "expected a number of steps, or a duration such as 10m or 2h30m, got text '10M'",
            "did you mean '10m'?",
        ),
        ("every: 0", "must be above 0, but is 0", None),
        (
            "every: null",
            "expected a number of steps, or a duration such as 10m or 2h30m, got null",
            None,
        ),
    ],
)
def test_what_cannot_be_read_says_what_is_allowed_at_its_place(
    text: str, message: str, hint: str | None
) -> None:
    found = problem(text)
    assert found.message == message
    assert hint is None or found.hint == hint
    assert found.origin is not None
    assert found.origin.line == 1


@pytest.mark.parametrize(
    ("text", "file_format"), [("tokens: 10b", "yaml"), ('tokens = "10b"', "toml")]
)
def test_yaml_and_toml_say_the_same(text: str, file_format: str) -> None:
    assert problem(text, file_format).suggestion == "10B"


def test_the_json_schema_takes_what_the_config_takes() -> None:
    schema = Budget.model_json_schema()
    for accepted in (
        {"tokens": "1.5K"},
        {"tokens": None},
        {"size": "4GiB"},
        {"wait": "2h30m"},
        {"every": "10m"},
        {"every": 5},
    ):
        jsonschema.validate(accepted, schema)
        Budget.model_validate(accepted)
    for refused in (
        {"tokens": "10b"},
        {"size": "4g"},
        {"wait": ""},
        {"wait": 5},
        {"every": "m"},
        {"every": 0},
        {"tokens": -1},
    ):
        assert not jsonschema.Draft202012Validator(schema).is_valid(refused), refused
        with pytest.raises(ValidationError):
            Budget.model_validate(refused)


def test_the_reference_says_how_a_unit_is_written() -> None:
    words = {field.name: field.type for field in describe_fields(Budget)}
    assert words == {
        "tokens": "whole number, text such as 10B or null",
        "size": "whole number or text such as 4GiB",
        "wait": "text such as 10m",
        "every": "whole number or text such as 10m",
    }


def test_the_longest_number_is_read() -> None:
    for text in ("0" * 38 + "1K", "0" * 39 + "1K"):
        is_read = len(text) <= 40
        assert parse_count(text, {"K": 1000}) == (1000 if is_read else None)
        assert parse_milliseconds(text.replace("K", "s")) == (1000 if is_read else None)


@pytest.mark.parametrize(
    ("unit", "size"), [("KB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12)]
)
def test_sizes_of_disks_are_powers_of_ten(unit: str, size: int) -> None:
    assert parse_count(f"3{unit}", SIZE_UNITS) == 3 * size
    assert parse_count(f"3{unit[0]}iB", SIZE_UNITS) == 3 * 1024 ** (1 + "KMGT".index(unit[0]))
