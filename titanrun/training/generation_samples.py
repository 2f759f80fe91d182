"""Sample texts and images that the model generates during training, for inspection."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from titanrun.training.decoding import generate
from titanrun.training.engine import Engine
from titanrun.training.token_sampling import SamplingParams

log = logging.getLogger(__name__)
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """Prompt of a sample text, with its token ids."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class TextSampler:
    """Greedy continuations of fixed prompts at regular steps.

    Training does not depend on it: neither weights nor random states change.

    Args:
        engine: engine of the model.
        prompts: the prompts to continue.
        interval_steps: steps between the samples.
        max_new_tokens: limit of each sample.
        eos_ids: end tokens.
        decode: converts ids to text.
        file: output file, one JSON object per line. None on ranks that only take part in the
            computation.
    """

    engine: Engine
    prompts: Sequence[SamplePrompt]
    interval_steps: int
    max_new_tokens: int
    eos_ids: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    file: Path | None

    def after_step(self, step: int) -> None:
        """Write samples if they are due.

        Collective: all ranks must call this after the same steps.
        """
        if step % self.interval_steps:
            return
        with self.engine.eval_mode(), self.engine.use_working_weights():
            found = generate(
                self.engine.model,
                [prompt.ids for prompt in self.prompts],
                max_new_tokens=self.max_new_tokens,
                sampling=GREEDY,
                eos_ids=self.eos_ids,
            )
        if self.file is None:
            return
        with self.file.open("a", encoding="utf-8") as lines:
            for prompt, continuation in zip(self.prompts, found, strict=True):
                text = self.decode(continuation.tokens)
                lines.write(
                    json.dumps(
                        {"step": step, "prompt": prompt.text, "text": text}, ensure_ascii=False
                    )
                    + "\n"
                )
                log.info("sample after step %d: %s | %s", step, prompt.text, text.strip())


@dataclass(frozen=True, slots=True)
class ImageSampler:
    """Images for fixed prompts at regular steps, always from the same noise.

    Training does not depend on it: neither weights nor random states change.

    Args:
        engine: engine of the model.
        prompts: the captions.
        interval_steps: steps between the samples.
        generate_images: generates images [B, 3, size, size] of uint8 with the model.
        write_image: writes one image into a file.
        folder: output folder. None on ranks that only take part in the computation.
    """

    engine: Engine
    prompts: Sequence[str]
    interval_steps: int
    generate_images: Callable[[nn.Module], Tensor]
    write_image: Callable[[Tensor, Path], None]
    folder: Path | None

    def after_step(self, step: int) -> None:
        """Write images if they are due.

        Collective: all ranks must call this after the same steps.
        """
        if step % self.interval_steps:
            return
        with self.engine.eval_mode(), self.engine.use_working_weights():
            images = self.generate_images(self.engine.model)
        if self.folder is None:
            return
        for number, (prompt, image) in enumerate(zip(self.prompts, images, strict=True), start=1):
            path = self.folder / f"step-{step:06}-{number}.png"
            self.write_image(image, path)
            log.info("sample after step %d: %s | %s", step, prompt, path)
