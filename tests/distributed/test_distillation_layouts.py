"""Every layout of ranks distills as one process does, with the teacher in the same layout."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.distributed.ranks import TEXT, Case, case
from tests.distributed.test_layouts import CHATS, COMPILED, CP2, DDP2, NARROW, TP2, check_layout
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.data import ACTIONS

# the cross entropy of the labels tells which rows a rank got, the divergence what the teacher did
LOSS = "loss={{name: distillation, teacher: {}, beta: 0.4, temperature: 1.5, hard_weight: 0.5}}"
LAYOUTS = [
    case("fsdp2", nproc=2, base=[*NARROW, *CHATS]),
    case("ddp2", nproc=2, overrides=[DDP2], base=NARROW, slow=True),
    case("tp2", nproc=2, overrides=[TP2], base=NARROW),
    case(
        "tp2_whole_logits",
        nproc=2,
        overrides=[TP2, "parallelism.disable_loss_parallel=true"],
        base=NARROW,
        slow=True,
    ),
    case("cp2", nproc=2, overrides=[CP2], base=NARROW, slow=True),
    case("fsdp2_compiled", nproc=2, overrides=COMPILED, base=NARROW, slow=True),
    case("fsdp2_tp2", nproc=4, overrides=[TP2], base=NARROW, slow=True),
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of random weights with the vocabulary of the recipe."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        max_position_embeddings=2048,
    )
    path = tmp_path_factory.mktemp("teacher")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_distills_as_one_process_does(layout: Case, teacher: Path) -> None:
    base = (*layout.base, LOSS.format(teacher))
    check_layout(Case(layout.name, layout.nproc, layout.overrides, base))


TAUGHT = "loss.teacher_logprobs={{path: {}/taught, top_k: 8}}"
TAUGHT_BASE = [*NARROW, *CHATS]
TAUGHT_LAYOUTS = [
    case("tp2", nproc=2, overrides=[TP2], base=TAUGHT_BASE),
    case("fsdp2", nproc=2, base=TAUGHT_BASE, slow=True),
    case("cp2", nproc=2, overrides=[CP2], base=TAUGHT_BASE, slow=True),
]


@pytest.fixture(scope="module")
def taught(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Overrides of a run that reads the teacher's predictions, which are written."""
    folder = tmp_path_factory.mktemp("taught")
    cache = f"training.data_cache={folder}/cache"
    base = (*TAUGHT_BASE, cache, LOSS.format(teacher), TAUGHT.format(folder))
    recipe = folder / "recipe.yaml"
    recipe.write_text(TEXT)
    resolved = resolve_recipe(str(recipe), base, environment={}).text
    assert [entry["section"] for entry in ACTIONS["teach"]({"resolved": resolved})] == [
        "training",
        "validation",
    ]
    return base


@pytest.mark.parametrize("layout", TAUGHT_LAYOUTS)
def test_a_layout_reads_predictions_as_one_process_does(
    layout: Case, taught: tuple[str, ...]
) -> None:
    check_layout(Case(layout.name, layout.nproc, layout.overrides, taught))
