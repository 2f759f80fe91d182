"""vLLM as the generator, in a process of its own: it has a distributed world, threads and memory that a trainer's ranks must not share."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from titanrun.config.problems import fail
from titanrun.distributed.environment import alone_with
from titanrun.distributed.liveness import sign_of_life
from titanrun.rl.generators.config import VllmConfig
from titanrun.rl.generators.generator import Supplies
from titanrun.rl.json_lines import JsonLines, NoAnswer
from titanrun.rl.samples import Completion, Request

log = logging.getLogger(__name__)

PLACE = ("rl", "generator")
# memory that looks like a folder, where there is one: weights pass through it
MEMORY = Path("/dev/shm")


class VllmGenerator:
    """Sends prompts to the process `titanrun.worker.vllm_process`, and takes answers.

    Args:
        config: how vLLM runs.
        supplies: the policy's recipe, and how its tokens are chosen.
    """

    def __init__(self, config: VllmConfig, *, supplies: Supplies) -> None:
        self.config, self.supplies = config, supplies
        self.version = -1
        self.program = JsonLines(
            [sys.executable, "-m", "titanrun.worker.vllm_process"],
            timeout_seconds=config.timeout_seconds,
            # one that is started again has no weights
            max_restarts=0,
            log=supplies.beside.log,
            place=PLACE,
            title="vLLM",
            environment=alone_with(supplies.beside.device),
        )
        self.folder = TemporaryDirectory(
            prefix="titanrun-weights-", dir=MEMORY if MEMORY.is_dir() else None
        )
        told = self._ask("start", {**settings_of(config, supplies), "folder": self.folder.name})
        log.info(
            "vLLM %s answers, in a process of its own; it writes to %s",
            told["version"],
            supplies.beside.log,
        )

    def generate(
        self, requests: Sequence[Request], *, temperature: float | None = None
    ) -> list[Completion]:
        """What follows each prompt, until an end token or `max_new_tokens`; `temperature` in the place of the recipe's."""
        given = self.supplies.sampling.temperature if temperature is None else temperature
        found: list[Completion] = []
        for start in range(0, len(requests), self.config.batch_size):
            asked = requests[start : start + self.config.batch_size]
            prompts = [
                {"tokens": each.tokens, "seed": each.seed, "max_new_tokens": each.max_new_tokens}
                for each in asked
            ]
            told = self._ask("answer", {"prompts": prompts, "temperature": given})
            found += [Completion(**each, version=self.version) for each in told["completions"]]
            sign_of_life()
        return found

    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Sends new weights through a file in memory."""
        file = Path(self.folder.name) / "weights.safetensors"
        # tied matrices share memory, which a file of tensors cannot
        save_file(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights}, file
        )
        self._ask("load", {"file": str(file)})
        file.unlink()
        self.version = version

    def close(self) -> None:
        """Ends the process."""
        self.program.close()
        self.folder.cleanup()

    def _ask(self, what: str, told: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self.program.ask({"do": what, **told})
        except NoAnswer as error:
            self.close()
            raise fail(
                "internal",
                str(error),
                path=PLACE,
                help=f"what it wrote is in {self.supplies.beside.log}",
            ) from None
        if "problem" in answer:
            self.close()
            help = f"what it wrote is in {self.supplies.beside.log}"
            raise fail("usage", f"vLLM cannot do this: {answer['problem']}", path=PLACE, help=help)
        return answer


def settings_of(config: VllmConfig, supplies: Supplies) -> dict[str, Any]:
    """What the process starts with."""
    sampling, beside = supplies.sampling, supplies.beside
    return {
        "recipe": beside.recipe,
        "dtype": beside.dtype,
        "longest": beside.longest,
        "model": config.model,
        "batch_size": config.batch_size,
        "memory_share": config.memory_share,
        "enforce_eager": config.enforce_eager,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        # log-probabilities are those of all tokens at the temperature, which one of vLLM's two kinds is
        "scaled_logprobs": sampling.temperature != 1,
        "end_ids": sorted(supplies.end_ids),
    }
