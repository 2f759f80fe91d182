"""Texts that the model writes, or pictures that it draws, while it is trained, to be looked at."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from titanrun.training.engine import Engine
from titanrun.training.generator import generate
from titanrun.training.sampling import Sampling

log = logging.getLogger(__name__)
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a text begins with."""

    text: str
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Samples:
    """Every so many steps, the likeliest tokens after each prompt. No weight, and no random number of the run, depends on it.

    Args:
        engine: whose model writes.
        prompts: what it goes on from.
        every_steps: steps between the texts.
        max_new_tokens: of each text.
        end_ids: tokens that end a text.
        decode: ids to text.
        file: where the texts go, one JSON object a line; None on ranks that only compute along.
    """

    engine: Engine
    prompts: Sequence[Prompt]
    every_steps: int
    max_new_tokens: int
    end_ids: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    file: Path | None

    def after_step(self, step: int) -> None:
        """Writes texts where they are due. Every rank must call it after the same steps."""
        if step % self.every_steps:
            return
        with self.engine.eval_mode(), self.engine.autocast():
            found = generate(
                self.engine.model,
                [prompt.ids for prompt in self.prompts],
                max_new_tokens=self.max_new_tokens,
                sampling=GREEDY,
                end_ids=self.end_ids,
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
class PictureSamples:
    """Every so many steps, a picture for each prompt, from the same noise. No weight, and no random number of the run, depends on it.

    Args:
        engine: whose model draws.
        prompts: the captions.
        every_steps: steps between the pictures.
        draw: pictures [B, 3, size, size] of uint8 by the model.
        write: puts one into a file.
        folder: where the pictures go; None on ranks that only compute along.
    """

    engine: Engine
    prompts: Sequence[str]
    every_steps: int
    draw: Callable[[nn.Module], Tensor]
    write: Callable[[Tensor, Path], None]
    folder: Path | None

    def after_step(self, step: int) -> None:
        """Draws where it is due. Every rank must call it after the same steps."""
        if step % self.every_steps:
            return
        with self.engine.eval_mode(), self.engine.autocast():
            drawn = self.draw(self.engine.model)
        if self.folder is None:
            return
        for number, (prompt, picture) in enumerate(zip(self.prompts, drawn, strict=True), start=1):
            path = self.folder / f"step-{step:06}-{number}.png"
            self.write(picture, path)
            log.info("sample after step %d: %s | %s", step, prompt, path)
