"""Scalar heads: the scores are those of transformers' classes for sequence classification."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from titanrun.components.checkpoints.huggingface import read_hf_folder, write_hf_folder
from titanrun.config.problems import ProblemsFound
from titanrun.models.shared.spec.family import load_family_module
from titanrun.worker.model_reward import compute_scores

PADDING = 95
LENGTHS = (5, 9, 3)
EXPERTS = {"score_func": "sigmoid", "route_norm": True, "route_scale": 2.5}
FIELDS: dict[str, dict[str, Any]] = {
    # what transformers computes
    "deepseek_v3": {"latent_norm_eps": 1e-6, "moe": EXPERTS},
    "qwen3": {"tie_word_embeddings": "auto"},
}


def build(config: Any) -> Any:
    model = config.load_builder()(config, seq_len=16).eval()
    model.init_weights(generator=torch.Generator().manual_seed(0))
    return model


def draw_conversations() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 90, (length,), generator=generator).tolist() for length in LENGTHS]


def pad(conversations: list[list[int]], *, on_left: bool) -> tuple[Tensor, Tensor]:
    width = max(map(len, conversations))
    rows, masks = [], []
    for ids in conversations:
        filler = [PADDING] * (width - len(ids))
        rows.append(filler + ids if on_left else ids + filler)
        marks = [1] * len(ids)
        masks.append([0] * len(filler) + marks if on_left else marks + [0] * len(filler))
    return torch.tensor(rows), torch.tensor(masks)


@pytest.mark.parametrize("family", ["llama3", "qwen3", "gpt_oss", "deepseek_v3", "decoder"])
def test_scores_are_those_of_transformers_with_padding_on_either_side(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    make = request.getfixturevalue(family)
    # attention and experts decide the scores, not the embedding
    config = make(head="scalar", init={"linear_std": 0.3}, **FIELDS.get(family, {}))
    assert config.output_dim() == 1 and config.tie_word_embeddings is False
    module = load_family_module(type(config), "huggingface")
    model = build(config)
    files = module.to_huggingface_config(config, "float32") | {"pad_token_id": PADDING}
    write_hf_folder(tmp_path / "model", module.to_huggingface(config, model.state_dict()), files)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    conversations = draw_conversations()
    expected = torch.tensor(compute_scores(model, conversations))
    assert expected.std() > 0.01
    for on_left in (True, False):
        ids, mask = pad(conversations, on_left=on_left)
        with torch.no_grad():
            found = theirs(input_ids=ids, attention_mask=mask).logits.squeeze(1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    # and back
    weights = module.from_huggingface(config, read_hf_folder(tmp_path / "model"))
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_language_model_gives_all_weights_but_the_head(llama3: Any) -> None:
    module = load_family_module(type(llama3()), "huggingface")
    plain = build(llama3())
    state = module.to_huggingface(llama3(), plain.state_dict())
    weights = module.from_huggingface(llama3(head="scalar"), state)
    assert plain.state_dict().keys() - weights.keys() == {"output.weight"}


def test_a_scalar_head_is_not_tied(llama3: Any) -> None:
    tied = {"tie_word_embeddings": True}
    assert llama3(**tied).parameter_shapes().keys().isdisjoint({"output.weight"})
    with pytest.raises((ValueError, ProblemsFound), match="cannot share the embedding"):
        llama3(**tied, head="scalar")
