"""vLLM as the generator, in a separate process.

Its distributed world, threads and memory must not be shared with a trainer's ranks.
"""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.distributed.rank_env import build_single_device_environment
from titanrun.rl.generators.config import VllmConfig
from titanrun.rl.generators.generator_protocol import GeneratorResources
from titanrun.rl.json_subprocess import JsonSubprocess, NoResponseError
from titanrun.rl.rollout_types import Completion, GenerateRequest
from titanrun.rl.weight_sync.shared_memory_blocks import open_block_folder, sweep_abandoned_blocks
from titanrun.training.config import MIN_TEMPERATURE

log = logging.getLogger(__name__)

GENERATOR_PATH = ("rl", "generator")


class VllmGenerator:
    """Client of the process `titanrun.integrations.vllm.vllm_server`.

    Args:
        config: how vLLM runs.
        resources: the policy's recipe, and how its tokens are chosen.
    """

    def __init__(self, config: VllmConfig, *, resources: GeneratorResources) -> None:
        self.config, self.resources = config, resources
        self.version = -1
        self.subprocess = JsonSubprocess(
            [sys.executable, "-m", "titanrun.integrations.vllm.vllm_server"],
            timeout_seconds=config.timeout_seconds,
            # a restarted process has no weights
            max_restarts=0,
            log=resources.process_config.log_file,
            recipe_path=GENERATOR_PATH,
            title="vLLM",
            environment=build_single_device_environment(resources.process_config.local_rank),
        )
        sweep_abandoned_blocks()
        self.exit_stack = ExitStack()
        self.folder = self.exit_stack.enter_context(open_block_folder())
        response = self._request(
            "start", {**build_start_message(config, resources), "folder": str(self.folder)}
        )
        log.info(
            "vLLM %s runs in a separate process, log file: %s",
            response["version"],
            resources.process_config.log_file,
        )

    def generate(
        self, requests: Sequence[GenerateRequest], *, temperature: float | None = None
    ) -> list[Completion]:
        """Generate a completion of each prompt, until an end token or `max_new_tokens`.

        Args:
            requests: the prompts.
            temperature: replaces the recipe's temperature.
        """
        given = self.resources.sampling.temperature if temperature is None else temperature
        # vLLM raises a temperature that is hardly above 0, and samples with it
        given = 0.0 if given < MIN_TEMPERATURE else given
        found: list[Completion] = []
        for start in range(0, len(requests), self.config.batch_size):
            batch = requests[start : start + self.config.batch_size]
            prompts = [
                {"tokens": each.tokens, "seed": each.seed, "max_new_tokens": each.max_new_tokens}
                for each in batch
            ]
            response = self._request("answer", {"prompts": prompts, "temperature": given})
            found += [Completion(**each, version=self.version) for each in response["completions"]]
            send_heartbeat()
        return found

    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Send new weights through a file in memory."""
        file = self.folder / "weights.safetensors"
        # tied weights share memory, which safetensors does not allow
        save_file(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights}, file
        )
        self._request("load", {"file": str(file)})
        file.unlink()
        self.version = version

    def close(self) -> None:
        """Stop the process."""
        self.subprocess.close()
        self.exit_stack.close()

    def _request(self, action: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self.subprocess.request({"do": action, **arguments})
        except NoResponseError as error:
            self.close()
            raise problem_error(
                "internal",
                str(error),
                path=GENERATOR_PATH,
                hint=f"see its log file {self.resources.process_config.log_file}",
            ) from None
        if "problem" in answer:
            self.close()
            hint = f"see its log file {self.resources.process_config.log_file}"
            raise problem_error(
                "usage",
                f"vLLM does not support this: {answer['problem']}",
                path=GENERATOR_PATH,
                hint=hint,
            )
        return answer


def build_start_message(config: VllmConfig, resources: GeneratorResources) -> dict[str, Any]:
    """Build the first message to the process."""
    sampling, process_config = resources.sampling, resources.process_config
    return {
        "recipe": process_config.resolved_text,
        "dtype": process_config.dtype_name,
        "longest": process_config.max_tokens,
        "model": config.model,
        "batch_size": config.batch_size,
        "memory_share": config.memory_share,
        "enforce_eager": config.enforce_eager,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        # log-probabilities are of all tokens at the temperature: one of vLLM's two modes
        "scaled_logprobs": sampling.temperature != 1,
        "end_ids": sorted(resources.end_ids),
    }
