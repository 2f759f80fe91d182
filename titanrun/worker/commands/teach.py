"""Predictions of a teacher for the data of a recipe, written into files."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from titanrun.components.data.document_ids import DocumentIdFn
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.spec.taught_record import TaughtRecord, read_taught_record
from titanrun.components.data.taught_rows import SMALLEST, write_taught_files
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.distillation_config import DistillationConfig
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import DataPath, problem_error
from titanrun.models.shared.config import unwrap_auto
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.teacher import Teacher, require_teacher
from titanrun.worker.build.build_data import build_document_id_fn
from titanrun.worker.weights.load_model import load_model

log = logging.getLogger(__name__)
LOGPROBS: DataPath = ("loss", "teacher_logprobs")
LOG_EVERY = 100
CHUNK_TOKENS = 512
"""Tokens whose distributions are in memory at once."""


@dataclass(frozen=True, slots=True)
class TeacherModel:
    """Teacher in this process.

    Args:
        model: its model, in evaluation mode.
        document_id_fn: adds the documents of a batch, within which it attends.
        device: device of the model.
        temperature: divisor of its logits.
    """

    model: nn.Module
    document_id_fn: DocumentIdFn
    device: torch.device
    temperature: float

    @torch.inference_mode()
    def predict(self, row: Any, top_k: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest ids and their log-probabilities of each label, [T, K]."""
        batch = self.document_id_fn(TokenBatch.from_sequences(row[None])).to(self.device)
        logits_TV = batch.forward_model(self.model)[0][batch.label_mask()[0]]
        found = [
            (chunk_CV.float() / self.temperature).log_softmax(-1).topk(top_k)
            for chunk_CV in logits_TV.split(CHUNK_TOKENS)
        ]
        return torch.cat([one.indices for one in found]), torch.cat([one.values for one in found])


def write_predictions(
    recipe: Recipe, opened: dict[str, IndexedDataset], tokenizer: Tokenizer | None
) -> list[dict[str, Any]]:
    """Write the predictions of the recipe's teacher for each dataset, unless they are there.

    Raises:
        ProblemsFound: the recipe names no teacher or no folder, or the folder has others.
    """
    loss = recipe.loss
    if not isinstance(loss, DistillationConfig) or loss.teacher_logprobs is None:
        raise problem_error(
            "usage",
            "the recipe's loss reads no predictions from files",
            path=("loss",),
            hint="set loss: {name: distillation, teacher: FOLDER, teacher_logprobs: {path: TO}}",
        )
    if loss.teacher is None:
        hint = "set loss.teacher to a run directory or a Hugging Face folder"
        raise problem_error("usage", "the recipe names no teacher", path=("loss",), hint=hint)
    in_memory = DistillationConfig.model_validate({**dict(loss), "teacher_logprobs": None})
    teacher = require_teacher(Recipe.model_validate({**dict(recipe), "loss": in_memory}))
    model: TeacherModel | None = None
    answers = []
    for section, rows in opened.items():
        folder = loss.teacher_logprobs.folder / section
        record = TaughtRecord(
            rows.fingerprint,
            min(loss.teacher_logprobs.top_k, unwrap_auto(teacher.recipe.model.vocab_size)),
            loss.temperature,
            unwrap_auto(teacher.recipe.model.vocab_size),
            teacher.folder,
        )
        is_new = check_is_new(folder, record)
        if is_new:
            model = model or load_teacher(teacher, tokenizer, loss.temperature)
            teach_rows(rows, folder, record, model)
        answers.append({"section": section, "folder": str(folder), "is_new": is_new})
    return answers


def check_is_new(folder: Path, record: TaughtRecord) -> bool:
    """Return whether a folder has no predictions yet.

    Raises:
        ProblemsFound: it has others.
    """
    known = read_taught_record(folder)
    if known is not None and known != record:
        raise problem_error(
            "data",
            f"'{folder}' has predictions of another teacher or of other data",
            path=(*LOGPROBS, "path"),
            hint="remove it, or set loss.teacher_logprobs.path to another folder",
        )
    return known is None


def load_teacher(teacher: Teacher, tokenizer: Tokenizer | None, temperature: float) -> TeacherModel:
    """Load a teacher for the sequences of its recipe, on one device."""
    seq_len = teacher.recipe.training.seq_len
    validation = teacher.recipe.validation
    if validation.enable and validation.seq_len != "auto":
        seq_len = max(seq_len, validation.seq_len)
    model = load_model(teacher.recipe, teacher.weights, seq_len=seq_len)
    device = next(model.parameters()).device
    return TeacherModel(model, build_document_id_fn(teacher.recipe, tokenizer), device, temperature)


def teach_rows(
    rows: IndexedDataset, folder: Path, record: TaughtRecord, teacher: TeacherModel
) -> None:
    """Write the predictions of a teacher for all sequences of a dataset."""
    if rows[0].ndim != 2:
        raise problem_error(
            "data",
            "predictions can be written for conversations only, whose replies count in the loss",
            path=("training", "dataset"),
            hint="use dataset chat",
        )
    counts = np.array([int(rows[index][1, 1:].sum()) for index in range(len(rows))], np.int64)
    with write_taught_files(folder, record, counts) as (ids_TK, logprobs_TK):
        end = 0
        for index, count in enumerate(counts.tolist()):
            ids, logprobs = teacher.predict(rows[index], record.top_k)
            ids_TK[end : end + count] = ids.cpu().numpy()
            logprobs_TK[end : end + count] = logprobs.clamp(min=SMALLEST).cpu().numpy()
            end += count
            if (index + 1) % LOG_EVERY == 0 or index + 1 == len(rows):
                log.info("%s: %s of %s sequences", folder, f"{index + 1:,}", f"{len(rows):,}")
