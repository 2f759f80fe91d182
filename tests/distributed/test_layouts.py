"""Every layout of ranks trains as one process does, in fp32: losses, gradient norms, gradients,
held-out losses."""

from pathlib import Path

import pytest

from tests.distributed.ranks import EXPERTS, Case, alone, case, train
from titanrun.components.data.chat_config import TINY_CHAT

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 5e-6
SMALLEST = 1e-30

# what the fast layouts show, a narrow model shows in a third of the time
NARROW = ("model.dim=64", "model.n_heads=8")
CP2, CP4 = "parallelism.context_parallel_degree=2", "parallelism.context_parallel_degree=4"
UNBALANCED = "parallelism.context_parallel_load_balancer=null"
BY_HEADS = "parallelism.context_parallel_rotate_method=alltoall"
FOUR_STAGES = ["training.local_batch_size=4", "validation.local_batch_size=2"]
ORDER = Path(__file__).with_name("v_shaped_order.csv")
IN_ORDER = "[[tok_embeddings, layers.0], [layers.1, layers.2, layers.3, norm, output]]"
DDP2 = "parallelism.data_parallel_replicate_degree=2"
SCORED_BEFORE = ("model.moe.num_shared_experts=1", "model.moe.score_before_experts=true")
ETP2 = "parallelism.expert_tensor_parallel_degree=2"
EP2, EP4 = "parallelism.expert_parallel_degree=2", "parallelism.expert_parallel_degree=4"
TP2 = "parallelism.tensor_parallel_degree=2"
WHOLE_STREAM = "parallelism.enable_sequence_parallel=false"
TRANSFORMERS = "model={{name: transformers, path: {}}}"
MISTRAL, GPT2, MIXTRAL, QWEN2 = (
    [TRANSFORMERS.format(Path(__file__).parents[1] / f"models/transformers/{name}.json")]
    for name in ("mistral", "gpt2", "mixtral", "qwen2")
)
TIED, SIX_LAYERS = "model.tie_word_embeddings=true", "model.n_layers=6"
HEAD_ALONE = (
    "parallelism.module_fqns_per_model_part=[[tok_embeddings, layers.0, layers.1, layers.2, "
    "layers.3, norm], [output]]"
)
UNTIED = "model.tie_word_embeddings=false"
ODD = "model.vocab_size=2049"
COMPILED = ["compile={enable: true, backend: aot_eager}"]
OPERATIONS = "activation_checkpoint={name: selective, selective_ac_option: op}"
# the rows have another number of tokens than so many chunks hold
CHUNKED = "loss={name: chunked_cross_entropy, num_chunks: 5}"
REPLACED = (
    'replace=[{match: "layers.*.feed_forward", with: {name: gated_feed_forward, activation: '
    "squared_relu}}]"
)
SMOOTHED = "loss={name: cross_entropy, label_smoothing: 0.1, z_loss: 1.0e-3}"
OPTIMIZERS = {
    "muon": "optimizer={name: muon, ns_dtype: float32, param_groups: [{match: "
    "['layers.*.w1.weight'], lr: 1.0e-3}]}",
    "schedule_free": "optimizer={name: schedule_free_adamw, no_decay: [norms]}",
    "sgd": "optimizer={name: sgd, momentum: 0.9}",
    "bf16_states": "optimizer={name: adamw, state_dtype: bfloat16}",
}
# codes flip where a number lies between two: gradients that are nothing but rounding must not count
EIGHT_BITS = "optimizer={name: adamw_8bit, eps: 1.0e-5}"
QWEN3 = "model={name: qwen3, flavor: debugmodel, n_layers: 2}"
FOUR_LAYERS = [*EXPERTS, "model.n_layers=4"]
LONGER_HELD_OUT = [*EXPERTS, "validation.seq_len=96"]
QWEN3_MOE = (
    "model={name: qwen3, flavor: debugmodel_moe, n_layers: 2, moe: {num_experts: 8, top_k: 2, "
    "hidden_dim: 128, num_shared_experts: 1}}"
)
NARROW_QWEN3_MOE = (
    "model={name: qwen3, flavor: debugmodel_moe, dim: 64, n_heads: 4, n_kv_heads: 2, n_layers: 2, "
    "moe: {num_experts: 4, top_k: 2, hidden_dim: 96, num_shared_experts: 1}}"
)
# latent attention with compressed queries, a dense layer, experts in groups, YaRN
LATENT = (
    "q_lora_rank: 24, kv_lora_rank: 32, qk_nope_head_dim: 16, qk_rope_head_dim: 8, v_head_dim: 16"
)
IN_GROUPS = (
    "{num_experts: 8, top_k: 2, hidden_dim: 64, score_func: sigmoid, num_expert_groups: 4, "
    "num_limited_groups: 2}"
)
STRETCHED = "{scaling: {name: yarn, original_max_position_embeddings: 32, mscale_all_dim: 1.0}}"
DEEPSEEK_SIZES = (
    f"dim: 64, n_layers: 4, n_heads: 4, {LATENT}, feed_forward: {{hidden_dim: 96}}, rope: "
    f"{STRETCHED}, moe: {IN_GROUPS}"
)
DEEPSEEK_MODEL = f"model={{name: deepseek_v3, flavor: debugmodel, {DEEPSEEK_SIZES}}}"
# gradients that are nothing but rounding move weights by the learning rate, unless they are small
# beside it
LARGE_EPS = "optimizer.eps=1.0e-5"
DEEPSEEK = (DEEPSEEK_MODEL, LARGE_EPS)
FURTHER_MODEL = DEEPSEEK_MODEL.replace("n_layers: 4", "n_layers: 2, num_mtp_layers: 2")
FURTHER = (FURTHER_MODEL, LARGE_EPS, "loss=multi_token_cross_entropy")
FURTHER_FLEX = (
    FURTHER_MODEL.replace("flavor: debugmodel", "flavor: debugmodel_flex_attn"),
    *FURTHER[1:],
)
DEEPSEEK_FLEX = (
    DEEPSEEK_MODEL.replace("flavor: debugmodel", "flavor: debugmodel_flex_attn"),
    LARGE_EPS,
)


