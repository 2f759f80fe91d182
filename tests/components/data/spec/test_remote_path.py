"""Addresses that are refused before anything is asked of a network."""

import pytest

from titanrun.components.data.spec.remote_path import check_remote_path
from titanrun.config.problems import ProblemsFound

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "path",
    [
        "hf://datasets/owner/name/a.jsonl",
        "hf://datasets/owner/name@main/a.jsonl",
        f"hf://datasets/name@{COMMIT}/a.jsonl",
        f"hf://datasets/owner/name@{COMMIT[:12]}/a.jsonl",
        f"hf://owner/name@{COMMIT}/a.jsonl",
    ],
)
def test_files_of_the_hub_are_named_at_a_commit(path: str) -> None:
    with pytest.raises(ProblemsFound, match="does not name files of a dataset on the Hub"):
        check_remote_path(path)


@pytest.mark.parametrize(
    "path", [f"hf://datasets/owner/name@{COMMIT}/data/*.jsonl", "https://example.org/a.jsonl"]
)
def test_addresses_that_can_be_read_pass(path: str) -> None:
    check_remote_path(path)


def test_credentials_do_not_belong_into_an_address() -> None:
    with pytest.raises(ProblemsFound, match="is not a valid address"):
        check_remote_path("https://user:word@example.org/a.jsonl")


@pytest.mark.parametrize(
    "path", ["http://[::1/a.jsonl", "https://host:port/a.jsonl", "https:///a.jsonl", "https://"]
)
def test_an_address_of_no_server_is_told_before_it_is_asked(path: str) -> None:
    with pytest.raises(ProblemsFound, match="is not a valid address"):
        check_remote_path(path)
