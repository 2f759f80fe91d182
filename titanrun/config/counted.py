"""A number with its noun, which agrees with it."""


def counted(count: float, one: str, many: str | None = None) -> str:
    """`1 row`, `8 rows`, `1,024 passes`; a part of one as `0.5 epochs`."""
    text = f"{count:,}" if isinstance(count, int) else f"{count:.4g}"
    return f"{text} {one if text == '1' else many or one + 's'}"
