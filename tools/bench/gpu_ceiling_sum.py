"""Milliseconds of a step of which nothing but products, attention and updates takes time."""

from collections.abc import Iterator

from gpu_rows import Row

# bytes of a parameter that an update reads and writes: fp32 weight both ways and gradient, states
UPDATE_BYTES = 28
UPDATE_BYTES_BF16_STATES = 20
Found = dict[str, dict[str, float]]


def list_products(row: Row) -> Iterator[tuple[int, int, int]]:
    """Yield input and output size of each product of a step, and how often it comes.

    Products with the same input are one, as a loop may join them.
    """
    s = row.sizes
    dim, hidden, layers = s["dim"], s["hidden_dim"], s["n_layers"]
    keys = dim // s["n_heads"] * s["n_kv_heads"]
    yield dim, dim + 2 * keys, layers
    yield dim, dim, layers
    yield dim, 2 * hidden, layers
    yield hidden, dim, layers


def compute_ceiling(row: Row, found: Found) -> float | None:
    """Return the milliseconds of a step of a row, of which nothing but these parts takes time.

    None: what it needs was not measured.
    """
    precision = f"float8 {row.bare['float8']}" if "float8" in (row.bare or {}) else "bf16"
    attention = [part["ms"] for name, part in found.items() if name.startswith("attention")]
    products = found.get(f"products {precision}")
    if products is None or not attention:
        return None
    s = row.sizes
    head_flops = 6 * row.batch * row.seq_len * s["dim"] * s["vocab_size"]
    head = head_flops / found["products bf16"]["tflops"] / 1e9
    per_layer = sum(width * out for width, out, _ in list_products(row))
    parameters = s["n_layers"] * per_layer + 2 * s["dim"] * s["vocab_size"]
    states_in_bf16 = (row.bare or {}).get("bf16_states") or (row.bare or {}).get("bf16_storage")
    moved = parameters * (UPDATE_BYTES_BF16_STATES if states_in_bf16 else UPDATE_BYTES)
    update = moved / found["copy"]["gb_per_second"] / 1e6
    return products["ms"] + min(attention) + head + update