# windows of 16 tokens in every second layer
GPT_OSS = (
    "model={name: gpt_oss, flavor: debugmodel, vocab_size: 2048, dim: 64, n_heads: 4, "
    "n_kv_heads: 2, head_dim: 16, n_layers: 4, "
    "sliding_window: 16, moe: {num_experts: 4, top_k: 2, hidden_dim: 96}}",
)
# rows are cut into blocks of 16 tokens in all layers but one, which sharpens attention every 8
# tokens
LLAMA4_PATTERN = (
    "every_n_layers_nope: 4, first_nope_layer: 2, fixed_attn_block_size: 16, qk_norm: true, "
    "attn_scale: 0.3, floor_scale: 8"
)
LLAMA4_SIZES = (
    "dim: 32, n_layers: 4, n_heads: 4, n_kv_heads: 2, feed_forward: {hidden_dim: 96}, moe: "
    "{num_experts: 4, top_k: 2, hidden_dim: 64}"
)
LLAMA4 = (
    f"model={{name: llama4, flavor: debugmodel_irope, {LLAMA4_SIZES}, {LLAMA4_PATTERN}}}",
    LARGE_EPS,
)
# every ingredient that no other family has, beside those that some have
INGREDIENTS = (
    "norm: layer, post_norms: true, logit_soft_cap: 20, rope: {pattern: [rope, rope, none]}, "
    "feed_forward: {hidden_dim: 96, bias: true}, "
    "attention: {qk_norm: true, bias: all, sinks: true, window: 16, window_pattern: [window, "
    "full], soft_cap: 10}, "
    "hidden_pattern: [dense, experts], moe: {num_experts: 4, top_k: 2, hidden_dim: 64, "
    "num_shared_experts: 1, swiglu_limit: 7}"
)
DECODER = (
    f"model={{name: decoder, flavor: debugmodel, dim: 64, n_layers: 4, n_heads: 4, "
    f"n_kv_heads: 2, head_dim: 16, {INGREDIENTS}}}",
    LARGE_EPS,
)
LATENT_DECODER = (
    f"model={{name: decoder, flavor: debugmodel, dim: 64, n_layers: 4, n_heads: 4, "
    f"attention: {{latent: {{{LATENT}}}, window: 16, "
    f"window_pattern: [window, full]}}, rope: {{pairs: "
    f"neighbours}}, feed_forward: {{hidden_dim: 96}}, "
    f"hidden_pattern: [dense, experts], moe: {IN_GROUPS}}}",
    LARGE_EPS,
)
CHATS = (
    "kind=sft",
    "model.attention={mask: block_causal}",
    "training.dataset={name: tiny_chat, packing: best_fit}",
    "validation.dataset={name: tiny_chat, split: held_out, packing: best_fit}",
)
PAIRS = ("model.attention={mask: block_causal}", "training.dataset=tiny_pairs")
REWARD = ("loss=reward", "model.head=scalar")
LABELS = ("training.dataset=tiny_labelled", "loss=kto")
# what a user says counts a little: how much there is of it differs from row to row
WEIGHED = (
    f"name: chat, path: {TINY_CHAT}/train.jsonl, packing: best_fit, train_on: roles, "
    f"role_weights: {{user: 0.3, assistant: 1.7}}"
)
WEIGHTS = (
    *CHATS[:2],
    f"training.dataset={{{WEIGHED}}}",
    f"validation.dataset={{{WEIGHED.replace('train.', 'held_out.')}}}",
)
FLUX = (
    "model={name: flux, flavor: tiny, encoder: {max_t5_encoding_len: 16}, "
    "classifier_free_guidance_prob: 0.3}",
    "loss=flow_matching",
    "training.dataset={name: tiny_images, image_size: 64}",
    "validation.dataset={name: tiny_images, image_size: 64, split: held_out}",
    "training.seq_len=32",
    "tokenizer=null",
    LARGE_EPS,
)
SIX_HEADS = ("model.n_heads=6", "model.axes_dim=[4, 6, 6]")
# documents of the tiny corpus are about a hundred tokens long
FLEX = ("model.flavor=debugmodel_flex_attn",)
VARLEN = ("model.flavor=debugmodel_varlen_attn",)


def pipeline(ranks: int, schedule: str = "1F1B", **settings: object) -> list[str]:
    """Overrides that cut the layers into stages."""
    more = [f"parallelism.pipeline_parallel_{name}={value}" for name, value in settings.items()]
    return [
        f"parallelism.pipeline_parallel_degree={ranks}",
        f"parallelism.pipeline_parallel_schedule={schedule}",
        *more,
    ]


