"""Training on conversations."""

from pathlib import Path

import pytest

from titanrun.components.data.chat_config import TINY_CHAT

TINY_RUN = (
    "tokenizer={name: tiny}",
    "model.vocab_size=2048",
    "training.steps=3",
    "training.seq_len=64",
)


def test_packed_conversations_train_as_those_in_rows_of_their_own(tmp_path: Path, metrics) -> None:
    lines = (TINY_CHAT / "train.jsonl").read_text().splitlines()[:24]
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(lines))
    # every step takes all conversations, whatever rows they are in
    apart, packed = (
        metrics(
            *TINY_RUN,
            "model.attention.mask=block_causal",
            f"training.dataset={{name: chat, path: {file}, packing: {packing}}}",
            f"training.global_batch_size={rows}",
            f"training.local_batch_size={rows}",
        )
        for packing, rows in (("null", 24), ("best_fit", 14))
    )
    assert [line["loss"] for line in packed] == pytest.approx(
        [line["loss"] for line in apart], rel=1e-5
    )
    assert [line["grad_norm"] for line in packed] == pytest.approx(
        [line["grad_norm"] for line in apart], rel=1e-4
    )
    assert packed[-1]["loss"] < packed[0]["loss"]
