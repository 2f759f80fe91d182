"""vLLM in a process of its own: `python -m titanrun.worker.vllm_process` reads questions as lines of JSON, and writes answers so."""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from titanrun.components.checkpoints.adapters import merged
from titanrun.config.problems import ProblemsFound, fail
from titanrun.distributed.device import find_device
from titanrun.distributed.dtypes import dtype_named
from titanrun.distributed.environment import put, set_default
from titanrun.distributed.shards import fill
from titanrun.models.shared.family import family_module
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text
from titanrun.training.run_checkpoints import shortened
from titanrun.worker.rl import own_copy

ARCHITECTURE = "TitanrunPolicy"
# unless the user has said otherwise
DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# what a config.json of any decoder holds, and vLLM plans its memory by
SIZES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
}


class Served:
    """A policy in vLLM.

    Args:
        told: what the generator starts it with.
        folder: for the config.json that vLLM reads.
    """

    def __init__(self, told: Mapping[str, Any], folder: Path) -> None:
        self.told = told
        self.recipe = read_resolved_text(told["recipe"])
        self.is_native = told["model"] == "native"
        put("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        for name, value in DEFAULTS.items():
            set_default(name, value)
        # by name: what it prints while it is imported is for the log
        self.vllm: Any = import_module("vllm")
        config = (
            native_config(self.recipe, told["longest"])
            if self.is_native
            else exported_config(self.recipe, told["dtype"])
        )
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if self.is_native:
            self.vllm.ModelRegistry.register_model(ARCHITECTURE, self._policy_class())
        self.engine: Any = self.vllm.LLM(str(folder), **options(told))

    def do(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question after the first."""
        if question["do"] == "load":
            self.load(question["file"])
            return {}
        return {"completions": self.answer(question["prompts"], question["temperature"])}

    def load(self, file: str) -> None:
        """Takes the weights in a file, under titanrun's names."""
        weights = load_file(file)
        if self.is_native:
            self.engine.apply_model(lambda model: take(model.own, weights))
            return
        lora = lora_of(self.recipe)
        if lora is not None:
            weights = merged(weights, scale=lora.scale)
        named = family_module(type(self.recipe.model), "huggingface").to_huggingface(
            self.recipe.model, weights
        )
        if HEAD not in named:
            named[HEAD] = named[EMBEDDING]
        config = self.engine.llm_engine.model_config
        self.engine.apply_model(lambda model: reload(model, config, named))

    def answer(self, prompts: list[dict[str, Any]], temperature: float) -> list[dict[str, Any]]:
        """What follows each prompt."""
        given = [{"prompt_token_ids": prompt["tokens"]} for prompt in prompts]
        outputs = self.engine.generate(
            given, [self._sampling(prompt, temperature) for prompt in prompts], use_tqdm=False
        )
        return [completion(output.outputs[0]) for output in outputs]

    def _sampling(self, prompt: Mapping[str, Any], temperature: float) -> Any:
        return self.vllm.SamplingParams(
            temperature=temperature,
            top_p=self.told["top_p"],
            top_k=self.told["top_k"] or 0,
            seed=prompt["seed"],
            max_tokens=prompt["max_new_tokens"],
            stop_token_ids=self.told["end_ids"],
            # which a config.json may have others of
            ignore_eos=True,
            # of the chosen token alone
            logprobs=0,
            detokenize=False,
        )

    def _policy_class(self) -> Any:
        device, dtype = find_device(self.recipe.device), dtype_named(self.told["dtype"])
        return import_module("titanrun.worker.vllm_model").policy_class(
            partial(own_copy, self.recipe, device, dtype)
        )


def options(told: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM is opened with."""
    return {
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "generation_config": "vllm",
        "dtype": told["dtype"],
        "max_model_len": told["longest"],
        "max_num_seqs": told["batch_size"],
        "gpu_memory_utilization": told["memory_share"],
        "enforce_eager": told["enforce_eager"],
        # what is remembered of a prompt is worth nothing under new weights
        "enable_prefix_caching": False,
        "logprobs_mode": "processed_logprobs" if told["scaled_logprobs"] else "raw_logprobs",
        "disable_log_stats": True,
    }


def native_config(recipe: Recipe, longest: int) -> dict[str, Any]:
    """The config.json of a model that is registered with vLLM: its sizes."""
    sizes = {name: getattr(recipe.model, own) for name, own in SIZES.items()}
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "max_position_embeddings": longest,
        **sizes,
    }


def exported_config(recipe: Recipe, dtype: str) -> dict[str, Any]:
    """The config.json that transformers has of the model."""
    config: dict[str, Any] = family_module(type(recipe.model), "huggingface").huggingface_config(
        recipe.model, dtype
    )
    # a tied head is given as any other: vLLM unties it when weights come anew
    return {**config, "tie_word_embeddings": False}


def reload(model: Any, config: Any, weights: Mapping[str, Tensor]) -> None:
    """Gives vLLM's model new weights under Hugging Face's names. Raises a problem where it did not take all of them."""
    reloading = import_module("vllm.model_executor.model_loader.reload")
    missing = {name for name, _ in model.named_parameters()}
    reloading.initialize_layerwise_reload(model)
    missing -= model.load_weights(iter(weights.items()))
    reloading.finalize_layerwise_reload(model, config)
    if missing:
        message = f"its model takes no new weights for {shortened(sorted(missing))}"
        raise fail("usage", message, path=("rl", "generator", "model"), help="use native")


@torch.no_grad()
def take(own: dict[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copies weights into the model's of the same names."""
    for name, tensor in own.items():
        fill(tensor, weights[name])


def completion(output: Any) -> dict[str, Any]:
    """A completion, less its version."""
    tokens = list(output.token_ids)
    logprobs = [
        float(found[token].logprob) for token, found in zip(tokens, output.logprobs, strict=True)
    ]
    return {
        "tokens": tokens,
        "logprobs": logprobs,
        "finish": "stop" if output.finish_reason == "stop" else "length",
    }


def serve() -> None:
    """Answers until there are no more questions."""
    # a request to stop is the trainer's, which ends this process
    for request in (signal.SIGINT, signal.SIGTERM):
        signal.signal(request, signal.SIG_IGN)
    # what vLLM prints goes to the log
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with TemporaryDirectory(prefix="titanrun-vllm-") as folder:
        served: Served | None = None
        for line in sys.stdin:
            question = json.loads(line)
            try:
                if served is None:
                    served = Served(question, Path(folder))
                    told: dict[str, Any] = {"version": served.vllm.__version__}
                else:
                    told = served.do(question)
            except Exception as error:  # vLLM raises what its parts raise
                traceback.print_exc()
                told = {"problem": worded(error)}
            answers.write(json.dumps(told) + "\n")
            answers.flush()
        # who asked may have been killed
        if served is not None:
            shutil.rmtree(served.told["folder"], ignore_errors=True)


def worded(error: Exception) -> str:
    """One line of what went wrong."""
    if isinstance(error, ProblemsFound):
        return "; ".join(problem.message for problem in error.problems)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    serve()
