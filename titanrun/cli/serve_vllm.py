"""`titanrun serve --engine vllm`: export a checkpoint once, and become the program vllm."""

import hashlib
import json
import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from titanrun.cli.checkpoint_convert import DEFAULT_SHARD_BYTES, run_checkpoint_worker
from titanrun.cli.generate import get_weight_source
from titanrun.components.checkpoints.spec.manifest import MANIFEST_FILE
from titanrun.config.problems import problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.launch.launcher_log import log_line
from titanrun.recipe.recipe import find_lora_converter
from titanrun.recipe.resolving.hub_models import get_user_cache
from titanrun.recipe.resolving.resolve import load_resolved_text

PROGRAM = "vllm"
# where vLLM looks for the key: unlike its option, other users of the machine do not see it
KEY_VARIABLE = "VLLM_API_KEY"
DIGEST_CHARACTERS = 16


def serve_with_vllm(options: Namespace, name: str, key: str | None) -> NoReturn:
    """Export the weights unless they are exported already, and replace this process by vLLM.

    Raises:
        ProblemsFound: vLLM is not installed, or the checkpoint cannot be exported.
    """
    program = shutil.which(PROGRAM, path=get_environment().get("PATH"))
    if program is None:
        raise problem_error(
            "usage",
            "--engine vllm needs the program vllm, which is not on PATH",
            hint="pip install vllm, in an environment of its own whose bin folder is on PATH",
        )
    folder = find_served_folder(options.folder)
    command = build_vllm_command(options, folder, name)
    log_line(f"starting {' '.join(command)}")
    sys.stdout.flush()
    sys.stderr.flush()
    keys = {} if key is None else {KEY_VARIABLE: key}
    os.execve(program, command, {**get_environment(), **keys})


def check_vllm_options(options: Namespace) -> None:
    """Raise a usage problem for options that vLLM cannot do."""
    wrong = {
        "--base": options.base,
        "--queue": options.queue is not None,
        "--port 0": options.port == 0,
    }
    for option, is_used in wrong.items():
        if is_used:
            raise problem_error("usage", f"{option} is for --engine titanrun", hint="omit it")


def build_vllm_command(options: Namespace, folder: Path, name: str) -> list[str]:
    """Return the command that serves a folder of transformers."""
    words = [PROGRAM, "serve", str(folder), "--served-model-name", name]
    words += ["--host", options.host, "--port", str(options.port)]
    if options.max_seq_len is not None:
        words += ["--max-model-len", str(options.max_seq_len)]
    if options.max_concurrent is not None:
        words += ["--max-num-seqs", str(options.max_concurrent)]
    if options.cors:
        words += ["--allowed-origins", json.dumps(options.cors)]
    return words


def find_served_folder(named: str) -> Path:
    """Return a folder of transformers with the weights, exported now if there is none yet.

    The exports of checkpoints are kept by the digest of their manifest.

    Raises:
        ProblemsFound: The checkpoint cannot be exported.
    """
    source = get_weight_source(named)
    if "huggingface" in source:
        return Path(source["huggingface"]).absolute()
    checkpoint = Path(source["checkpoint"])
    digest = hashlib.sha256((checkpoint / MANIFEST_FILE).read_bytes()).hexdigest()
    cache = get_user_cache(get_environment()) / "served"
    folder = cache / digest[:DIGEST_CHARACTERS]
    if folder.is_dir():
        log_line(f"exported earlier: {folder}")
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # a killed export leaves no folder that looks whole
    with TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / "model"
        export_for_serving(source, made)
        made.rename(folder)
    return folder


def export_for_serving(source: dict[str, str], out: Path) -> None:
    """Export a checkpoint in bfloat16, with adapters merged.

    Raises:
        ProblemsFound: It cannot be exported.
    """
    request = {
        "do": "export",
        "checkpoint": source["checkpoint"],
        "out": str(out),
        "format": "hf",
        "merge": find_lora_converter(load_resolved_text(source["resolved"])) is not None,
        "dtype": "bfloat16",
        "shard_bytes": DEFAULT_SHARD_BYTES,
        "quantize": None,
        "group_size": None,
        "ollama": False,
    }
    if run_checkpoint_worker(request):
        raise problem_error(
            "checkpoint",
            "the checkpoint could not be exported, as written above",
            hint="titanrun checkpoint export --format hf shows the same",
        )
