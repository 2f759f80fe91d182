"""The arithmetic of a plan, by numbers worked out by hand."""

from dataclasses import replace

import pytest

from tests.rl.parts import TEXT
from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.plan.activations import count_live_microbatches
from titanrun.recipe.plan.communication import estimate_pipeline_bubble, estimate_traffic
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.memory_estimate import compute_checkpoint_bytes, estimate_memory
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.plan.plan_report import format_plan, plan_to_dict
from titanrun.recipe.resolving.resolve import resolve_recipe

DIM, VOCABULARY, LAYERS = 64, 96, 4
LAYER = ModuleSize(
    total=1000,
    local=250,
    gathered=500,
    total_trainable=1000,
    local_trainable=250,
    copied=250,
    gathered_trainable=500,
)
# a frozen layer, and one with adapters
FROZEN = ModuleSize(1000, 125, 500, 0, 0, 0)
ADAPTED = ModuleSize(1040, 135, 520, 40, 10, 10, 20)


@pytest.fixture
def laid_out(tmp_path):
    """A tiny model whose parts have round sizes, on any degrees."""

    def make(*overrides, ranks, **degrees):
        recipe = tmp_path / "recipe.yaml"
        model = (
            f"{{name: llama3, vocab_size: {VOCABULARY}, dim: {DIM}, n_layers: {LAYERS}, "
            f"n_heads: 4, n_kv_heads: 2}}"
        )
        training = (
            "{dataset: {name: tokens, path: x.npy}, local_batch_size: 4, seq_len: 32, steps: 100}"
        )
        recipe.write_text(f"version: 1\nmodel: {model}\ntraining: {training}\n")
        run = resolve_recipe(str(recipe), list(overrides), environment={}, ranks=ranks).run
        embedding = ModuleSize(800, 200, 400, 800, 200, 200, 400)
        head = ModuleSize(900, 225, 450, 900, 225, 225, 450)
        return PlanLayout(run, ParallelDims(**degrees), embedding, [LAYER] * LAYERS, head)

    return make


def bytes_of(layout):
    return {item.name: item.bytes for item in estimate_memory(layout, DEVICES["h100"])}


def test_memory_is_what_a_rank_keeps_times_the_size_of_its_numbers(laid_out):
    found = bytes_of(laid_out(ranks=4, dp_shard=4))
    kept = 200 + 4 * 250 + 225
    assert found["weights"] == found["gradients"] == kept * 4
    assert found["optimizer states"] == kept * 8
    # the two largest parts, in bf16
    assert found["gathered weights"] == (500 + 500) * 2
    # 128 tokens; logits in bf16 and twice in fp32
    assert found["logits"] == 128 * VOCABULARY * 10
    # 4 D + 3 q + 2 kv + 4 hidden = 256 + 192 + 64 + 4 x 256, four layers, bf16
    assert found["activations"] == 128 * 4 * (256 + 192 + 64 + 1024) * 2


def test_recomputed_layers_keep_their_input_and_one_of_them_everything(laid_out):
    found = bytes_of(laid_out("activation_checkpoint=full", ranks=4, dp_shard=4))
    assert found["activations"] == 128 * (4 * DIM + 256 + 192 + 64 + 1024) * 2


WHOLE = 256 + 192 + 64 + 1024


def test_every_other_layer_keeps_its_input(laid_out):
    found = bytes_of(
        laid_out(
            "activation_checkpoint={name: selective, selective_ac_option: '2'}", ranks=4, dp_shard=4
        )
    )
    assert found["activations"] == 128 * (2 * DIM + 2 * WHOLE + WHOLE) * 2


