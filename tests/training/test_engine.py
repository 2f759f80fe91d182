from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.components.lr_schedulers.config import WarmupStableDecayConfig
from titanrun.components.lr_schedulers.spec.warmup_stable_decay import WarmupStableDecaySchedule
from titanrun.components.optimizers.config import AdamWConfig, OptimizerConfig
from titanrun.distributed.precision import Precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.training.engine import Engine

CPU = torch.device("cpu")
VOCABULARY, WIDTH = 32, 16
FP32 = Precision(torch.float32, torch.float32)


class Bigram(nn.Module):
    """The smallest language model: the next token from this one and its position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.RMSNorm(WIDTH)
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.dropout(self.embedding(tokens))))


def engine(
    *,
    max_norm: float | None = 1.0,
    precision: Precision = FP32,
    steps: int = 10,
    optimizer: OptimizerConfig | None = None,
    model: nn.Module | None = None,
) -> Engine:
    torch.manual_seed(0)
    model = (model or Bigram()).to(precision.storage_dtype)
    config = optimizer or AdamWConfig(lr=1e-2)
    return Engine(
        model,
        config.load_builder()(config, parameters=list(model.named_parameters())),
        WarmupStableDecaySchedule(WarmupStableDecayConfig(total_steps=steps, warmup_steps=2)),
        CrossEntropyLoss(CrossEntropyConfig()),
        device=CPU,
        working_weights=WorkingWeights(model, precision),
        max_norm=max_norm,
    )


def batch(step: int = 0, *, rows: int = 8, uneven: bool = False) -> TokenBatch:
    made = TokenBatch.from_sequences(
        torch.randint(VOCABULARY, (rows, 13), generator=torch.Generator().manual_seed(step))
    )
    if uneven:
        made.labels[:2, 3:] = IGNORE_INDEX
        made.loss_mask[5] = False
    return made


def gradients(trained: Engine) -> list[Tensor]:
    return [
        parameter.grad.clone()
        for parameter in trained.model.parameters()
        if parameter.grad is not None
    ]


@pytest.mark.parametrize("rows_per_pass", [1, 2, 3, 8])
@pytest.mark.parametrize("uneven", [False, True])
def test_a_step_is_the_same_however_it_is_cut_into_passes(rows_per_pass: int, uneven: bool) -> None:
    whole, cut = engine(), engine()
    for step in range(5):
        expected = whole.forward_backward(batch(step, uneven=uneven))
        output = cut.forward_backward(batch(step, uneven=uneven).split(rows_per_pass))
        for one, other in zip(gradients(cut), gradients(whole), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
        assert output.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
        assert output.valid_tokens.item() == expected.valid_tokens.item()
        assert cut.optim_step().grad_norm.item() == pytest.approx(
            whole.optim_step().grad_norm.item(), rel=1e-5
        )


def test_a_step_with_weights_is_the_same_however_it_is_cut_into_passes() -> None:
    whole, cut, alone = engine(max_norm=None), engine(max_norm=None), engine(max_norm=None)
    given = batch(uneven=True)
    # together less than one token: what is divided by is their sum all the same
    weights = torch.rand(8, 12, generator=torch.Generator().manual_seed(7)) * 0.01
    weighed = replace(given, weights=weights)
    output = whole.forward_backward(weighed)
    cut_output = cut.forward_backward(weighed.split(3))
    assert (
        output.valid_tokens.item() == pytest.approx((weights * given.label_mask()).sum().item())
        and output.valid_tokens.item() < 1
    )
    assert cut_output.loss.item() == pytest.approx(output.loss.item(), rel=1e-6)
    for one, other in zip(gradients(cut), gradients(whole), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    losses = cross_entropy(
        alone.model(given.tokens).flatten(0, 1),
        given.labels.flatten(),
        reduction="none",
        ignore_index=IGNORE_INDEX,
    )
    counted = weights * given.label_mask()
    mean = (losses * counted.flatten()).sum() / counted.sum()
    mean.backward()
    assert output.loss.item() == pytest.approx(mean.item(), rel=1e-6)
    for one, other in zip(gradients(whole), gradients(alone), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_a_step_is_that_of_a_bare_loop_bit_for_bit() -> None:
    ours = engine()
    torch.manual_seed(0)
    model = Bigram()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    for step in range(5):
        given = batch(step)
        logits = model(given.tokens)
        loss = (
            nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), given.labels.flatten(), reduction="sum"
            )
            / given.labels.numel()
        )
        loss.backward()
        norm = nn.utils.get_total_norm(
            [parameter.grad for parameter in model.parameters()], foreach=True
        )
        nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm, foreach=True)
        optimizer.param_groups[0]["lr"] = 1e-2 * ours.lr_schedule.factor(step)
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(ours.forward_backward(given).loss, loss.detach())
        assert torch.equal(ours.optim_step().grad_norm, norm)
    for one, other in zip(ours.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_learning_rate_is_peak_times_schedule_unless_it_is_given() -> None:
    trained = engine()
    rates = []
    for step in range(3):
        trained.forward_backward(batch(step))
        rates.append(trained.optim_step(lr=0.5 if step == 1 else None).lr)
    assert rates == [1e-2 * 0.5, 0.5, 1e-2 * trained.lr_schedule.factor(2)]
    assert trained.steps_done == 3


def test_a_loop_that_moves_the_schedule_itself_moves_it_step_by_step() -> None:
    trained = engine()
    rates = []
    for step in range(4):
        trained.forward_backward(batch(step))
        update = trained.optim_step(step_scheduler=False)
        rates.append((update.lr, trained.lr_scheduler_step()))
    expected = [1e-2 * trained.lr_schedule.factor(step) for step in range(5)]
    assert len(set(expected)) > 2
    assert rates == [(expected[step], expected[step + 1]) for step in range(4)]


def test_the_norm_is_measured_before_clipping() -> None:
    clipped, free = engine(max_norm=1e-3), engine(max_norm=None)
    for one in (clipped, free):
        one.forward_backward(batch())
    norm = free.optim_step().grad_norm.item()
    assert norm > 1e-2
    assert clipped.optim_step().grad_norm.item() == norm


@pytest.mark.parametrize("max_norm", [1e-3, 1e3, None])
def test_an_update_uses_clipped_gradients(max_norm: float | None) -> None:
    trained = engine(max_norm=max_norm)
    used: list[Tensor] = []
    trained.optimizer.register_step_pre_hook(lambda *_: used.extend(gradients(trained)))
    trained.forward_backward(batch())
    whole = [gradient.double() for gradient in gradients(trained)]
    norm = torch.cat([gradient.flatten() for gradient in whole]).norm().item()
    trained.optim_step()
    factor = 1.0 if max_norm is None else min(1.0, max_norm / norm)
    for found, gradient in zip(used, whole, strict=True):
        torch.testing.assert_close(found.double(), gradient * factor, rtol=1e-3, atol=1e-9)


def test_gradients_are_gone_after_a_step() -> None:
    trained = engine()
    trained.forward_backward(batch())
    assert len(gradients(trained)) == 3
    trained.optim_step()
    assert gradients(trained) == []


def test_several_calls_a_step_need_a_normalizer() -> None:
    parts = batch(uneven=True).split(3)
    total = batch(uneven=True).num_valid_tokens()
    one, several = engine(), engine()
    one.forward_backward(parts)
    for part in parts:
        several.forward_backward(part, normalizer=total)
    for left, right in zip(gradients(one), gradients(several), strict=True):
        assert torch.equal(left, right)
    with pytest.raises(ValueError, match="explicit normalizer"):
        several.forward_backward(parts)


def test_a_step_without_valid_tokens_moves_by_weight_decay_only() -> None:
    trained = engine()
    empty = batch()
    empty.loss_mask[:] = False
    output = trained.forward_backward(empty)
    assert (output.loss.item(), output.valid_tokens.item()) == (0.0, 0)
    assert trained.optim_step().grad_norm.item() == 0.0
    assert all(parameter.isfinite().all() for parameter in trained.model.parameters())


def test_evaluation_leaves_no_trace() -> None:
    trained = engine()
    random_state = torch.get_rng_state()
    with trained.eval_mode():
        assert not trained.model.training
        output = trained.evaluate_loss(batch())
    assert trained.model.training
    assert not output.loss_sum.requires_grad
    assert gradients(trained) == []
    assert torch.equal(torch.get_rng_state(), random_state)
    assert output.loss.item() == trained.forward_backward(batch()).loss.item()


def test_modes_are_given_back() -> None:
    trained = engine()
    with trained.eval_mode():
        with trained.train_mode():
            assert trained.model.training
        assert not trained.model.training
    assert trained.model.training


def test_tensors_are_the_weights_and_states_themselves() -> None:
    trained = engine()
    tensors = trained.named_state_tensors()
    assert (
        tensors.keys()
        > trained.named_state_tensors(with_optimizer=False).keys()
        == {"model.embedding.weight", "model.norm.weight", "model.head.weight"}
    )
    trained.forward_backward(batch())
    trained.optim_step()
    assert tensors["optimizer.head.weight.step"].item() == 1
    assert torch.equal(tensors["model.head.weight"], trained.model.get_parameter("head.weight"))


def test_forward_gives_logprobs_and_entropy_in_fp32() -> None:
    trained = engine(precision=Precision(torch.float32, torch.bfloat16))
    given = batch(uneven=True)
    outputs = trained.forward(given, outputs=("logprobs", "entropy", "logits"), temperature=0.5)
    distribution = torch.distributions.Categorical(logits=outputs["logits"])
    valid = given.label_mask()
    assert {tensor.dtype for tensor in outputs.values()} == {torch.float32}
    torch.testing.assert_close(
        outputs["logprobs"][valid], distribution.log_prob(given.labels.clamp(min=0))[valid]
    )
    assert not outputs["logprobs"][~valid].any()
    torch.testing.assert_close(outputs["entropy"], distribution.entropy())
    assert trained.model.training


def test_forward_divides_logits_by_the_temperature() -> None:
    trained, given = engine(), batch()
    logits = trained.forward(given, outputs=("logits",))["logits"]
    assert logits.abs().max() > 0.1
    expected = torch.distributions.Categorical(logits=logits / 0.5)
    outputs = trained.forward(given, outputs=("logprobs", "entropy"), temperature=0.5)
    torch.testing.assert_close(outputs["logprobs"], expected.log_prob(given.labels))
    torch.testing.assert_close(outputs["entropy"], expected.entropy())


def test_bf16_storage_halves_weights_gradients_and_states() -> None:
    def bytes_at_step(precision: Precision) -> int:
        trained = engine(precision=precision)
        counted: list[int] = []

        def count(optimizer: torch.optim.Optimizer, *_: object) -> None:
            states = [
                tensor
                for state in optimizer.state.values()
                for name, tensor in state.items()
                if name != "step"
            ]
            weights = list(trained.model.parameters())
            counted.append(
                sum(tensor.nbytes for tensor in [*weights, *gradients(trained), *states])
            )

        trained.optimizer.register_step_post_hook(count)
        for step in range(2):
            assert trained.forward_backward(batch(step)).loss.dtype == torch.float32
            trained.optim_step()
        return counted[-1]

    full = bytes_at_step(FP32)
    assert full == 4 * 4 * (2 * VOCABULARY * WIDTH + WIDTH)
    assert bytes_at_step(Precision(torch.bfloat16, torch.bfloat16)) * 2 == full


@pytest.mark.parametrize(
    "precision",
    [Precision(torch.float32, torch.bfloat16), Precision(torch.bfloat16, torch.bfloat16)],
)
def test_bf16_training_stays_near_fp32(precision: Precision) -> None:
    exact, rounded = engine(), engine(precision=precision)
    for step in range(5):
        expected = exact.forward_backward(batch(step)).loss.item()
        assert rounded.forward_backward(batch(step)).loss.item() == pytest.approx(
            expected, rel=1e-2
        )
        exact.optim_step()
        rounded.optim_step()


def test_weights_are_streamed_by_name() -> None:
    trained = engine()
    streamed = dict(trained.state_dict_stream(dtype=torch.bfloat16))
    assert list(streamed) == list(trained.model.state_dict())
    assert {tensor.dtype for tensor in streamed.values()} == {torch.bfloat16}
    assert all(
        tensor is not None and not tensor.requires_grad for _, tensor in trained.state_dict_stream()
    )


def test_another_loss_takes_the_place_of_the_engines_own() -> None:
    trained = engine()

    def twice(logits: Tensor, given: TokenBatch) -> Tensor:
        return 2 * CrossEntropyLoss(CrossEntropyConfig())(logits, given)

    usual = trained.forward_backward(batch())
    expected = [2 * gradient for gradient in gradients(trained)]
    trained.zero_grad()
    doubled = trained.forward_backward(batch(), loss=twice)
    assert doubled.loss_sum.item() == pytest.approx(2 * usual.loss_sum.item(), rel=1e-6)
    for one, other in zip(gradients(trained), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert trained.evaluate_loss(batch(), loss=twice).loss_sum.item() == pytest.approx(
        doubled.loss_sum.item(), rel=1e-6
    )


def test_the_version_counts_updates_that_were_made_and_groups_may_have_rates_of_their_own() -> None:
    trained = engine()
    trained.forward_backward(batch())
    trained.optim_step(lr=[0.25] * len(trained.optimizer.param_groups))
    assert {group["lr"] for group in trained.optimizer.param_groups} == {0.25}
    trained.forward_backward(batch())
    before = [parameter.detach().clone() for parameter in trained.model.parameters()]
    assert trained.optim_step(should_update=lambda norm: False).is_skipped
    assert (trained.policy_version, trained.steps_done) == (1, 2)
    assert all(
        torch.equal(one, other)
        for one, other in zip(before, trained.model.parameters(), strict=True)
    )


@pytest.mark.parametrize("max_norm", [1.0, None])
def test_a_kernel_divides_gradients_only_where_they_are_clipped(max_norm: float | None) -> None:
    trained = engine(max_norm=max_norm)
    trained.uses_update_scalars = True  # type: ignore[misc]
    given: list[bool] = []
    trained.optimizer.step = lambda: given.append(hasattr(trained.optimizer, "grad_scale"))  # type: ignore[method-assign]
    trained.forward_backward(batch())
    trained.optim_step()
    assert given == [max_norm is not None]


def test_what_reads_the_weights_is_waited_for_before_the_update_only() -> None:
    trained, seen = engine(), []
    before = trained.model.get_parameter("head.weight").detach().clone()
    trained.run_before_update(
        lambda: seen.append(torch.equal(trained.model.get_parameter("head.weight"), before))
    )
    trained.forward_backward(batch())
    assert seen == []
    trained.optim_step()
    trained.forward_backward(batch(1))
    trained.optim_step()
    assert seen == [True]
