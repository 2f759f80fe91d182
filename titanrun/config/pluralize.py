"""Numbers with nouns that agree with them."""


def pluralize(count: float, singular: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 row`, `8 rows`, `1,024 passes`, `0.5 epochs`."""
    text = f"{count:,}" if isinstance(count, int) else f"{count:.4g}"
    return f"{text} {singular if text == '1' else plural or singular + 's'}"


def make_singular(plural: str) -> str:
    """Return the singular of a unit: `processes` as `process`, `steps` as `step`."""
    if plural.endswith(("sses", "ches", "xes")):
        return plural.removesuffix("es")
    if plural.endswith("ies"):
        return f"{plural.removesuffix('ies')}y"
    return plural.removesuffix("s")
