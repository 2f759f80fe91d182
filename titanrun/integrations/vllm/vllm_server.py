"""vLLM server process: `python -m titanrun.integrations.vllm.vllm_server`.

It reads requests as lines of JSON on stdin, and writes responses likewise.
"""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from titanrun.components.checkpoints.adapter_weights import merge_adapters
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.device import select_device
from titanrun.distributed.dtensor import copy_full_into_
from titanrun.distributed.dtypes import get_dtype
from titanrun.distributed.rank_env import set_variable, set_variable_default
from titanrun.distributed.spec.run_signals import ignore_run_signals
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.training.snapshot_tensors import format_name_list
from titanrun.worker.build.build_rollouts import clone_policy_model

if TYPE_CHECKING:
    from titanrun.integrations.vllm import vllm_model
    from titanrun.models.shared.decoder import Decoder
else:
    # imported after vLLM, which this process sets up first
    vllm_model = LazyModule("titanrun.integrations.vllm.vllm_model")

POLICY_ARCHITECTURE = "TitanrunPolicy"
# unless set by the user
ENVIRONMENT_DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# sizes in the config.json of any decoder, from which vLLM plans its memory
CONFIG_SIZES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}


class VllmServer:
    """Policy in vLLM.

    Args:
        settings: the first message of the generator.
        folder: folder for the config.json that vLLM reads.
    """

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self.settings = settings
        self.recipe = load_resolved_text(settings["recipe"])
        self.is_native = settings["model"] == "native"
        set_variable("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        for name, value in ENVIRONMENT_DEFAULTS.items():
            set_variable_default(name, value)
        # imported late: the output of the import belongs to the log
        self.vllm: Any = import_module("vllm")
        config = (
            build_native_config(self.recipe, settings["longest"])
            if self.is_native
            else build_huggingface_config(self.recipe, settings["dtype"])
        )
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if self.is_native:
            self.vllm.ModelRegistry.register_model(POLICY_ARCHITECTURE, self._build_policy_class())
        self.engine: Any = self.vllm.LLM(str(folder), **build_vllm_arguments(settings))

    def handle_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response to a request after the first."""
        if request["do"] == "load":
            self.load(request["file"])
            return {}
        return {"completions": self.generate(request["prompts"], request["temperature"])}

    def load(self, file: str) -> None:
        """Load weights from a file with titanrun's names."""
        weights = load_file(file)
        if self.is_native:
            self.engine.apply_model(lambda model: copy_weights(model.own, weights))
            return
        lora = find_lora_converter(self.recipe)
        if lora is not None:
            weights = merge_adapters(weights, scale=lora.scale)
        named = load_family_module(type(self.recipe.model), "huggingface").to_huggingface(
            self.recipe.model, weights
        )
        if HEAD not in named:
            named[HEAD] = named[EMBEDDING]
        config = self.engine.llm_engine.model_config
        self.engine.apply_model(lambda model: reload_weights(model, config, named))

    def generate(self, prompts: list[dict[str, Any]], temperature: float) -> list[dict[str, Any]]:
        """Generate a completion of each prompt."""
        token_prompts = [{"prompt_token_ids": prompt["tokens"]} for prompt in prompts]
        outputs = self.engine.generate(
            token_prompts,
            [self._build_sampling_params(prompt, temperature) for prompt in prompts],
            use_tqdm=False,
        )
        return [build_completion_dict(output.outputs[0]) for output in outputs]

    def _build_sampling_params(self, prompt: Mapping[str, Any], temperature: float) -> Any:
        return self.vllm.SamplingParams(
            temperature=temperature,
            top_p=self.settings["top_p"],
            top_k=self.settings["top_k"] or 0,
            seed=prompt["seed"],
            max_tokens=prompt["max_new_tokens"],
            stop_token_ids=self.settings["end_ids"],
            # a config.json may define other end tokens
            ignore_eos=True,
            # only of the sampled token
            logprobs=0,
            detokenize=False,
        )

    def _build_policy_class(self) -> Any:
        device, dtype = select_device(self.recipe.device), get_dtype(self.settings["dtype"])
        build = partial(clone_policy_model, self.recipe, device, dtype)
        return vllm_model.build_policy_class(cast("Callable[[], Decoder]", build))


def build_vllm_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of vLLM's engine."""
    return {
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "generation_config": "vllm",
        "dtype": settings["dtype"],
        "max_model_len": settings["longest"],
        "max_num_seqs": settings["batch_size"],
        "gpu_memory_utilization": settings["memory_share"],
        "enforce_eager": settings["enforce_eager"],
        # cached prefixes are invalid after new weights
        "enable_prefix_caching": False,
        "logprobs_mode": "processed_logprobs" if settings["scaled_logprobs"] else "raw_logprobs",
        "disable_log_stats": True,
    }


def build_native_config(recipe: Recipe, max_tokens: int) -> dict[str, Any]:
    """Build the config.json of a model registered with vLLM: its sizes."""
    sizes = {name: getattr(recipe.model, own) for name, own in CONFIG_SIZES.items()}
    return {
        "architectures": [POLICY_ARCHITECTURE],
        "model_type": "llama",
        "max_position_embeddings": max_tokens,
        **sizes,
    }


def build_huggingface_config(recipe: Recipe, dtype: str) -> dict[str, Any]:
    """Build the config.json of the model in transformers."""
    config: dict[str, Any] = load_family_module(
        type(recipe.model), "huggingface"
    ).to_huggingface_config(recipe.model, dtype)
    # a tied head is passed separately: vLLM unties it when weights are reloaded
    return {**config, "tie_word_embeddings": False}


def reload_weights(model: Any, config: Any, weights: Mapping[str, Tensor]) -> None:
    """Load new weights under Hugging Face names into vLLM's model.

    Raises:
        ProblemsFound: the model did not load all of them.
    """
    reloading = import_module("vllm.model_executor.model_loader.reload")
    missing = {name for name, _ in model.named_parameters()}
    reloading.initialize_layerwise_reload(model)
    missing -= model.load_weights(iter(weights.items()))
    reloading.finalize_layerwise_reload(model, config)
    if missing:
        message = f"vLLM's model did not load weights for {format_name_list(sorted(missing))}"
        raise problem_error(
            "usage", message, path=("rl", "generator", "model"), hint="use model: native"
        )


@torch.no_grad()
def copy_weights(parameters: dict[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the parameters of the same names."""
    for name, tensor in parameters.items():
        copy_full_into_(tensor, weights[name])


def build_completion_dict(output: Any) -> dict[str, Any]:
    """Return a completion as plain data, without its version."""
    tokens = list(output.token_ids)
    logprobs = [
        float(found[token].logprob) for token, found in zip(tokens, output.logprobs, strict=True)
    ]
    return {
        "tokens": tokens,
        "logprobs": logprobs,
        "finish": "stop" if output.finish_reason == "stop" else "length",
    }


def serve_vllm() -> None:
    """Respond to requests until stdin ends."""
    ignore_run_signals()
    # vLLM's output goes to the log
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with TemporaryDirectory(prefix="titanrun-vllm-") as folder:
        server: VllmServer | None = None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if server is None:
                    server = VllmServer(request, Path(folder))
                    response: dict[str, Any] = {"version": server.vllm.__version__}
                else:
                    response = server.handle_request(request)
            except Exception as error:  # vLLM may raise anything
                traceback.print_exc()
                response = {"problem": format_vllm_error(error)}
            responses.write(json.dumps(response) + "\n")
            responses.flush()
        # the trainer may have been killed
        if server is not None:
            shutil.rmtree(server.settings["folder"], ignore_errors=True)


def format_vllm_error(error: Exception) -> str:
    """Format an error as one line."""
    if isinstance(error, ProblemsFound):
        return "; ".join(problem.message for problem in error.problems)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    serve_vllm()
