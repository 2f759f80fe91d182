"""TorchForge's reference actor."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integrations.torchforge.parts import MODEL, TRAINING, batch, fields, next_token_loss
from titanrun.config.problems import ProblemsFound
from titanrun.integrations.torchforge.reference_actor import ReferenceModel
from titanrun.integrations.torchforge.titan_trainer import TitanTrainer


@pytest.fixture
def reference() -> Iterator[ReferenceModel]:
    made = ReferenceModel(model=MODEL, training=TRAINING)
    made.setup()
    made.setup()
    yield made
    made.cleanup()
    made.cleanup()


def test_log_probabilities_are_those_of_the_responses_tokens(reference: ReferenceModel) -> None:
    ids = batch(0)[0]["tokens"]
    logits = reference.forward(ids, 6, return_logprobs=False)
    assert logits.shape == (2, 16, 2048) and logits.dtype == torch.float32
    by_hand = logits[:, 5:-1].log_softmax(-1).gather(-1, ids[:, 6:].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(
        reference.forward(ids, 6, return_logprobs=True), by_hand, rtol=1e-5, atol=1e-6
    )
    assert not logits.requires_grad


def test_its_weights_are_those_it_began_with_whatever_is_learned(
    reference: ReferenceModel, tmp_path: Path
) -> None:
    inputs, targets = batch(0)
    trainer = TitanTrainer(**fields(tmp_path), loss=next_token_loss)
    trainer.setup()
    before = reference.forward(inputs["tokens"], 6, return_logprobs=True)
    for _ in range(3):
        trainer.train_step([inputs], [targets])
    trainer.cleanup()
    assert torch.equal(reference.forward(inputs["tokens"], 6, return_logprobs=True), before)


def test_garbage_is_collected_at_the_calls_that_are_due_and_at_no_other_time() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    reference = ReferenceModel(model=MODEL, training={**TRAINING, "gc_freq": 2})
    reference.setup()
    alive = []
    for _ in range(3):
        assert not gc.isenabled()
        cycle = weakref.ref(Cycle())
        reference.forward(batch(0)[0]["tokens"], 6, return_logprobs=True)
        alive.append(cycle() is not None)
    reference.cleanup()
    assert alive == [True, False, True] and gc.isenabled()


@pytest.mark.slow
def test_it_begins_with_the_weights_that_it_is_told_to(
    reference: ReferenceModel, tmp_path: Path
) -> None:
    inputs, targets = batch(0)
    trainer = TitanTrainer(
        **fields(tmp_path, checkpoint={"enable": True, "interval": 1}), loss=next_token_loss
    )
    trainer.setup()
    for _ in range(2):
        trainer.train_step([inputs], [targets])
    saved = Path(trainer.job.dump_folder) / "checkpoint" / "step-2"
    trained = ReferenceModel(
        model=MODEL, training=TRAINING, checkpoint={"enable": True, "initial_load_path": str(saved)}
    )
    trained.setup()
    found = trained.forward(inputs["tokens"], 6, return_logprobs=False)
    torch.testing.assert_close(
        found, trainer.training_state.handle.engine.model(inputs["tokens"]), rtol=1e-5, atol=1e-5
    )
    assert not torch.equal(found, reference.forward(inputs["tokens"], 6, return_logprobs=False))
    trained.cleanup()
    trainer.cleanup()


def test_what_it_cannot_answer_is_said(reference: ReferenceModel) -> None:
    ids = batch(0)[0]["tokens"]
    for given, message in [
        ((ids[0], 6), r"must be an integer tensor \[B, T\]"),
        ((ids, 0), "max_req_tokens is 0, but sequences have 16 tokens"),
        ((ids, 17), "max_req_tokens is 17"),
        ((batch(0, length=17)[0]["tokens"], 6), "sequences of 17 tokens, longer than 16"),
    ]:
        with pytest.raises(ProblemsFound, match=message):
            reference.forward(*given, return_logprobs=True)
    reference.cleanup()
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        reference.forward(ids, 6, return_logprobs=True)


def test_a_section_that_it_has_not_is_refused_by_python_and_a_wrong_field_is_a_problem() -> None:
    with pytest.raises(TypeError):
        ReferenceModel(optimizer={})  # type: ignore[call-arg]
    with pytest.raises(ProblemsFound, match="training has no field seq_length"):
        ReferenceModel(training={"seq_length": 4})
