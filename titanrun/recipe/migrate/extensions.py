"""Keys that torchtitan's own extensions and experiments add, keys that were called otherwise once, and what no key says."""

from typing import Any

from titanrun.recipe.migrate import conversions as to
from titanrun.recipe.migrate import pictures
from titanrun.recipe.migrate.keys import Key, moved, refused, torchft, unread

FLUX = "flux"
PASSES = "passes of torchtitan's compiler experiments; titanrun shards with FSDP2 and compiles with compile.enable"
PLACEMENT = "a switch of the autoparallel experiment; in titanrun the parallelism section decides the placement"
PICTURES = "a vision-language model is none of titanrun's families"
PICTURES_LATER = "a run draws no pictures; titanrun generate draws them from its checkpoints"
STAND_INS = "name the encoders tiny instead"
LOCAL = "the folder of a model is meant, not a name on the Hugging Face Hub"
AUTOENCODER = "torchtitan/experiments/flux/assets/autoencoder/ae.safetensors"
SAMPLER = "torchtitan's sampling script reads it; a training run does not"

EXTENSIONS: tuple[Key, ...] = (
    torchft("fault_tolerance.sync_steps", 5, extension="llama3_ft"),
    torchft("fault_tolerance.should_quantize", False, extension="llama3_ft"),
    torchft("fault_tolerance.fragment_sync_delay", 0, extension="llama3_ft"),
    torchft("fault_tolerance.fragment_update_alpha", 0.0, extension="llama3_ft"),
    torchft("fault_tolerance.module_fqns_per_model_fragment", [], extension="llama3_ft"),
    torchft("fault_tolerance.num_fragments", 1, extension="llama3_ft"),
    moved(
        "training.classifier_free_guidance_prob",
        0.0,
        "model.classifier_free_guidance_prob",
        extension=FLUX,
    ),
    moved(
        "training.img_size",
        256,
        "training.dataset.image_size",
        convert=pictures.image_size,
        extension=FLUX,
    ),
    refused("training.test_mode", False, STAND_INS, extension=FLUX),
    moved(
        "encoder.t5_encoder",
        "google/t5-v1_1-small",
        "model.encoder.t5_encoder",
        how=LOCAL,
        extension=FLUX,
    ),
    moved(
        "encoder.clip_encoder",
        "openai/clip-vit-large-patch14",
        "model.encoder.clip_encoder",
        how=LOCAL,
        extension=FLUX,
    ),
    moved(
        "encoder.autoencoder_path", AUTOENCODER, "model.encoder.autoencoder_path", extension=FLUX
    ),
    moved("encoder.max_t5_encoding_len", 256, "model.encoder.max_t5_encoding_len", extension=FLUX),
    unread("validation.enable_classifier_free_guidance", False, PICTURES_LATER, extension=FLUX),
    unread("validation.classifier_free_guidance_scale", 5.0, PICTURES_LATER, extension=FLUX),
    unread("validation.denoising_steps", 50, PICTURES_LATER, extension=FLUX),
    unread("validation.eval_freq", 100, PICTURES_LATER, extension=FLUX),
    unread("validation.save_img_count", 1, PICTURES_LATER, extension=FLUX),
    unread("validation.save_img_folder", "img", PICTURES_LATER, extension=FLUX),
    moved("validation.all_timesteps", False, "model.all_timesteps", extension=FLUX),
    unread("inference.save_img_folder", "inference_results", SAMPLER, extension=FLUX),
    unread(
        "inference.prompts_path",
        "./torchtitan/experiments/flux/inference/prompts.txt",
        SAMPLER,
        extension=FLUX,
    ),
    unread("inference.local_batch_size", 2, SAMPLER, extension=FLUX),
    unread("inference.img_size", 256, SAMPLER, extension=FLUX),
    refused(
        "compile.graph_passes", None, PASSES, convert=to.empty_is_refused, extension="simple_fsdp"
    ),
    refused(
        "compile.joint_passes",
        [],
        PASSES,
        convert=to.empty_is_refused,
        extension="compiler_toolkit",
    ),
    refused(
        "compile.passes", [], PASSES, convert=to.empty_is_refused, extension="compiler_toolkit"
    ),
    refused("data.max_images_per_batch", 10, PICTURES, extension="vlm"),
    refused("data.max_patches_per_image", 256, PICTURES, extension="vlm"),
    refused("data.patch_size", 16, PICTURES, extension="vlm"),
    refused("data.spatial_merge_size", 1, PICTURES, extension="vlm"),
    refused("data.packing_buffer_size", 0, PICTURES, extension="vlm"),
    moved(
        "hf_transformers.model",
        "",
        "model.path",
        convert=to.empty_is_null,
        extension="transformers_modeling_backend",
    ),
    refused(
        "experimental.comms_bucket_reorder_strategy", "aten", PLACEMENT, extension="autoparallel"
    ),
    refused("experimental.autop_force_bf16", False, PLACEMENT, extension="autoparallel"),
)

# spellings of torchtitan before 0.2.2; a trailing dot stands for a whole section
OLD_SPELLINGS: dict[str, str] = {
    "float8.": "quantize.linear.float8.",
    "mx.": "quantize.linear.mx.",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "training.debug_moe_force_load_balance": "debug.moe_force_load_balance",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
}
OLDER: tuple[Key, ...] = (
    refused(
        "parallelism.enable_compiled_autograd",
        False,
        "torchtitan 0.2.2 has no compiled autograd any more, and titanrun none",
    ),
)

# what torchtitan does without a key for it, and titanrun does otherwise by default
IMPLIED: tuple[tuple[str, Any, str], ...] = (
    ("training.dataset.shuffle", False, "torchtitan reads documents in the given order"),
    ("validation.dataset.shuffle", False, "torchtitan reads documents in the given order"),
)

# torchtitan's experiments: the module name under torchtitan.experiments, and what becomes of it
EXPERIMENTS: dict[str, str] = {
    "simple_fsdp": "mapped to the family itself: titanrun shards with FSDP2; `compile.graph_passes` is refused",
    "compiler_toolkit": "mapped to the family itself; `compile.joint_passes` and `compile.passes` are refused",
    "autoparallel": "mapped to the family itself: the parallelism section says the placement that a solver finds there",
    "llama3_ft (torchft)": "mapped to llama3; `fault_tolerance` is refused",
    "transformers_modeling_backend": "mapped to `model: {name: transformers, path: ...}`, available when that component is built",
    "flux": "mapped to the family flux; what draws pictures while a run trains, and its sampling script, is left out",
    "vlm": "refused: a vision-language model is none of titanrun's families",
}
