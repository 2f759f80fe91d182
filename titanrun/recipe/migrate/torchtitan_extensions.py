"""Keys of torchtitan's extensions and experiments, former spellings, implied behavior."""

from typing import Any

from titanrun.recipe.migrate import torchtitan_flux
from titanrun.recipe.migrate import torchtitan_values as to
from titanrun.recipe.migrate.key_mapping import (
    SourceKey,
    ignore_key,
    keep_key,
    move_key,
    reject_key,
    reject_unless_default,
    when_any,
    when_empty,
    when_enabled,
)

FLUX = "flux"
REPLICAS = "llama3_ft"
PASSES = (
    "passes of torchtitan's compiler experiments; titanrun shards with FSDP2 and compiles with "
    "compile.enable"
)
PLACEMENT = (
    "a switch of the autoparallel experiment; in titanrun the parallelism section determines the "
    "placement"
)
VISION_MODELS = "titanrun has no vision-language models"
IMAGE_SAMPLES = "a run generates no images; titanrun generate creates them from its checkpoints"
STAND_INS = "set the encoders to tiny instead"
LOCAL = "the folder of a model, not a name on the Hugging Face Hub"
AUTOENCODER = "torchtitan/experiments/flux/assets/autoencoder/ae.safetensors"
SAMPLER = "torchtitan's sampling script reads it; a training run does not"

GROUPS = when_enabled("fault_tolerance.enable")
SYNCED = (GROUPS, when_any("fault_tolerance.semi_sync_method", "local_sgd", "diloco"))
DILOCO = (GROUPS, when_any("fault_tolerance.semi_sync_method", "diloco"))
SEMI_SYNC = (
    keep_key("fault_tolerance.sync_steps", 5, needs=SYNCED, extension=REPLICAS),
    reject_key(
        "fault_tolerance.should_quantize",
        False,
        "sums in 8 bits need NCCL, and groups communicate over gloo only",
        needs=DILOCO,
        convert=reject_unless_default,
        extension=REPLICAS,
    ),
    keep_key("fault_tolerance.fragment_sync_delay", 0, needs=DILOCO, extension=REPLICAS),
    keep_key("fault_tolerance.fragment_update_alpha", 0.0, needs=DILOCO, extension=REPLICAS),
    keep_key(
        "fault_tolerance.module_fqns_per_model_fragment",
        [],
        needs=DILOCO,
        convert=to.convert_empty_to_null,
        extension=REPLICAS,
    ),
    keep_key(
        "fault_tolerance.num_fragments",
        1,
        needs=(*DILOCO, when_empty("fault_tolerance.module_fqns_per_model_fragment")),
        extension=REPLICAS,
    ),
)
EXTENSIONS: tuple[SourceKey, ...] = (
    *SEMI_SYNC,
    move_key(
        "training.classifier_free_guidance_prob",
        0.0,
        "model.classifier_free_guidance_prob",
        extension=FLUX,
    ),
    move_key(
        "training.img_size",
        256,
        "training.dataset.image_size",
        convert=torchtitan_flux.convert_image_size,
        extension=FLUX,
    ),
    reject_key("training.test_mode", False, STAND_INS, extension=FLUX),
    move_key(
        "encoder.t5_encoder",
        "google/t5-v1_1-small",
        "model.encoder.t5_encoder",
        how=LOCAL,
        extension=FLUX,
    ),
    move_key(
        "encoder.clip_encoder",
        "openai/clip-vit-large-patch14",
        "model.encoder.clip_encoder",
        how=LOCAL,
        extension=FLUX,
    ),
    move_key(
        "encoder.autoencoder_path", AUTOENCODER, "model.encoder.autoencoder_path", extension=FLUX
    ),
    move_key(
        "encoder.max_t5_encoding_len", 256, "model.encoder.max_t5_encoding_len", extension=FLUX
    ),
    ignore_key("validation.enable_classifier_free_guidance", False, IMAGE_SAMPLES, extension=FLUX),
    ignore_key("validation.classifier_free_guidance_scale", 5.0, IMAGE_SAMPLES, extension=FLUX),
    ignore_key("validation.denoising_steps", 50, IMAGE_SAMPLES, extension=FLUX),
    ignore_key("validation.eval_freq", 100, IMAGE_SAMPLES, extension=FLUX),
    ignore_key("validation.save_img_count", 1, IMAGE_SAMPLES, extension=FLUX),
    ignore_key("validation.save_img_folder", "img", IMAGE_SAMPLES, extension=FLUX),
    move_key("validation.all_timesteps", False, "model.all_timesteps", extension=FLUX),
    ignore_key("inference.save_img_folder", "inference_results", SAMPLER, extension=FLUX),
    ignore_key(
        "inference.prompts_path",
        "./torchtitan/experiments/flux/inference/prompts.txt",
        SAMPLER,
        extension=FLUX,
    ),
    ignore_key("inference.local_batch_size", 2, SAMPLER, extension=FLUX),
    ignore_key("inference.img_size", 256, SAMPLER, extension=FLUX),
    reject_key(
        "compile.graph_passes",
        None,
        PASSES,
        convert=to.reject_unless_empty,
        extension="simple_fsdp",
    ),
    reject_key(
        "compile.joint_passes",
        [],
        PASSES,
        convert=to.reject_unless_empty,
        extension="compiler_toolkit",
    ),
    reject_key(
        "compile.passes", [], PASSES, convert=to.reject_unless_empty, extension="compiler_toolkit"
    ),
    reject_key("data.max_images_per_batch", 10, VISION_MODELS, extension="vlm"),
    reject_key("data.max_patches_per_image", 256, VISION_MODELS, extension="vlm"),
    reject_key("data.patch_size", 16, VISION_MODELS, extension="vlm"),
    reject_key("data.spatial_merge_size", 1, VISION_MODELS, extension="vlm"),
    reject_key("data.packing_buffer_size", 0, VISION_MODELS, extension="vlm"),
    move_key(
        "hf_transformers.model",
        "",
        "model.path",
        how="a folder with config.json and weights: `titanrun download REPO -o FOLDER` fetches it",
        convert=to.convert_hf_model,
        extension="transformers_modeling_backend",
    ),
    reject_key(
        "experimental.comms_bucket_reorder_strategy", "aten", PLACEMENT, extension="autoparallel"
    ),
    reject_key("experimental.autop_force_bf16", False, PLACEMENT, extension="autoparallel"),
)