def test_by_operation_every_second_product_stays(laid_out):
    by_operation = "activation_checkpoint={name: selective, selective_ac_option: op}"
    # the input, queries, values, what attention gives, gates, and what goes back into the stream
    products = DIM + 64 + 32 + 64 + 256
    assert (
        bytes_of(laid_out(by_operation, ranks=4, dp_shard=4))["activations"]
        == 128 * (4 * (products + DIM) + WHOLE) * 2
    )
    # two ranks that share heads and hidden widths: the last product is as wide as the stream, and
    # kept once more as their sum's part
    split = (DIM + 64 + 32 + 64 + 256 + 2 * DIM) // 2 + DIM
    both = laid_out(by_operation, "parallelism.tensor_parallel_degree=2", ranks=2, tp=2)
    assert bytes_of(both)["activations"] == 128 * (4 * split + WHOLE // 2) * 2


def test_a_budget_keeps_its_share(laid_out):
    budget = [
        "activation_checkpoint={name: memory_budget, memory_budget: 0.25}",
        "compile={enable: true, backend: aot_eager}",
    ]
    found = bytes_of(laid_out(*budget, ranks=4, dp_shard=4))
    assert found["activations"] == 128 * (4 * (DIM + (WHOLE - DIM) // 4) + WHOLE) * 2


@pytest.mark.parametrize(
    ("schedule", "microbatches"),
    [
        ("1F1B", 2),
        ("GPipe", 8),
        ("LoopedBFS", 8),
        ("Interleaved1F1B", 2.5),
        ("InterleavedZeroBubble", 2.5),
        ("ZBVZeroBubble", 2),
    ],
)
def test_a_pipeline_keeps_the_microbatches_that_are_under_way(schedule, microbatches, laid_out):
    asked = [
        f"parallelism.pipeline_parallel_schedule={schedule}",
        "parallelism.pipeline_parallel_degree=2",
    ]
    layout = laid_out(*asked, "training.local_batch_size=8", ranks=2, pp=2)
    assert count_live_microbatches(layout, rank=0) == microbatches


def test_a_stage_has_the_modules_that_the_recipe_names(laid_out):
    stages = "[[tok_embeddings, layers.0], [layers.1, layers.2, layers.3, norm, output]]"
    asked = [
        "parallelism.pipeline_parallel_degree=2",
        f"parallelism.module_fqns_per_model_part={stages}",
    ]
    layout = laid_out(*asked, ranks=2, pp=2)
    assert layout.get_sizes_per_rank() == [[layout.embedding, LAYER], [LAYER] * 3 + [layout.head]]


def test_the_ends_of_a_pipeline_both_keep_a_matrix_they_share(laid_out):
    asked = ["parallelism.pipeline_parallel_degree=2", "model.tie_word_embeddings=true"]
    tied, untied = laid_out(*asked, ranks=2, pp=2), laid_out(*asked[:1], ranks=2, pp=2)
    assert tied.get_sizes_per_rank() == [
        [tied.embedding, LAYER, LAYER],
        [tied.embedding, LAYER, LAYER, tied.head],
    ]
    sent = [
        next(entry.bytes for entry in estimate_traffic(layout) if entry.axis == "pp")
        for layout in (tied, untied)
    ]
    assert sent[0] - sent[1] == 200 * 4


def test_a_rank_with_whole_weights_has_copies_in_the_compute_dtype(laid_out):
    found = bytes_of(laid_out(ranks=1))
    # with the gradients of a layer, until they are added to the fp32 ones
    assert found["working copies"] == (200 + 4 * 250 + 225 + 250) * 2
    assert "working copies" not in bytes_of(laid_out("training.dtype=bfloat16", ranks=1))
    assert "working copies" not in bytes_of(
        laid_out("training.mixed_precision_param=float32", ranks=1)
    )
    kept = bytes_of(laid_out("converters=[fp32_lm_head]", ranks=1))
    assert kept["working copies"] == (200 + 4 * 250 + 250) * 2


CHUNKED = "loss={name: chunked_cross_entropy, num_chunks: 2}"


def test_a_head_with_the_loss_has_a_chunk_of_logits_and_the_gradient_in_fp32(laid_out):
    found = bytes_of(laid_out(CHUNKED, ranks=4, dp_shard=4))
    # logits in bf16, in fp32, and their gradient in bf16
    assert found["logits"] == 64 * VOCABULARY * 8
    assert found["head gradient"] == VOCABULARY * DIM * 4
    split = bytes_of(laid_out(CHUNKED, "parallelism.tensor_parallel_degree=2", ranks=2, tp=2))
    assert split["head gradient"] == VOCABULARY * DIM * 4 // 2
    exact = bytes_of(laid_out(CHUNKED, "training.mixed_precision_param=float32", ranks=1))
    assert exact["logits"] == 64 * VOCABULARY * 4
    # its logits are computed again in the backward pass
    converted = "converters=[{name: float8_linear, emulate: true}]"
    assert "head gradient" not in bytes_of(laid_out(CHUNKED, converted, ranks=1))
    assert "head gradient" not in bytes_of(laid_out(ranks=1))


def test_an_update_uses_the_memory_that_a_pass_frees(laid_out):
    foreach = ["optimizer.implementation=foreach", "activation_checkpoint=full"]
    less = ["training.local_batch_size=1", "training.seq_len=1"]
    found = bytes_of(laid_out(*foreach, *less, ranks=1))
    # gradients that appear when some of it is freed do not count
    freed = found["activations"] + found["logits"] + found["not at once"]
    # the roots of all second moments
    assert found["optimizer temporaries"] == (200 + 4 * 250 + 225) * 4 - freed > 0
    assert "optimizer temporaries" not in bytes_of(laid_out(*foreach, ranks=1))
    assert "optimizer temporaries" not in bytes_of(laid_out(*less, ranks=1))


def test_gradients_of_one_pass_appear_while_activations_are_freed(laid_out):
    kept, token = (200 + 4 * 250 + 225) * 4, 128 * 2
    found = bytes_of(laid_out(ranks=4, dp_shard=4))
    # the end of the forward pass: no gradients
    at_peak = token * 4 * WHOLE + found["logits"]
    assert kept + found["activations"] + found["logits"] + found["not at once"] == at_peak
    small = ["activation_checkpoint=full", "training.local_batch_size=1", "training.seq_len=1"]
    found = bytes_of(laid_out(*small, ranks=4, dp_shard=4))
    # the backward pass of the first layer: gradients of the head and of three layers
    at_peak = 2 * (DIM + WHOLE) + (225 + 3 * 250) * 4
    assert kept + found["activations"] + found["logits"] + found["not at once"] == at_peak


@pytest.mark.parametrize(
    ("overrides", "degrees"),
    [
        # the gradients of the first pass are there beside the activations of the second
        (["training.global_batch_size=8"], {"ranks": 1}),
        (["parallelism.pipeline_parallel_degree=2"], {"ranks": 2, "pp": 2}),
        (["optimizer.early_step_in_backward=true", "training.max_norm=null"], {"ranks": 1}),
    ],
    ids=["two passes", "pipeline", "updates in the backward pass"],
)
def test_of_other_steps_all_gradients_and_activations_are_added(overrides, degrees, laid_out):
    assert "not at once" not in bytes_of(laid_out(*overrides, **degrees))
    assert "not at once" in bytes_of(laid_out(ranks=1))


def test_the_gradient_of_a_tied_head_is_that_of_the_embedding(laid_out):
    small = ["activation_checkpoint=full", "training.local_batch_size=1", "training.seq_len=1"]
    alone, tied = (
        replace(laid_out(*small, ranks=1), head=ModuleSize(9, 9, 9, 9, 9))
        for small in (small, [*small, "model.tie_word_embeddings=true"])
    )
    assert bytes_of(tied)["not at once"] - bytes_of(alone)["not at once"] == 200 * 4


def test_the_allocator_takes_a_share_of_the_total(laid_out):
    found = bytes_of(laid_out(ranks=1))
    allocator = found.pop("allocator")
    assert allocator == round(0.03 * sum(found.values()))


@pytest.mark.parametrize(
    ("overrides", "each"),
    [
        ((), 18),
        (("optimizer.state_dtype=bfloat16",), 14),
        (("optimizer={name: adamw_8bit}",), 12),
        (("training.dtype=bfloat16",), 8),
    ],
    ids=["fp32", "bf16_states", "8bit_states", "bf16_storage"],
)
def test_a_parameter_takes_as_many_bytes_as_its_copies_gradients_and_states(
    overrides, each, laid_out
):
    found = bytes_of(laid_out(*overrides, ranks=1))
    names = ("weights", "working copies", "gradients", "optimizer states")
    # all but the bf16 gradients of the largest part
    passing = 250 * 2 if "working copies" in found else 0
    parameters = 200 + 4 * 250 + 225
    assert (sum(found.get(name, 0) for name in names) - passing) / parameters == pytest.approx(
        each, rel=0.02
    )


def test_one_process_gathers_nothing_and_sends_nothing(laid_out):
    layout = laid_out(ranks=1)
    assert "gathered weights" not in bytes_of(layout)
    assert estimate_traffic(layout) == []
    assert "sent by a rank" not in format_plan(layout, plan_to_dict(layout, DEVICES["h100"]))


def test_shards_gather_twice_and_scatter_once(laid_out):
    (entry,) = estimate_traffic(laid_out(ranks=4, dp_shard=4))
    gathered = 400 + 4 * 500 + 450
    assert (entry.axis, entry.bytes) == ("fsdp", gathered * (2 * 2 + 4) * 3 // 4)


LORA = "converters=[{name: lora, rank: 4}]"


def freeze(layout, *layers):
    """The layout of a run with adapters in some layers."""
    embedding, head = ModuleSize(800, 100, 400, 0, 0, 0), ModuleSize(900, 113, 450, 0, 0, 0)
    return replace(layout, embedding=embedding, layers=layers, head=head)


def test_gradients_of_frozen_weights_are_neither_scattered_nor_summed(laid_out):
    layout = freeze(laid_out(LORA, ranks=4, dp_shard=4), *[ADAPTED] * 4)
    (entry,) = estimate_traffic(layout)
    # a backward pass multiplies by frozen weights, so they are gathered again
    gathered = 400 + 4 * 520 + 450
    assert entry.bytes == (gathered * 2 * 2 + 4 * 20 * 4) * 3 // 4
    assert entry.description.endswith("2x and gradients of adapters scattered, per forward pass")
    copies = laid_out(LORA, "parallelism.data_parallel_replicate_degree=2", ranks=2, dp_replicate=2)
    (entry,) = estimate_traffic(freeze(copies, *[ADAPTED] * 4))
    assert entry.bytes == 2 * 4 * 10 * 4 // 2
    assert entry.description == "gradients of adapters summed over replicas"


def test_a_layer_below_all_adapters_has_no_backward_pass(laid_out):
    layers = [FROZEN, FROZEN, ADAPTED, ADAPTED]
    (entry,) = estimate_traffic(freeze(laid_out(LORA, ranks=4, dp_shard=4), *layers))
    # FSDP prefetches one of them in vain
    gathered = (400 + 2 * 500 + 2 * 520 + 450) + (500 + 2 * 520 + 450)
    assert entry.bytes == (gathered * 2 + 2 * 20 * 4) * 3 // 4
    split = laid_out(LORA, "parallelism.tensor_parallel_degree=2", ranks=2, tp=2)
    stream = 4 * 32 * DIM * 2 // 2
    # four collectives of each pass through a layer
    for backward, found in ((2, layers), (4, [ADAPTED] * 4)):
        (entry,) = estimate_traffic(freeze(split, *found))
        assert entry.bytes == stream * 4 * (4 + backward)


def test_matrices_that_every_rank_keeps_whole_are_not_gathered(laid_out):
    layout = laid_out(LORA, ranks=4, dp_shard=4)
    quantized = replace(ADAPTED, unsharded=450)
    (entry,) = estimate_traffic(freeze(layout, *[quantized] * 4))
    assert entry.bytes == ((400 + 4 * 70 + 450) * 2 * 2 + 4 * 20 * 4) * 3 // 4


def test_weights_that_stay_are_gathered_once(laid_out):
    (entry,) = estimate_traffic(
        laid_out("parallelism.fsdp_reshard_after_forward=never", ranks=4, dp_shard=4)
    )
    assert entry.bytes == (400 + 4 * 500 + 450) * (2 + 4) * 3 // 4


def test_copies_sum_their_gradients(laid_out):
    (entry,) = estimate_traffic(
        laid_out("parallelism.data_parallel_replicate_degree=2", ranks=2, dp_replicate=2)
    )
    assert (entry.axis, entry.bytes) == ("dp_replicate", 2 * (200 + 4 * 250 + 225) * 4 // 2)


@pytest.mark.parametrize(
    ("schedule", "ranks", "rows", "share"),
    [
        ("1F1B", 4, 8, 3 / 11),
        ("GPipe", 2, 2, 1 / 3),
        ("Interleaved1F1B", 2, 4, 1 / 9),
        ("ZBVZeroBubble", 2, 4, 1 / 27),
    ],
)
def test_a_pipeline_waits_as_the_papers_say(schedule, ranks, rows, share, laid_out):
    overrides = [
        f"parallelism.pipeline_parallel_schedule={schedule}",
        f"parallelism.pipeline_parallel_degree={ranks}",
    ]
    layout = laid_out(
        *overrides,
        f"training.local_batch_size={rows}",
        "model.n_layers=8",
        ranks=ranks,
        pp=ranks,
    )
    assert estimate_pipeline_bubble(layout) == pytest.approx(share)


def test_a_checkpoint_holds_weights_and_states_of_all_ranks(laid_out):
    assert compute_checkpoint_bytes(laid_out(ranks=4, dp_shard=4)) == (800 + 4 * 1000 + 900) * 12


def test_what_does_not_fit_is_said_with_a_way_out(laid_out):
    layout = laid_out(ranks=1)
    tiny = type(DEVICES["h100"])("toy", 1e-4, 1e12)
    data = plan_to_dict(layout, tiny)
    (warning,) = data["warnings"]
    assert warning.startswith("does not fit: ")
    assert "saves" in warning
    assert data["fits"] is False and " of 0.00 GiB: does not fit\n" in format_plan(layout, data)


def test_what_fits_is_said_too(laid_out):
    """Row A18."""
    layout = laid_out(ranks=1)
    data = plan_to_dict(layout, DEVICES["h100"])
    assert data["fits"] is True and " of 78.00 GiB: fits\n" in format_plan(layout, data)


def test_a_run_on_gpus_that_is_not_compiled_is_noted(laid_out):
    for settings, noted in (
        (("device=gpu",), True),
        (("device=gpu", "compile.enable=true"), False),
        (("device=cpu",), False),
    ):
        layout = laid_out(*settings, ranks=1)
        data = plan_to_dict(layout, DEVICES["h100"])
        assert bool(data["notes"]) is noted
        assert ("\nnote: compile.enable: true" in format_plan(layout, data)) is noted
        assert data["warnings"] == []


def test_epochs_wait_for_the_data(laid_out):
    layout = laid_out("training.epochs=3", ranks=1)
    assert "3 epochs; the number of steps depends on the data" in format_plan(
        layout, plan_to_dict(layout, DEVICES["h100"])
    )


def test_checkpoints_are_counted_as_they_stay(laid_out):
    asked = ["checkpoint.interval=20"]
    all_kept = laid_out(*asked, "checkpoint.keep_latest_k=0", ranks=1)
    assert plan_to_dict(all_kept, DEVICES["h100"])["checkpoints"] == 5
    assert plan_to_dict(laid_out(*asked, ranks=1), DEVICES["h100"])["checkpoints"] == 2


PREFERENCES = (
    "loss=dpo",
    "tokenizer=tiny",
    "model.attention={mask: block_causal}",
    "training.dataset={name: preference, path: x.jsonl}",
)
GATHERED = "enable_fsdp_float8_all_gather: true"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), (1425 + 450) * 2),
        (("training.mixed_precision_param=float32",), (1425 + 450) * 4),
        (("converters=[fp32_lm_head]",), (1200 + 450) * 2 + 225 * 4),
        ((f"converters=[{{name: float8_linear, {GATHERED}}}]",), 1425 * 4 + 450 * 2),
    ],
    ids=["bf16", "fp32", "fp32_head", "gathered_float8"],
)
def test_a_reference_is_counted_as_it_is_stored(laid_out, overrides, expected):
    found = bytes_of(laid_out(*PREFERENCES, *overrides, ranks=4, dp_shard=4))
    # FSDP leaves the head gathered, because no backward pass begins with it
    assert found["frozen reference"] == expected


def test_vllm_takes_its_share_of_the_device(tmp_path):
    """Row A6: its process is beside each rank, on the rank's accelerator."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(TEXT)
    run = resolve_recipe(
        str(recipe), ["rl.generator={name: vllm, memory_share: 0.25}"], environment={}, ranks=1
    ).run
    end = ModuleSize(800, 200, 400, 800, 200)
    found = bytes_of(PlanLayout(run, ParallelDims(), end, [LAYER], end))
    assert found["generator"] == 78 * 1024**3 // 4
    assert found["published weights"] == 2 * (800 + 1000 + 800) * 4
    assert "frozen reference" not in found


def test_the_time_of_a_step_says_for_which_dtype_it_is(laid_out):
    device = DEVICES["h100"]
    for dtype, end in (("bfloat16", "MFU"), ("float32", "MFU in bfloat16, longer in float32")):
        layout = laid_out(f"training.mixed_precision_param={dtype}", ranks=1)
        lines = format_plan(layout, plan_to_dict(layout, device)).splitlines()
        (step,) = [line for line in lines if line.lstrip().startswith("step ")]
        assert step.endswith(end)
