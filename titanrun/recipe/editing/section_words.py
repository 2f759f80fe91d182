"""Words of other programs for a setting of the section in which they stand.

Elsewhere such a word may be a setting of another section: `interval` in validation is no interval
of checkpoints, and `epsilon` in an algorithm of RL none of the optimizer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from titanrun.config.problems import DataPath
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.type_introspection import find_value

Describer = Callable[[Any], str]
MAX_NEW_TOKENS = "rl.sampling.max_new_tokens"
PROMPTS, SAMPLES = "rl.rollout.prompts_per_step", "rl.rollout.samples_per_prompt"


def format_section_word(path: DataPath, data: Any) -> str:
    """Return what to write for a word of other programs in a section, else an empty text."""
    word = str(path[-1]).lower().replace("-", "_")
    describe = SECTION_WORDS.get(path[:-1], {}).get(word)
    return "" if describe is None else describe(find_value(data, path))


def format_written(value: Any) -> str:
    """Return a value as a recipe has it, VALUE in place of a section or a list."""
    return "VALUE" if isinstance(value, dict | list) else to_flow_yaml(value)


def rename(*settings: str) -> Describer:
    """Return the describer of settings that take the value as it is."""

    def describe(value: Any) -> str:
        written = format_written(value)
        return f"write {' and '.join(f'{name}: {written}' for name in settings)}"

    return describe


def answer_always(text: str) -> Describer:
    """Return a describer that says the same of every value."""
    return lambda value: text


def describe_penalty(value: Any) -> str:
    """Return the section of a penalty for divergence from the reference."""
    return f"write rl.algorithm.kl: {{coef: {format_written(value)}}}"


def describe_algorithm(value: Any) -> str:
    """Return the name of an algorithm in the place of a variant of a loss."""
    name = format_written(value)
    return f"remove it: rl.algorithm.name: {name} chooses the loss; see titanrun ls algorithms"


def describe_preference_beta(value: Any) -> str:
    """Return the losses whose setting stands at the top level."""
    written = format_written(value)
    return f"write loss: {{name: dpo, beta: {written}}}, or another loss with beta"


def describe_quantization(value: Any) -> str:
    """Return the converter of frozen weights with fewer bits, an empty text for other formats."""
    word = str(value).lower().replace("-", "").replace("_", "")
    is_int8 = word in ("8", "8bit", "int8")
    if not is_int8 and word not in ("4", "4bit", "bnb", "bitsandbytes", "int4", "nf4"):
        return ""
    base = ", base: int8" if is_int8 else ""
    return f"write converters: [{{name: qlora, rank: 16, alpha: 32{base}}}], in place of lora"


def describe_teacher(value: Any) -> str:
    """Return the loss of distillation from a teacher."""
    return f"write loss: {{name: distillation, teacher: {format_written(value)}}}"


def describe_schedule(value: Any) -> str:
    """Return the section of a schedule of learning rates."""
    name = value.get("name") if isinstance(value, dict) else value
    return f"write lr_scheduler: {{name: {format_written(name)}}}, beside optimizer"


def map_words(words: Iterable[str], describe: Describer) -> Mapping[str, Describer]:
    """Return a table in which several words have one describer."""
    return dict.fromkeys(words, describe)


SAMPLES_WORDS = (
    *("num_generations", "group_size", "n", "n_samples", "n_samples_per_prompt", "num_samples"),
    *("num_return_sequences", "rollout_n", "samples"),
)
PROMPTS_WORDS = ("batch_size", "train_batch_size", "rollout_batch_size", "prompts")
COMPLETION_WORDS = (
    *("max_completion_length", "max_gen_len", "max_length", "max_response_length"),
    *("max_tokens", "response_length"),
)
ROLLOUT_WORDS: Mapping[str, Describer] = {
    **map_words(SAMPLES_WORDS, rename(SAMPLES)),
    **map_words(PROMPTS_WORDS, rename(PROMPTS)),
    **map_words((*COMPLETION_WORDS, "max_new_tokens"), rename(MAX_NEW_TOKENS)),
    **map_words(("use_vllm", "vllm"), answer_always("write rl.generator: vllm")),
}
SYSTEM_WORDS = ("default_system", "system_message", "system_prompt", "system_text")
SYSTEM_TEXT = answer_always(
    "write it into the records: as a message of the system, or in a column that "
    "training.dataset.system_column names"
)
SECTION_WORDS: Mapping[DataPath, Mapping[str, Describer]] = {
    (): {
        "beta": describe_preference_beta,
        **map_words(SYSTEM_WORDS, SYSTEM_TEXT),
        **map_words(("quantization", "quantize"), describe_quantization),
    },
    ("model",): {
        "checkpoint": rename("checkpoint.initial_load_path"),
        **map_words(("quantization", "quantize"), describe_quantization),
    },
    ("training", "dataset"): map_words((*SYSTEM_WORDS, "system"), SYSTEM_TEXT),
    ("rl",): ROLLOUT_WORDS,
    ("rl", "rollout"): ROLLOUT_WORDS,
    ("rl", "sampling"): ROLLOUT_WORDS,
    ("rl", "generator"): ROLLOUT_WORDS,
    ("rl", "algorithm"): {
        **ROLLOUT_WORDS,
        **map_words(
            ("beta", "init_kl_coef", "kl_beta", "kl_coef", "kl_loss_coef"), describe_penalty
        ),
        **map_words(
            (
                *("clip_eps", "clip_range", "clip_ratio", "cliprange", "eps_clip", "epsilon"),
                "clip_epsilon",
            ),
            rename("rl.algorithm.clip_low", "rl.algorithm.clip_high"),
        ),
        **map_words(
            ("clip_ratio_low", "cliprange_low", "epsilon_low"), rename("rl.algorithm.clip_low")
        ),
        **map_words(
            ("clip_ratio_high", "cliprange_high", "epsilon_high"), rename("rl.algorithm.clip_high")
        ),
        **map_words(("loss_type", "loss", "type", "variant"), describe_algorithm),
    },
    ("validation",): {"interval": rename("validation.freq")},
    ("training",): {
        "max_seq_len": rename("training.seq_len"),
        **map_words(SYSTEM_WORDS, SYSTEM_TEXT),
        **map_words(("teacher", "teacher_model"), describe_teacher),
    },
    ("lr_scheduler",): {"steps": rename("lr_scheduler.total_steps")},
    ("optimizer",): map_words(
        ("lr_scheduler", "lr_scheduler_type", "schedule", "scheduler"), describe_schedule
    ),
    ("checkpoint",): {
        **map_words(
            ("initial_checkpoint", "load_path"),
            rename("checkpoint.initial_load_path"),
        ),
        "steps": rename("checkpoint.interval"),
        **map_words(("dtype", "save_dtype"), rename("checkpoint.export_dtype")),
        **map_words(
            ("export", "export_hf", "save_hf"),
            answer_always("write checkpoint.last_save_in_hf: true, for the last checkpoint"),
        ),
    },
    ("launch",): {
        "backend": answer_always(
            "remove it: processes communicate over nccl on GPUs, over gloo on CPUs"
        )
    },
    ("compile",): {
        "mode": lambda value: (
            "write max_autotune: true"
            if "autotune" in str(value)
            else "remove it: max_autotune is the only mode"
        )
    },
    ("parallelism",): {
        **map_words(
            ("ddp", "use_ddp"),
            answer_always(
                "write parallelism.data_parallel_replicate_degree, the number of replicas"
            ),
        ),
        "offload": answer_always("write training.enable_cpu_offload: true"),
    },
}