THREE_OF_SIX = [*pipeline(3, "Interleaved1F1B"), *FOUR_STAGES]
LAYOUTS = [
    case("fsdp2", nproc=2, base=NARROW),
    case("fsdp4", nproc=4, slow=True),
    case("hsdp2x2", nproc=4, overrides=[DDP2], base=NARROW),
    case("ddp2", nproc=2, overrides=[DDP2], base=NARROW),
    case("ddp4", nproc=4, overrides=["parallelism.data_parallel_replicate_degree=4"], slow=True),
    case(
        "fsdp2_always",
        nproc=2,
        overrides=["parallelism.fsdp_reshard_after_forward=always"],
        slow=True,
    ),
    case(
        "fsdp2_never",
        nproc=2,
        overrides=["parallelism.fsdp_reshard_after_forward=never"],
        slow=True,
    ),
    case("fsdp2_offload", nproc=2, overrides=["training.enable_cpu_offload=true"], slow=True),
    case("fsdp2_recomputed", nproc=2, overrides=["activation_checkpoint=full"], slow=True),
    case(
        "fsdp2_every_second_layer_recomputed",
        nproc=2,
        overrides=["activation_checkpoint=selective"],
        slow=True,
    ),
    case("fsdp2_operations_recomputed", nproc=2, overrides=[OPERATIONS], slow=True),
    case("fsdp2_compiled", nproc=2, overrides=COMPILED, slow=True),
    case(
        "fsdp2_compiled_operations_recomputed",
        nproc=2,
        overrides=[*COMPILED, OPERATIONS],
        slow=True,
    ),
    case(
        "ddp2_compiled",
        nproc=2,
        overrides=[*COMPILED, "parallelism.data_parallel_replicate_degree=2"],
        slow=True,
    ),
    case(
        "fsdp2_compiled_operations_recomputed_qwen3",
        nproc=2,
        overrides=[*COMPILED, OPERATIONS],
        base=[QWEN3],
        slow=True,
    ),
    case("fsdp2_compiled_qwen3_moe", nproc=2, overrides=COMPILED, base=[QWEN3_MOE], slow=True),
    case("tp2_compiled", nproc=2, overrides=[*COMPILED, TP2], slow=True),
    case(
        "tp2_compiled_whole_stream_operations_recomputed",
        nproc=2,
        overrides=[*COMPILED, TP2, WHOLE_STREAM, OPERATIONS],
        slow=True,
    ),
    case(
        "cp2_compiled_recomputed",
        nproc=2,
        overrides=[*COMPILED, CP2, "activation_checkpoint=full"],
        slow=True,
    ),
    case(
        "cp2_tp2_compiled_qwen3_moe",
        nproc=4,
        overrides=[*COMPILED, CP2, TP2],
        base=[QWEN3_MOE],
        slow=True,
    ),
    case(
        "pp2_compiled_dualpipev",
        nproc=2,
        overrides=[*COMPILED, *pipeline(2, "DualPipeV"), *FOUR_STAGES],
        slow=True,
    ),
    case("fsdp2_tp2_pp2_compiled", nproc=8, overrides=[*COMPILED, TP2, *pipeline(2)], slow=True),
    case(
        "fsdp2_tp2_ep2_etp2_compiled",
        nproc=4,
        overrides=[*COMPILED, TP2, EP2, ETP2],
        base=EXPERTS,
        slow=True,
    ),
    case(
        "fsdp2_pp2_ep2_compiled",
        nproc=4,
        overrides=[*COMPILED, *pipeline(2), EP2],
        base=EXPERTS,
        slow=True,
    ),
    case(
        "fsdp2_ep2_compiled_recomputed",
        nproc=2,
        overrides=[*COMPILED, EP2, "activation_checkpoint=full"],
        base=LONGER_HELD_OUT,
        slow=True,
    ),
    case(
        "fsdp2_compiled_memory_budget",
        nproc=2,
        overrides=[*COMPILED, "activation_checkpoint=memory_budget"],
        slow=True,
    ),
    case(
        "compiled_longer_held_out_rows",
        nproc=1,
        overrides=COMPILED,
        base=["validation.seq_len=96"],
        slow=True,
    ),
    case("compiled_inductor", nproc=1, overrides=["compile.enable=true"], slow=True),
    case("fsdp2_mistral", nproc=2, base=MISTRAL, slow=True),
    case(
        "fsdp2_mistral_compiled_operations_recomputed",
        nproc=2,
        overrides=[*COMPILED, OPERATIONS],
        base=MISTRAL,
        slow=True,
    ),
    case(
        "fsdp2_gpt2_tied_recomputed",
        nproc=2,
        overrides=["activation_checkpoint=full"],
        base=GPT2,
        slow=True,
    ),
    case("hsdp2x2_gpt2_tied", nproc=4, overrides=[DDP2], base=GPT2, slow=True),
    case(
        "fsdp2_mistral_offload",
        nproc=2,
        overrides=["training.enable_cpu_offload=true"],
        base=MISTRAL,
        slow=True,
    ),
    case("tp2_mistral", nproc=2, overrides=[TP2, WHOLE_STREAM], base=MISTRAL, slow=True),
    case("fsdp2_tp2_qwen2_tied", nproc=4, overrides=[TP2, WHOLE_STREAM], base=QWEN2, slow=True),
    case(
        "tp2_mistral_compiled",
        nproc=2,
        overrides=[*COMPILED, TP2, WHOLE_STREAM],
        base=MISTRAL,
        slow=True,
    ),
    case("fsdp2_mixtral", nproc=2, base=MIXTRAL, slow=True),
    case("ddp2_mixtral", nproc=2, overrides=[DDP2], base=MIXTRAL, slow=True),
    case("tp2_fsdp2_replaced", nproc=4, overrides=[TP2], base=[REPLACED], slow=True),
    case(
        "pp2_compiled_replaced",
        nproc=2,
        overrides=[*COMPILED, *pipeline(2)],
        base=[REPLACED],
        slow=True,
    ),
    case("tp2_decoder", nproc=2, overrides=[TP2], base=DECODER, slow=True),
    case(
        "tp2_whole_stream_decoder", nproc=2, overrides=[TP2, WHOLE_STREAM], base=DECODER, slow=True
    ),
    case("cp2_decoder", nproc=2, overrides=[CP2], base=DECODER, slow=True),
    case("cp2_alltoall_decoder", nproc=2, overrides=[CP2, BY_HEADS], base=DECODER, slow=True),
    case("pp2_decoder", nproc=2, overrides=pipeline(2), base=DECODER, slow=True),
    case(
        "fsdp2_ep2_compiled_recomputed_decoder",
        nproc=2,
        overrides=[*COMPILED, EP2, "activation_checkpoint=full"],
        base=DECODER,
        slow=True,
    ),
    case(
        "fsdp2_tp2_ep2_etp2_decoder", nproc=4, overrides=[TP2, EP2, ETP2], base=DECODER, slow=True
    ),
    case("fsdp2_chunked_loss", nproc=2, overrides=[CHUNKED], slow=True),
    case(
        "fsdp2_always_chunked_loss",
        nproc=2,
        overrides=[CHUNKED, "parallelism.fsdp_reshard_after_forward=always"],
        slow=True,
    ),
    case("ddp2_chunked_loss_compiled", nproc=2, overrides=[CHUNKED, DDP2, *COMPILED], slow=True),
    case("tp2_chunked_loss", nproc=2, overrides=[CHUNKED, TP2], slow=True),
    case(
        "fsdp2_tp2_chunked_loss_whole_stream",
        nproc=4,
        overrides=[CHUNKED, TP2, WHOLE_STREAM],
        slow=True,
    ),
    case(
        "tp2_chunked_loss_whole_logits",
        nproc=2,
        overrides=[CHUNKED, TP2, "parallelism.disable_loss_parallel=true"],
        slow=True,
    ),
    case("fsdp2_cp2_tp2_chunked_loss", nproc=8, overrides=[CHUNKED, CP2, TP2], slow=True),
    case("fsdp2_ep2_chunked_loss", nproc=2, overrides=[CHUNKED, EP2], base=EXPERTS, slow=True),
    case(
        "fsdp2_chunked_loss_tied",
        nproc=2,
        overrides=[CHUNKED],
        base=["model.tie_word_embeddings=true"],
        slow=True,
    ),
    case("tp2_mse", nproc=2, overrides=[TP2], base=["loss={name: mse, height: 5.0}"], slow=True),
    case("fsdp2_flux", nproc=2, base=FLUX, slow=True),
    case("ddp2_flux", nproc=2, overrides=[DDP2], base=FLUX, slow=True),
    case("hsdp2x2_flux", nproc=4, overrides=[DDP2], base=FLUX, slow=True),
    case("cp2_flux", nproc=2, overrides=[CP2], base=[*FLUX, "model.guidance_embed=3.5"], slow=True),
    case(
        "cp2_alltoall_flux", nproc=2, overrides=[CP2, BY_HEADS], base=[*FLUX, *SIX_HEADS], slow=True
    ),
    case(
        "cp2_fsdp2_flux_compiled_recomputed",
        nproc=4,
        overrides=[*COMPILED, CP2, "activation_checkpoint=full"],
        base=FLUX,
        slow=True,
    ),
    case(
        "fsdp2_flux_compiled_recomputed",
        nproc=2,
        overrides=[*COMPILED, "activation_checkpoint=full"],
        base=FLUX,
        slow=True,
    ),
    case("fsdp2_conversations", nproc=2, base=CHATS, slow=True),
    case("fsdp2_weights", nproc=2, base=WEIGHTS, slow=True),
    case("cp2_tp2_weights", nproc=4, overrides=[CP2, TP2], base=WEIGHTS, slow=True),
    case("fsdp2_pp2_weights", nproc=4, overrides=pipeline(2), base=WEIGHTS, slow=True),
    case("tp2_chunked_weights", nproc=2, overrides=[TP2], base=[*WEIGHTS, CHUNKED], slow=True),
    case("fsdp3_uneven", nproc=3, base=["training.global_batch_size=6"], slow=True),
    case("fsdp2_tied", nproc=2, base=["model.tie_word_embeddings=true"], slow=True),
    case("fsdp2_unclipped", nproc=2, base=["training.max_norm=null"], slow=True),
    *(
        case(
            f"{layout}_{name}",
            nproc=2,
            overrides=given,
            base=[optimizer],
            slow=True,
        )
        for layout, given in {"fsdp2": [], "tp2": [TP2], "pp2": pipeline(2)}.items()
        for name, optimizer in OPTIMIZERS.items()
    ),
    case("fsdp2_tp2_8bit", nproc=4, overrides=[TP2], base=[EIGHT_BITS], slow=True),
    case(
        "fsdp2_ep2_fp8",
        nproc=2,
        overrides=[EP2],
        base=[EIGHT_BITS.replace("8bit", "fp8"), QWEN3_MOE],
        slow=True,
    ),
    case("fsdp2_tp2_muon", nproc=4, overrides=[TP2], base=[OPTIMIZERS["muon"]], slow=True),
    case(
        "fsdp2_ep2_muon", nproc=2, overrides=[EP2], base=[OPTIMIZERS["muon"], QWEN3_MOE], slow=True
    ),
    case("tp2_smoothed", nproc=2, overrides=[TP2], base=[SMOOTHED, ODD], slow=True),
    case("pp2_smoothed", nproc=2, overrides=pipeline(2), base=[SMOOTHED], slow=True),
    case("fsdp2_cp2_smoothed", nproc=4, overrides=[CP2], base=[SMOOTHED], slow=True),
    case("cp2", nproc=2, overrides=[CP2], base=NARROW),
    case("cp2_unbalanced", nproc=2, overrides=[CP2, UNBALANCED], slow=True),
    case("cp2_alltoall", nproc=2, overrides=[CP2, BY_HEADS], slow=True),
    case("cp2_alltoall_unbalanced", nproc=2, overrides=[CP2, BY_HEADS, UNBALANCED], slow=True),
    case("cp2_recomputed", nproc=2, overrides=[CP2, "activation_checkpoint=full"], slow=True),
    case(
        "cp2_alltoall_recomputed",
        nproc=2,
        overrides=[CP2, BY_HEADS, "activation_checkpoint=full"],
        slow=True,
    ),
    case("cp2_qwen3", nproc=2, overrides=[CP2], base=[QWEN3], slow=True),
    case("cp2_alltoall_qwen3", nproc=2, overrides=[CP2, BY_HEADS], base=[QWEN3], slow=True),
    case("cp2_qwen3_moe", nproc=2, overrides=[CP2], base=[QWEN3_MOE], slow=True),
    case("fsdp2_documents", nproc=2, base=FLEX, slow=True),
    case("cp2_documents", nproc=2, overrides=[CP2], base=FLEX, slow=True),
    case(
        "cp2_documents_alltoall_recomputed",
        nproc=2,
        overrides=[CP2, BY_HEADS, "activation_checkpoint=full"],
        base=VARLEN,
        slow=True,
    ),
    case(
        "fsdp2_documents_compiled_operations_recomputed",
        nproc=2,
        overrides=[*COMPILED, OPERATIONS],
        base=FLEX,
        slow=True,
    ),
    case("tp2_pp2_documents", nproc=4, overrides=[TP2, *pipeline(2)], base=FLEX, slow=True),
    case(
        "pp2_documents_zbv",
        nproc=2,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES],
        base=FLEX,
        slow=True,
    ),
    case("cp2_pp2_documents", nproc=4, overrides=[CP2, *pipeline(2)], base=FLEX, slow=True),
    case("cp4", nproc=4, overrides=[CP4], slow=True),
    case("cp4_alltoall", nproc=4, overrides=[CP4, BY_HEADS], slow=True),
    case("fsdp2_cp2", nproc=4, overrides=[CP2], slow=True),
    case("hsdp2_cp2", nproc=4, overrides=[CP2, DDP2], slow=True),
    case("tp2", nproc=2, overrides=[TP2], slow=True),
    case("tp2_whole_stream", nproc=2, overrides=[TP2, WHOLE_STREAM], slow=True),
    case(
        "tp2_whole_logits",
        nproc=2,
        overrides=[TP2, "parallelism.disable_loss_parallel=true"],
        slow=True,
    ),
    case("tp2_odd", nproc=2, overrides=[TP2], base=[ODD], slow=True),
    case("tp2_recomputed", nproc=2, overrides=[TP2, "activation_checkpoint=full"], slow=True),
    case("tp2_operations_recomputed", nproc=2, overrides=[TP2, OPERATIONS], slow=True),
    case("tp4", nproc=4, overrides=["parallelism.tensor_parallel_degree=4"], slow=True),
    case(
        "tp4_odd",
        nproc=4,
        overrides=["parallelism.tensor_parallel_degree=4"],
        base=[ODD],
        slow=True,
    ),
    case("tp2_qwen3", nproc=2, overrides=[TP2], base=[QWEN3], slow=True),
    case("tp2_qwen3_moe", nproc=2, overrides=[TP2], base=[NARROW_QWEN3_MOE]),
    case("tp2_qwen3_moe_wide", nproc=2, overrides=[TP2], base=[QWEN3_MOE], slow=True),
    case(
        "tp2_qwen3_moe_whole_stream",
        nproc=2,
        overrides=[TP2, WHOLE_STREAM],
        base=[QWEN3_MOE],
        slow=True,
    ),
    case("fsdp2_tp2", nproc=4, overrides=[TP2], slow=True),
    case("fsdp2_tp2_odd", nproc=4, overrides=[TP2], base=[ODD], slow=True),
    case(
        "fsdp2_tp2_offload", nproc=4, overrides=[TP2, "training.enable_cpu_offload=true"], slow=True
    ),
    case("fsdp2_tp2_qwen3", nproc=4, overrides=[TP2], base=[QWEN3], slow=True),
    case("fsdp2_tp2_qwen3_moe", nproc=4, overrides=[TP2], base=[QWEN3_MOE], slow=True),
    case("hsdp2x2_cp2", nproc=8, overrides=[CP2, DDP2], slow=True),
    case("cp2_tp2", nproc=4, overrides=[CP2, TP2], slow=True),
    case("cp2_tp2_alltoall", nproc=4, overrides=[CP2, TP2, BY_HEADS], slow=True),
    case("fsdp2_cp2_tp2", nproc=8, overrides=[CP2, TP2], slow=True),
    case("cp2_pp2", nproc=4, overrides=[CP2, *pipeline(2)], slow=True),
    case(
        "cp2_pp2_looped_1f1b",
        nproc=4,
        overrides=[CP2, *pipeline(2, "Interleaved1F1B"), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "cp2_pp2_zbv_alltoall",
        nproc=4,
        overrides=[CP2, BY_HEADS, *pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES],
        slow=True,
    ),
    case("cp2_tp2_pp2", nproc=8, overrides=[CP2, TP2, *pipeline(2)], slow=True),
    case("fsdp2_cp2_tp2_qwen3_moe", nproc=8, overrides=[CP2, TP2], base=[QWEN3_MOE], slow=True),
    case("hsdp2x2_tp2", nproc=8, overrides=[TP2, DDP2], slow=True),
    case("pp2_1f1b", nproc=2, overrides=pipeline(2), base=NARROW),
    case("pp2_gpipe", nproc=2, overrides=pipeline(2, "GPipe"), slow=True),
    case(
        "pp2_looped_1f1b",
        nproc=2,
        overrides=[*pipeline(2, "Interleaved1F1B"), *FOUR_STAGES],
        base=NARROW,
    ),
    case("pp2_looped_bfs", nproc=2, overrides=[*pipeline(2, "LoopedBFS"), *FOUR_STAGES], slow=True),
    case(
        "pp2_looped_zero_bubble",
        nproc=2,
        overrides=[*pipeline(2, "InterleavedZeroBubble"), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "pp2_zbv",
        nproc=2,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES],
        base=NARROW,
    ),
    case("pp2_dualpipev", nproc=2, overrides=[*pipeline(2, "DualPipeV"), *FOUR_STAGES], slow=True),
    case(
        "pp2_three_stages_a_rank",
        nproc=2,
        overrides=[*pipeline(2, "LoopedBFS", layers_per_stage=1), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "pp2_explicit",
        nproc=2,
        overrides=[*pipeline(2), f"parallelism.module_fqns_per_model_part={IN_ORDER}"],
        slow=True,
    ),
    case(
        "pp2_uneven",
        nproc=2,
        overrides=pipeline(2, first_stage_less_layers=0, last_stage_less_layers=3),
        slow=True,
    ),
    case(
        "pp2_microbatch2",
        nproc=2,
        overrides=[*pipeline(2, microbatch_size=2), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "pp2_recompute", nproc=2, overrides=[*pipeline(2), "activation_checkpoint=full"], slow=True
    ),
    case("pp2_operations_recomputed", nproc=2, overrides=[*pipeline(2), OPERATIONS], slow=True),
    case(
        "pp2_zbv_second_layer_recomputed",
        nproc=2,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES, "activation_checkpoint=selective"],
        slow=True,
    ),
    case(
        "pp2_zbv_recompute",
        nproc=2,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES, "activation_checkpoint=full"],
        slow=True,
    ),
    case("pp2_qwen3", nproc=2, overrides=pipeline(2), base=[QWEN3, UNTIED], slow=True),
    case("pp2_tied", nproc=2, overrides=pipeline(2), base=[*NARROW, TIED]),
    case(
        "pp2_tied_zbv",
        nproc=2,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES],
        base=[TIED],
        slow=True,
    ),
    case("fsdp2_pp2_tied_odd", nproc=4, overrides=pipeline(2), base=[TIED, ODD], slow=True),
    case(
        "fsdp2_pp2_tied_odd_zbv",
        nproc=4,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES],
        base=[TIED, ODD],
        slow=True,
    ),
    case(
        "fsdp2_pp2_tied_offload",
        nproc=4,
        overrides=[*pipeline(2), "training.enable_cpu_offload=true"],
        base=[TIED],
        slow=True,
    ),
    case(
        "ddp2_pp2_tied_dualpipev",
        nproc=4,
        overrides=[*pipeline(2, "DualPipeV"), *FOUR_STAGES, DDP2],
        base=[TIED],
        slow=True,
    ),
    case("tp2_pp2_tied_odd", nproc=4, overrides=[*pipeline(2), TP2], base=[TIED, ODD], slow=True),
    case(
        "fsdp2_tp2_pp2_tied_zbv",
        nproc=8,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES, TP2],
        base=[TIED],
        slow=True,
    ),
    case(
        "pp3_tied_looped_muon",
        nproc=3,
        overrides=THREE_OF_SIX,
        base=[TIED, SIX_LAYERS, OPTIMIZERS["muon"]],
        slow=True,
    ),
    case(
        "pp2_tied_head_alone", nproc=2, overrides=[*pipeline(2), HEAD_ALONE], base=[TIED], slow=True
    ),
    case("pp2_qwen3_tied", nproc=2, overrides=pipeline(2), base=[QWEN3], slow=True),
    case(
        "pp2_custom_csv",
        nproc=2,
        overrides=[*pipeline(2, schedule_csv=ORDER), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "fsdp2_pp2_custom_csv",
        nproc=4,
        overrides=[*pipeline(2, schedule_csv=ORDER), *FOUR_STAGES],
        slow=True,
    ),
    case("tp2_pp2", nproc=4, overrides=[*pipeline(2), TP2], slow=True),
    case("tp2_pp2_whole_stream", nproc=4, overrides=[*pipeline(2), TP2, WHOLE_STREAM], slow=True),
    case(
        "tp2_pp2_zbv",
        nproc=4,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES, TP2],
        base=[ODD],
        slow=True,
    ),
    case("pp2_qwen3_moe", nproc=2, overrides=pipeline(2), base=[QWEN3_MOE], slow=True),
    case("fsdp2_tp2_pp2", nproc=8, overrides=[*pipeline(2), TP2], slow=True),
    case("pp4", nproc=4, overrides=[*pipeline(4), *FOUR_STAGES], slow=True),
    case("fsdp2_pp2_1f1b", nproc=4, overrides=pipeline(2), slow=True),
    case(
        "fsdp2_pp2_looped_1f1b",
        nproc=4,
        overrides=[*pipeline(2, "Interleaved1F1B"), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "fsdp2_pp2_zbv", nproc=4, overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES], slow=True
    ),
    case(
        "fsdp2_pp2_dualpipev",
        nproc=4,
        overrides=[*pipeline(2, "DualPipeV"), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "ddp2_pp2_zbv",
        nproc=4,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES, DDP2],
        slow=True,
    ),
    case("ddp2_pp2", nproc=4, overrides=[*pipeline(2), DDP2], slow=True),
    case("experts_fsdp2", nproc=2, base=EXPERTS, slow=True),
    case("fsdp2_ep2", nproc=2, base=EXPERTS, overrides=[EP2]),
    case(
        "fsdp2_ep2_recomputed",
        nproc=2,
        base=EXPERTS,
        overrides=[EP2, "activation_checkpoint=full"],
        slow=True,
    ),
    case(
        "fsdp2_ep2_operations_recomputed",
        nproc=2,
        base=EXPERTS,
        overrides=[EP2, OPERATIONS],
        slow=True,
    ),
    case(
        "fsdp2_ep2_offload",
        nproc=2,
        base=EXPERTS,
        overrides=[EP2, "training.enable_cpu_offload=true"],
        slow=True,
    ),
    case(
        "fsdp2_ep2_one_pass",
        nproc=2,
        base=[*EXPERTS, "training.global_batch_size=4"],
        overrides=[EP2],
        slow=True,
    ),
    case("fsdp4_ep2", nproc=4, base=EXPERTS, overrides=[EP2], slow=True),
    case(
        "fsdp4_ep2_few_experts",
        nproc=4,
        base=[*EXPERTS, "model.moe.num_experts=2"],
        overrides=[EP2],
        slow=True,
    ),
    case("fsdp4_ep4", nproc=4, base=EXPERTS, overrides=[EP4], slow=True),
    case("tp2_ep2", nproc=2, base=EXPERTS, overrides=[TP2, EP2]),
    case(
        "tp2_ep2_whole_stream", nproc=2, base=EXPERTS, overrides=[TP2, EP2, WHOLE_STREAM], slow=True
    ),
    case("fsdp2_tp2_ep2", nproc=4, base=EXPERTS, overrides=[TP2, EP2], slow=True),
    case("fsdp2_tp2_ep2_etp2", nproc=4, base=EXPERTS, overrides=[TP2, EP2, ETP2], slow=True),
    case("fsdp2_tp2_ep4", nproc=4, base=EXPERTS, overrides=[TP2, EP4], slow=True),
    case(
        "fsdp2_tp2_ep2_shared_expert",
        nproc=4,
        base=[*EXPERTS, *SCORED_BEFORE],
        overrides=[TP2, EP2],
        slow=True,
    ),
    case(
        "fsdp2_tp2_ep2_etp2_shared_expert",
        nproc=4,
        base=[*EXPERTS, *SCORED_BEFORE],
        overrides=[TP2, EP2, ETP2],
        slow=True,
    ),
    case("fsdp2_pp2_ep2", nproc=4, base=EXPERTS, overrides=[*pipeline(2), EP2], slow=True),
    case(
        "fsdp2_pp2_zbv_ep2",
        nproc=4,
        base=FOUR_LAYERS,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES, EP2],
        slow=True,
    ),
    case(
        "fsdp2_pp2_dualpipev_ep2",
        nproc=4,
        base=FOUR_LAYERS,
        overrides=[*pipeline(2, "DualPipeV"), *FOUR_STAGES, EP2],
        slow=True,
    ),
    case("cp2_ep2", nproc=2, base=EXPERTS, overrides=[CP2, EP2], slow=True),
    case("fsdp2_cp2_ep4", nproc=4, base=EXPERTS, overrides=[CP2, EP4], slow=True),
    case(
        "fsdp2_tp2_pp2_ep2_etp2",
        nproc=8,
        base=EXPERTS,
        overrides=[*pipeline(2), TP2, EP2, ETP2],
        slow=True,
    ),
    case("gpt_oss_tp2", nproc=2, base=GPT_OSS, overrides=[TP2], slow=True),
    case("gpt_oss_fsdp2_tp2_ep2", nproc=4, base=GPT_OSS, overrides=[TP2, EP2], slow=True),
    case(
        "gpt_oss_fsdp2_tp2_ep2_etp2", nproc=4, base=GPT_OSS, overrides=[TP2, EP2, ETP2], slow=True
    ),
    case(
        "gpt_oss_fsdp2_ep2_recomputed",
        nproc=2,
        base=GPT_OSS,
        overrides=[EP2, "activation_checkpoint=full"],
        slow=True,
    ),
    case(
        "gpt_oss_fsdp2_compiled_operations_recomputed",
        nproc=2,
        base=GPT_OSS,
        overrides=[*COMPILED, OPERATIONS],
        slow=True,
    ),
    case(
        "gpt_oss_fsdp4_tp2_ep4_compiled",
        nproc=8,
        base=GPT_OSS,
        overrides=[*COMPILED, TP2, EP4],
        slow=True,
    ),
    case("gpt_oss_cp2", nproc=2, base=GPT_OSS, overrides=[CP2], slow=True),
    case(
        "gpt_oss_cp2_ep2_alltoall", nproc=2, base=GPT_OSS, overrides=[CP2, EP2, BY_HEADS], slow=True
    ),
    case(
        "gpt_oss_pp2_zbv",
        nproc=2,
        base=GPT_OSS,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "gpt_oss_cp2_tp2_pp2", nproc=8, base=GPT_OSS, overrides=[CP2, TP2, *pipeline(2)], slow=True
    ),
    case(
        "llama4_fsdp2_recomputed",
        nproc=2,
        base=LLAMA4,
        overrides=["activation_checkpoint=full"],
        slow=True,
    ),
    case(
        "llama4_fsdp2_compiled_operations_recomputed",
        nproc=2,
        base=LLAMA4,
        overrides=[*COMPILED, OPERATIONS],
        slow=True,
    ),
    case("llama4_tp2", nproc=2, base=LLAMA4, overrides=[TP2], slow=True),
    case("llama4_tp2_whole_stream", nproc=2, base=LLAMA4, overrides=[TP2, WHOLE_STREAM], slow=True),
    case("llama4_cp2", nproc=2, base=LLAMA4, overrides=[CP2], slow=True),
    case(
        "llama4_cp2_ep2_alltoall", nproc=2, base=LLAMA4, overrides=[CP2, EP2, BY_HEADS], slow=True
    ),
    case(
        "llama4_pp2_zbv",
        nproc=2,
        base=LLAMA4,
        overrides=[*pipeline(2, "ZBVZeroBubble"), *FOUR_STAGES],
        slow=True,
    ),
    case(
        "llama4_tp2_pp2_compiled",
        nproc=4,
        base=LLAMA4,
        overrides=[*COMPILED, TP2, *pipeline(2)],
        slow=True,
    ),
    case(
        "llama4_fsdp2_tp2_pp2_ep4_compiled",
        nproc=8,
        base=LLAMA4,
        overrides=[*COMPILED, TP2, *pipeline(2), EP4],
        slow=True,
    ),
    case("llama4_fsdp2_tp2_ep2_etp2", nproc=4, base=LLAMA4, overrides=[TP2, EP2, ETP2], slow=True),
    case("fsdp2_tp2_decoder_latent", nproc=4, base=LATENT_DECODER, overrides=[TP2], slow=True),
    case(
        "cp2_pp2_decoder_latent_ep2",
        nproc=4,
        base=LATENT_DECODER,
        overrides=[CP2, *pipeline(2), EP2],
        slow=True,
    ),
    case("hsdp2x2_ep2", nproc=4, base=EXPERTS, overrides=[EP2, DDP2], slow=True),
    case(
        "fsdp2_deepseek_v3_recomputed",
        nproc=2,
        base=DEEPSEEK,
        overrides=["activation_checkpoint=full"],
        slow=True,
    ),
    case("tp2_deepseek_v3", nproc=2, base=DEEPSEEK, overrides=[TP2], slow=True),
    case(
        "tp2_deepseek_v3_whole_stream",
        nproc=2,
        base=DEEPSEEK,
        overrides=[TP2, WHOLE_STREAM],
        slow=True,
    ),
    case(
        "tp2_deepseek_v3_whole_queries",
        nproc=2,
        base=[*DEEPSEEK, "model.q_lora_rank=null"],
        overrides=[TP2],
        slow=True,
    ),
    case(
        "fsdp2_further_tokens_recomputed",
        nproc=2,
        base=FURTHER,
        overrides=["activation_checkpoint=full"],
        slow=True,
    ),
    case(
        "ddp2_further_tokens_by_operation",
        nproc=2,
        base=FURTHER,
        overrides=[DDP2, OPERATIONS],
        slow=True,
    ),
    case("tp2_further_tokens", nproc=2, base=FURTHER, overrides=[TP2], slow=True),
    case(
        "tp2_further_tokens_whole_stream",
        nproc=2,
        base=FURTHER,
        overrides=[TP2, WHOLE_STREAM],
        slow=True,
    ),
    case("cp2_further_tokens", nproc=2, base=FURTHER, overrides=[CP2], slow=True),
    case(
        "fsdp4_ep2_further_tokens_compiled",
        nproc=4,
        base=FURTHER,
        overrides=[EP2, *COMPILED],
        slow=True,
    ),
    case(
        "fsdp2_tp2_further_tokens_documents", nproc=4, base=FURTHER_FLEX, overrides=[TP2], slow=True
    ),
    case("cp2_deepseek_v3", nproc=2, base=DEEPSEEK, overrides=[CP2], slow=True),
    case("cp2_alltoall_deepseek_v3", nproc=2, base=DEEPSEEK, overrides=[CP2, BY_HEADS], slow=True),
    case(
        "fsdp4_ep2_deepseek_v3_compiled",
        nproc=4,
        base=DEEPSEEK,
        overrides=[EP2, *COMPILED],
        slow=True,
    ),
    case(
        "pp4_deepseek_v3", nproc=4, base=DEEPSEEK, overrides=[*pipeline(4), *FOUR_STAGES], slow=True
    ),
    case(
        "pp2_dualpipev_ep2_deepseek_v3",
        nproc=4,
        base=DEEPSEEK,
        overrides=[*pipeline(2, "DualPipeV"), *FOUR_STAGES, EP2],
        slow=True,
    ),
    case(
        "fsdp2_tp2_pp2_looped_ep4_deepseek_v3",
        nproc=8,
        base=DEEPSEEK,
        overrides=[*pipeline(2, "Interleaved1F1B"), *FOUR_STAGES, TP2, EP4],
        slow=True,
    ),
    case(
        "fsdp2_tp2_pp2_looped_ep2_etp2_deepseek_v3",
        nproc=8,
        base=DEEPSEEK,
        overrides=[*pipeline(2, "Interleaved1F1B"), *FOUR_STAGES, TP2, EP2, ETP2],
        slow=True,
    ),
    case(
        "fsdp4_pp2_ep4_deepseek_v3_flex_recomputed",
        nproc=8,
        base=DEEPSEEK_FLEX,
        overrides=[*pipeline(2), EP4, OPERATIONS],
        slow=True,
    ),
    case("fsdp2_reward", nproc=2, base=[*NARROW, *PAIRS, *REWARD]),
    case("fsdp2_reward_wide", nproc=2, base=[*PAIRS, *REWARD], slow=True),
    case("fsdp2_orpo", nproc=2, base=[*PAIRS, "loss=orpo"]),
    case("tp2_orpo", nproc=2, overrides=[TP2], base=[*PAIRS, "loss=orpo"], slow=True),
    case("fsdp2_dpo", nproc=2, base=[*PAIRS, "loss={name: dpo, nll_weight: 1.0}"], slow=True),
    case("ddp2_kto", nproc=2, overrides=[DDP2], base=[*NARROW, *LABELS]),
    case("fsdp2_tp2_kto", nproc=4, overrides=[TP2], base=LABELS, slow=True),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_as_one_process_does(layout: Case) -> None:
    check_layout(layout)


def check_layout(layout: Case) -> None:
    """Train a layout and one process, and compare what both logged and the gradients."""
    expected, found = alone(layout.base), train(layout.nproc, [*layout.base, *layout.overrides])
    assert len(found.numbers) == len(expected.numbers) == 5
    for step, (ours, theirs) in enumerate(
        zip(found.numbers, expected.numbers, strict=True), start=1
    ):
        assert ours == pytest.approx(theirs, rel=LOSS_TOLERANCE), f"step {step}"
    (reference,) = expected.gradients
    seen = set()
    for gradients in found.gradients:
        for name, gradient in gradients.items():
            # where weights begin as zeros, so do gradients before them
            difference = (gradient - reference[name]).abs().max() / reference[
                name
            ].abs().max().clamp(min=SMALLEST)
            assert difference <= GRADIENT_TOLERANCE, f"{name}: {difference}"
            seen.add(name)
    assert seen == reference.keys()
