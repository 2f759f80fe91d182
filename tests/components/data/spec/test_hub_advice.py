"""Which errors of the Hub's library say that it cannot be reached, and what is advised then."""

import socket

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

from titanrun.components.data.spec.hub_advice import (
    advise_again,
    advise_dataset,
    is_refused_offline,
    is_set_offline,
    is_unreachable,
)


def test_a_hub_that_does_not_answer_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # of an HTTP client that varies by version
    with pytest.raises(Exception, match="refused") as found:
        HfApi(endpoint=f"http://127.0.0.1:{port}").dataset_info("owner/words")
    assert is_unreachable(found.value) and not is_refused_offline(found.value)


def test_the_cause_of_an_error_counts() -> None:
    try:
        try:
            raise OfflineModeIsEnabled("offline mode is enabled")
        except OfflineModeIsEnabled as error:
            raise ValueError("no such dataset") from error
    except ValueError as error:
        assert is_unreachable(error) and is_refused_offline(error)
    # as the datasets library words it, without a cause
    told = ConnectionError("Couldn't reach 'owner/words' on the Hub (OfflineModeIsEnabled)")
    assert is_refused_offline(told)


def test_an_answer_of_the_hub_is_no_missing_network() -> None:
    assert not is_unreachable(HFValidationError("repo id must have the form owner/name"))
    assert not is_unreachable(FileNotFoundError("no such split"))


@pytest.mark.parametrize(("value", "is_set"), [("1", True), ("yes", True), ("0", False)])
def test_the_variable_is_read_as_the_library_reads_it(value: str, is_set: bool) -> None:
    assert is_set_offline({"HF_HUB_OFFLINE": value}) == is_set
    assert not is_set_offline({})


def test_the_way_without_a_network_comes_second() -> None:
    told = advise_dataset("owner/words", "a" * 40, advise_again(is_offline=True))
    first, second = told.split("; ")
    assert first == "unset HF_HUB_OFFLINE and run the same command again"
    command = f"hf download owner/words --repo-type dataset --revision {'a' * 40}"
    assert second.startswith(f"without a network, run {command} --local-dir words on a machine")
