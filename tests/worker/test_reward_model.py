"""Reward models: trained on pairs, exported for transformers, and used as a reward of RL."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from titanrun.cli import checkpoint
from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader
from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.token_collator import TokenCollator
from titanrun.components.losses.preference_config import RewardModelConfig
from titanrun.components.losses.reward import RewardModelLoss, select_last
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.saved_recipe import names_reward_model, read_plain_recipe
from titanrun.rl.rewards.config import ModelRewardConfig
from titanrun.rl.rollout_types import Completion, Prompt, Rollout, Turn
from titanrun.worker.commands.generate import generate_and_print
from titanrun.worker.model_reward import ModelReward
from titanrun.worker.rank_main import main
from titanrun.worker.serving.chat_model import load_chat_recipe
from titanrun.worker.weights.saved_weights import load_checkpoint_tensors

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = (
    "training.steps=12",
    "lr_scheduler.warmup_steps=2",
    "checkpoint.interval=12",
    "validation.enable=false",
    "metrics.log_freq=1",
)
REPLIES = ("a tree and a bird", "A TREE AND A BIRD", "no")


def train(folder: Path, recipe: str, *overrides: str) -> Path:
    folder.mkdir()
    resolved = folder / "resolved.yaml"
    resolved.write_text(resolve_recipe(str(RECIPES / recipe), overrides, environment={}).text)
    assert main([str(resolved)]) == 0
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a reward model, and its export."""
    folder = tmp_path_factory.mktemp("runs") / "rm"
    return train(
        folder, "llama3_reward_debug.yaml", *SMALL, "checkpoint.last_save_in_hf=true", "device=cpu"
    )


def build_rollout(reply: str, number: int = 0) -> Rollout:
    turn = Turn([], Completion([], [], "stop", 0), reply)
    return Rollout(0, number, Prompt("Say: a tree and a bird", ""), turns=[turn])


def find_export(run: Path) -> Path:
    (config,) = run.rglob("config.json")
    return config.parent


@pytest.mark.slow
def test_it_learns_and_scores_conversations_as_its_export_does(trained: Path) -> None:
    losses = [line["loss"] for line in read_metrics(trained / "metrics.jsonl")]
    assert losses[-1] < 0.7 * losses[0]
    config = ModelRewardConfig(path=str(trained), batch_size=2)
    reward = ModelReward(config, log=Path("unused"), device=torch.device("cpu"))
    found = reward.score([build_rollout(reply) for reply in REPLIES])
    export = find_export(trained)
    theirs = AutoModelForSequenceClassification.from_pretrained(export).eval()
    tokenizer = AutoTokenizer.from_pretrained(export)
    for reply, score in zip(REPLIES, found, strict=True):
        messages = [
            {"role": "user", "content": "Say: a tree and a bird"},
            {"role": "assistant", "content": reply},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            assert score == pytest.approx(theirs(input_ids=ids).logits.item(), abs=1e-5)
    sizes: list[int] = []
    with reward.model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0]))):
        reward.score([build_rollout(reply) for reply in REPLIES])
    assert sizes == [2, 1]
    long = build_rollout("tree " * 200)
    assert reward.score([long, build_rollout(REPLIES[0])]) == [None, pytest.approx(found[0])]


