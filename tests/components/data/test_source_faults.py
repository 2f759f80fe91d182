"""Requests that are repeated: for how long, and what is reported meanwhile."""

import pytest

from titanrun.components.data.source_faults import RetryPolicy, SourceFault
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.data_waits import on_wait


def test_a_wait_is_reported_and_its_end_too() -> None:
    left, waits, policy = [2], [], RetryPolicy(60)

    def work() -> str:
        if left[0]:
            left[0] -= 1
            raise SourceFault("unreachable", "503", retry_after=0.0)
        return "read"

    with on_wait(waits.append):
        assert policy.request(work, name="'part.jsonl'") == "read"
        # what succeeds at once waits for nothing
        assert policy.request(work, name="'part.jsonl'") == "read"
    assert waits == ["'part.jsonl'", "'part.jsonl'", None]
    assert policy.counts.num_retries == 2


@pytest.mark.parametrize("kind", ["refused", "gone", "changed"])
def test_a_fault_that_cannot_pass_is_not_repeated(kind: str) -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise SourceFault(kind, "403")  # type: ignore[arg-type]

    with pytest.raises(ProblemsFound) as found:
        RetryPolicy(60).request(work, name="'part.jsonl'")
    assert len(tries) == 1
    assert found.value.problems[0].rule == f"source-{kind}"