# spellings of torchtitan before 0.2.2; a trailing dot stands for a whole section
OLD_SPELLINGS: dict[str, str] = {
    "float8.": "quantize.linear.float8.",
    "mx.": "quantize.linear.mx.",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "training.debug_moe_force_load_balance": "debug.moe_force_load_balance",
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "lr_scheduler.lr_min": "lr_scheduler.min_lr_factor",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.last_save_model_weights_only": "checkpoint.last_save_model_only",
    "checkpoint.initial_load_model_weights_only": "checkpoint.initial_load_model_only",
    "validation.enabled": "validation.enable",
    "memory_estimation.enabled": "memory_estimation.enable",
    "job.print_args": "job.print_config",
}
STAGES = "torchtitan 0.2.2 names the modules of each stage in module_fqns_per_model_part instead"
OLDER: tuple[SourceKey, ...] = (
    ignore_key(
        "job.use_for_integration_test", False, "it was a mark for torchtitan's own test suite"
    ),
    reject_key(
        "parallelism.pipeline_parallel_split_points", [], STAGES, convert=reject_unless_default
    ),
    reject_key(
        "parallelism.enable_compiled_autograd",
        False,
        "torchtitan 0.2.2 no longer has compiled autograd, and titanrun does not have it",
        convert=reject_unless_default,
    ),
)

# behavior of torchtitan without a key that differs from titanrun's default
IMPLIED: tuple[tuple[str, Any, str], ...] = (
    ("training.dataset.shuffle", False, "torchtitan reads documents in the given order"),
    ("validation.dataset.shuffle", False, "torchtitan reads documents in the given order"),
)

# torchtitan's experiments: the module name under torchtitan.experiments, and its migration
EXPERIMENTS: dict[str, str] = {
    "simple_fsdp": (
        "mapped to the model family: titanrun shards with FSDP2; `compile.graph_passes` is refused"
    ),
    "compiler_toolkit": (
        "mapped to the model family; `compile.joint_passes` and `compile.passes` are refused"
    ),
    "autoparallel": (
        "mapped to the model family: the parallelism section sets the placement that a solver "
        "finds there"
    ),
    "llama3_ft (torchft)": "mapped to llama3 with `fault_tolerance`",
    "transformers_modeling_backend": (
        "mapped to `model: {name: transformers, path: ...}`, available once that component is built"
    ),
    "flux": (
        "mapped to the family flux; image generation during training and its sampling script are "
        "left out"
    ),
    "vlm": "refused: titanrun has no vision-language models",
}