@pytest.mark.slow
def test_it_starts_from_the_weights_of_a_language_model(trained: Path, tmp_path: Path) -> None:
    plain = train(
        tmp_path / "sft",
        "llama3_orpo_debug.yaml",
        *SMALL,
        "device=cpu",
        "checkpoint.last_save_in_hf=true",
    )
    saved = load_checkpoint_tensors(CheckpointReader(plain / "checkpoint" / "step-12"), "model.")
    in_hf = "checkpoint.initial_load_in_hf=true"
    sources = (
        (f"checkpoint.initial_load_path={plain}",),
        (f"checkpoint.initial_load_path={find_export(plain)}", in_hf),
    )
    for number, source in enumerate(sources):
        run = train(
            tmp_path / f"rm{number}",
            "llama3_reward_debug.yaml",
            *SMALL,
            "device=cpu",
            "optimizer.lr=1.0e-12",
            *source,
        )
        found = load_checkpoint_tensors(CheckpointReader(run / "checkpoint" / "step-12"), "model.")
        assert len(found["model.output.weight"]) == 1
        for name in found.keys() - {"model.output.weight"}:
            torch.testing.assert_close(found[name], saved[name], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_after_its_export_nothing_talks_to_it(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert checkpoint.run(["export", str(trained), str(tmp_path / "out"), "--format", "hf"]) == 0
    assert capfd.readouterr().err.splitlines()[-1] == f"next: titanrun push {trained} OWNER/NAME"


@pytest.mark.slow
def test_a_policy_learns_from_its_scores(trained: Path, tmp_path: Path) -> None:
    run = train(
        tmp_path / "rl",
        "rl/char_share.yaml",
        "training.steps=2",
        "lr_scheduler.warmup_steps=1",
        "rl.rollout.prompts_per_step=2",
        "rl.rollout.samples_per_prompt=4",
        "rl.validation.samples=2",
        f"rl.rewards=[{{name: model, path: {trained}}}]",
        "device=cpu",
    )
    lines = list(read_metrics(run / "metrics.jsonl"))
    assert len(lines) >= 2 and all(np.isfinite(line["rollout/reward_mean"]) for line in lines[1:])


def test_another_checkpoint_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound, match="is neither a checkpoint nor a run directory"):
        ModelReward(ModelRewardConfig(path=str(tmp_path)), log=tmp_path, device=torch.device("cpu"))


def test_a_run_with_a_reward_model_gives_no_replies(tmp_path: Path) -> None:
    text = resolve_recipe(str(RECIPES / "llama3_reward_debug.yaml"), environment={}).text
    (tmp_path / RESOLVED).write_text(text)
    job: Any = {"resolved": text, "chat": True, "prompt": ["Say"], "add_bos": False}
    job |= {"max_new_tokens": 1, "written": []}
    # the first is what chat and serve read
    for use in (load_chat_recipe, generate_and_print):
        with pytest.raises(ProblemsFound, match="a reward model gives scores, not replies") as got:
            use(job)
        assert got.value.problems[0].hint == "use it in rl.rewards: [{name: model, path: RUN}]"
    assert names_reward_model(read_plain_recipe(tmp_path / RESOLVED))


def build_sample(lengths: tuple[int, int], width: int) -> Any:
    row = np.zeros((3, width), dtype=np.int64)
    row[2] = np.concatenate([np.arange(lengths[0]), np.arange(lengths[1]), np.arange(width)])[
        :width
    ]
    row[0] = np.arange(width)
    row[1, sum(lengths) - 1] = 1
    return row


@pytest.mark.parametrize("lengths", [(3, 5), (3, 2)])
def test_the_last_token_of_each_conversation_is_read(lengths: tuple[int, int]) -> None:
    """Even of a pair that fills the whole sequence."""
    collator = TokenCollator(appends_padding=True)
    (batch,) = collator.collate_train(np.stack([build_sample(lengths, 8)]), 1)
    batch = document_ids_from_positions(batch)
    assert batch.tokens.shape == (1, 8)
    numbers = batch.tokens.float()
    assert select_last(numbers, batch, 0).item() == lengths[0] - 1
    assert select_last(numbers, batch, 1).item() == sum(lengths) - 1


def test_the_loss_has_the_value_worked_by_hand() -> None:
    """Scores 1.2 and 0.3: -log sigmoid(0.9) and 0.01 * 1.5^2."""
    (batch,) = TokenCollator(appends_padding=True).collate_train(
        np.stack([build_sample((3, 5), 8)]), 1
    )
    batch = document_ids_from_positions(batch)
    scores = torch.zeros(1, 8, 1)
    scores[0, 2], scores[0, 7] = 1.2, 0.3
    plain, centered = (
        RewardModelLoss(RewardModelConfig(center_coefficient=weight))(scores, batch).item()
        for weight in (0.0, 0.01)
    )
    assert plain == pytest.approx(0.341154, abs=1e-6)
    assert centered == pytest.approx(0.341154 + 0.0225, abs=1e-6)
