"""Rows of the GPU benchmark, as data: a model, a batch, and what the two sides do with it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ONE_B = {
    "dim": 2048,
    "n_layers": 16,
    "n_heads": 32,
    "n_kv_heads": 8,
    "hidden_dim": 8192,
    "vocab_size": 128256,
}
EIGHT_B = {
    "dim": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "hidden_dim": 14336,
    "vocab_size": 128256,
}
QWEN3_SMALL = {
    "dim": 1024,
    "n_layers": 28,
    "n_heads": 16,
    "n_kv_heads": 8,
    "head_dim": 128,
    "hidden_dim": 3072,
    "vocab_size": 151936,
}
TOY = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "hidden_dim": 192,
    "vocab_size": 512,
}
# of a side at toy size, on a busy CPU
TOY_SECONDS = 10
DEEPSEEK = {"vocab_size": 102400, "num_experts": 64}
LLAMA = "llama3"
TOY_QWEN3 = (
    "{name: qwen3, flavor: debugmodel, dim: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2, "
    "head_dim: 16, vocab_size: 512, feed_forward: {hidden_dim: 192}}"
)

TOY_DEEPSEEK = (
    "{name: deepseek_v3, flavor: debugmodel, dim: 64, n_layers: 2, n_dense_layers: 0, n_heads: 4, "
    "vocab_size: 512, "
    "feed_forward: {hidden_dim: 192}, moe: {num_experts: 4, top_k: 2, hidden_dim: 64}}"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row.

    Args:
        what: description for the table.
        sizes: sizes of the model.
        batch: rows of a step.
        seq_len: tokens of a row.
        settings: lines of the recipe that only titanrun needs.
        bare: arguments of the bare loop. None: there is none to compare with.
        model: the recipe's model section. None: a Llama of `sizes`.
        attention: the model's attention section, for a Llama of `sizes`.
        compiles: whether layers are compiled.
        part: what is measured alone instead of steps: optimizers, head_loss, checkpoint or
            ceilings.
        document_tokens: mean length of documents, which end with id 0. None: rows are whole.
        memory_gib: memory that a GPU must have, by `titanrun plan`.
        seconds: estimate for one side on a Hopper GPU from its start to its end, with a cold cache
            of compiled kernels: 15 to import and build, 30 to 60 to compile, and the steps.
    """

    what: str
    sizes: dict[str, int]
    batch: int
    seq_len: int
    settings: tuple[str, ...] = ()
    bare: dict[str, Any] | None = None
    model: str | None = None
    attention: str | None = None
    compiles: bool = True
    part: str | None = None
    document_tokens: int | None = None
    memory_gib: float = 70
    seconds: float

    @property
    def has_float8(self) -> bool:
        """Whether products are computed in float8."""
        return any("float8_linear" in line for line in self.settings)

    @property
    def has_flops(self) -> bool:
        """Whether a token meets all weights and all tokens of its row: else other formulas hold."""
        return self.document_tokens is None and "num_experts" not in self.sizes

    def count_flops(self, *, causal: bool) -> int:
        """Return the FLOP of a token: 6 a weight but the embedding's, and 12 L N H S of attention.

        Args:
            causal: whether to count only the half of attention that a causal kernel computes.
        """
        s = self.sizes
        head_dim = s.get("head_dim", s["dim"] // s["n_heads"])
        heads = s["n_heads"] * head_dim
        attention = 2 * s["dim"] * heads + 2 * s["dim"] * head_dim * s["n_kv_heads"]
        layer = attention + 3 * s["dim"] * s["hidden_dim"]
        weights = s["n_layers"] * layer + s["dim"] * s["vocab_size"]
        return 6 * weights + (6 if causal else 12) * s["n_layers"] * heads * self.seq_len

    def recipe(self, rows_file: Path, device: str) -> str:
        """Return titanrun's recipe."""
        s = self.sizes
        attention = "" if self.attention is None else f"attention: {self.attention}, "
        model = self.model or (
            f"{{name: {LLAMA}, flavor: null, dim: {s['dim']}, n_layers: {s['n_layers']}, "
            f"n_heads: {s['n_heads']}, n_kv_heads: {s['n_kv_heads']}, "
            f"vocab_size: {s['vocab_size']}, norm_eps: 1.0e-5, {attention}"
            f"feed_forward: {{hidden_dim: {s['hidden_dim']}}}, "
            f"rope: {{theta: 500000.0, scaling: null}}}}"
        )
        pins = "true" if device == "gpu" else "false"
        backend = "inductor" if device == "gpu" else "aot_eager"
        lines = [
            "version: 1",
            "name: bench",
            f"device: {device}",
            f"model: {model}",
            "loss: chunked_cross_entropy",
            "lr_scheduler: {name: constant, warmup_steps: 0}",
            f"compile: {{enable: {'true' if self.compiles else 'false'}, backend: {backend}}}",
            "checkpoint: {enable: false}",
            "metrics: {log_freq: 10}",
            *self.settings,
        ]
        if not any(line.startswith("optimizer:") for line in self.settings):
            lines.append(OPTIMIZER.format(""))
        storage = "bfloat16" if (self.bare or {}).get("bf16_storage") else "float32"
        lines += [
            "training:",
            f"  dataset: {{name: tokens, path: {rows_file}, shuffle: false}}",
            f"  local_batch_size: {self.batch}",
            f"  seq_len: {self.seq_len}",
            "  steps: 1000",
            f"  dtype: {storage}",
            "  mixed_precision_param: bfloat16",
            "  max_norm: 1.0",
            f"  dataloader: {{pin_memory: {pins}}}",
        ]
        return "\n".join(lines) + "\n"


OPTIMIZER = (
    "optimizer: {{name: adamw, lr: 3.0e-4, beta1: 0.9, beta2: 0.95, eps: 1.0e-8, "
    "weight_decay: 0.1{}}}"
)
BF16_STATES = OPTIMIZER.format(", state_dtype: bfloat16")
SELECTIVE = "activation_checkpoint: {name: selective, selective_ac_option: op}"


def float8(recipe_name: str) -> str:
    """Return the converter line of a float8 row."""
    return (
        f"converters: [{{name: float8_linear, recipe_name: {recipe_name}, filter_fqns: [output]}}]"
    )


EIGHT_B_SETTINGS = (BF16_STATES, SELECTIVE)
EIGHT_B_BARE = {"bf16_states": True, "selective_ac": True}
ROWS = {
    "1b_s4096": Row(what="1B, bf16", sizes=ONE_B, batch=4, seq_len=4096, bare={}, seconds=65),
    "1b_s4096_float8_tensorwise": Row(
        what="1B, float8 tensorwise",
        sizes=ONE_B,
        batch=4,
        seq_len=4096,
        settings=(float8("tensorwise"),),
        bare={"float8": "tensorwise"},
        seconds=80,
    ),
    "8b_s4096": Row(
        what="8B, bf16, states in bf16",
        sizes=EIGHT_B,
        batch=2,
        seq_len=4096,
        settings=EIGHT_B_SETTINGS,
        bare=EIGHT_B_BARE,
        memory_gib=109,
        seconds=110,
    ),
    "8b_s4096_float8": Row(
        what="8B, float8 tensorwise, states in bf16",
        sizes=EIGHT_B,
        batch=2,
        seq_len=4096,
        settings=(*EIGHT_B_SETTINGS, float8("tensorwise")),
        bare={**EIGHT_B_BARE, "float8": "tensorwise"},
        memory_gib=109,
        seconds=120,
    ),
    "1b_ceilings": Row(
        what="ceilings of 1B", sizes=ONE_B, batch=4, seq_len=4096, part="ceilings", seconds=30
    ),
    "8b_ceilings": Row(
        what="ceilings of 8B", sizes=EIGHT_B, batch=2, seq_len=4096, part="ceilings", seconds=30
    ),
    "8b_s8192_float8": Row(
        what="8B, float8 tensorwise, 8192 tokens",
        sizes=EIGHT_B,
        batch=1,
        seq_len=8192,
        settings=(*EIGHT_B_SETTINGS, float8("tensorwise")),
        bare={**EIGHT_B_BARE, "float8": "tensorwise"},
        memory_gib=109,
        seconds=120,
    ),
    "8b_s8192_ceilings": Row(
        what="ceilings of 8B, 8192 tokens",
        sizes=EIGHT_B,
        batch=1,
        seq_len=8192,
        part="ceilings",
        seconds=30,
    ),
    "optimizers": Row(
        what="updates of 1B", sizes=ONE_B, batch=1, seq_len=64, part="optimizers", seconds=45
    ),
    "head_loss": Row(
        what="head of 1B", sizes=ONE_B, batch=4, seq_len=4096, part="head_loss", seconds=25
    ),
    "1b_s4096_eager": Row(
        what="1B, bf16, not compiled",
        sizes=ONE_B,
        batch=4,
        seq_len=4096,
        bare={"compiles": False},
        compiles=False,
        seconds=45,
    ),
    "8b_s4096_bf16_storage": Row(
        what="8B, everything in bf16",
        sizes=EIGHT_B,
        batch=2,
        seq_len=4096,
        settings=(SELECTIVE,),
        bare={"bf16_storage": True, "selective_ac": True},
        seconds=110,
    ),
    "1b_float8_rowwise": Row(
        what="1B, float8 rowwise",
        sizes=ONE_B,
        batch=4,
        seq_len=4096,
        settings=(float8("rowwise"),),
        bare={"float8": "rowwise"},
        seconds=80,
    ),
    **{
        f"1b_documents_{backend}": Row(
            what=f"1B, bf16, documents by {backend}",
            sizes=ONE_B,
            batch=4,
            seq_len=4096,
            settings=("tokenizer: {name: characters}",),
            attention=f"{{backend: {backend}, mask: block_causal, documents: eos}}",
            document_tokens=512,
            seconds=90,
        )
        for backend in ("flex", "varlen")
    },
    "qwen3_0.6b": Row(
        what="Qwen3 0.6B, bf16",
        sizes=QWEN3_SMALL,
        batch=4,
        seq_len=4096,
        model="{name: qwen3, flavor: 0.6B}",
        seconds=70,
    ),
    "moe_2layers_deepseek16b": Row(
        what="DeepSeek 16B, 2 of 27 layers",
        sizes=DEEPSEEK,
        batch=4,
        seq_len=4096,
        model="{name: deepseek_v3, flavor: 16B, n_layers: 2, n_dense_layers: 0, "
        "attention: {backend: auto, mask: causal, documents: null}}",
        seconds=90,
    ),
    "checkpoint_1b": Row(
        what="saves of 1B", sizes=ONE_B, batch=1, seq_len=64, part="checkpoint", seconds=60
    ),
    "debugmodel": Row(what="launch bound", sizes=TOY, batch=32, seq_len=512, bare={}, seconds=40),
}
"""Rows in the order of their value: what is first runs first."""

CALLS = {
    "runs": ("1b_s4096", "1b_ceilings", "1b_documents_varlen", "qwen3_0.6b"),
    "speed": (
        "1b_s4096_float8_tensorwise",
        "8b_s4096",
        "8b_s4096_float8",
        "8b_ceilings",
        "8b_s8192_float8",
        "8b_s8192_ceilings",
    ),
    "rest": (
        "optimizers",
        "head_loss",
        "1b_s4096_eager",
        "8b_s4096_bf16_storage",
        "1b_float8_rowwise",
        "1b_documents_flex",
        "moe_2layers_deepseek16b",
        "checkpoint_1b",
        "debugmodel",
    ),
}
"""Rows of three short loans of a machine: does it run, how fast, and where is the rest."""


def toy_row(row: Row) -> Row:
    """Return the row at toy size, for a CPU: float8 and inductor need what a CPU may lack."""
    bare = None
    if row.bare is not None:
        bare = {name: value for name, value in row.bare.items() if name != "float8"}
        bare["compiles"] = False
    settings = tuple(line for line in row.settings if not line.startswith("converters"))
    model = None if row.model is None else TOY_DEEPSEEK if "num_experts" in row.sizes else TOY_QWEN3
    return replace(
        row,
        model=model,
        sizes=TOY | {name: 4 for name in row.sizes if name == "num_experts"},
        batch=2,
        seq_len=64,
        document_tokens=None if row.document_tokens is None else 16,
        memory_gib=1,
        bare=bare,
        settings=settings,
        compiles=False,
        seconds=TOY_SECONDS,
    )
