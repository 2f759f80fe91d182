"""Write docs/api.md from signatures and docstrings; with --check fail if it is stale."""

import inspect
import re
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import titanrun

TARGET = Path(__file__).parents[1] / "docs" / "api.md"
TOPICS = {
    "Recipes": (
        "load_recipe",
        "resolve_recipe",
        "load_resolved",
        "validate_recipe",
        "Recipe",
        "Resolved",
        "Problem",
        "ProblemsFound",
        "render_problems",
    ),
    "Runs": ("load_run", "read_metrics", "RunSummary"),
    "Training engine": (
        "open_engine",
        "EngineHandle",
        "Engine",
        "StepOutput",
        "OptimOutput",
        "TokenBatch",
        "TokenSample",
        "open_policy_trainer",
        "PolicyTrainer",
    ),
    "Plug-ins": ("Config", "ComponentConfig", "field"),
}
HEAD = """\
# Python API

Every name below is imported from `titanrun`. All other modules are internal and may move in any
release, except the base classes in [Extending titanrun](extending.md) and the engines in
`titanrun.integrations`. `import titanrun` loads neither torch nor pydantic; a name loads its module
on first use.

```python
import titanrun

recipe = titanrun.load_recipe("recipe.yaml", ["training.steps=50"])
handle = titanrun.open_engine(recipe)
output = handle.engine.forward_backward(titanrun.TokenBatch.from_padded(tokens, lengths))
handle.engine.optim_step()
handle.save("checkpoints", step=1)
handle.close()
```

This page is written by `python tools/write_api.py` from signatures and docstrings. See
[the training engine in your own loop](training_engine.md) for the rules of batches and losses.
"""
MODULE_PREFIX = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z_])")
SECTION_TITLES = {"Args:": "Arguments", "Raises:": "Raises", "Returns:": "Returns"}
WIDTH = 96


def build_page() -> str:
    """Build the whole page."""
    parts = [HEAD]
    for topic, names in TOPICS.items():
        parts.append(f"\n## {topic}\n")
        parts += [format_entry(name) for name in names]
    return "".join(parts)


def format_entry(name: str) -> str:
    """Format one exported name: signature, docstring, and the members of a class."""
    value = getattr(titanrun, name)
    lines = ["", f"### `{name}`", ""]
    if not inspect.isclass(value):
        lines += ["```python", format_signature(name, value), "```", ""]
        return "\n".join([*lines, *format_docstring(value)]) + "\n"
    if is_dataclass(value):
        lines += ["```python", format_fields(name, value), "```", ""]
    lines += format_docstring(value)
    for member, target in iter_members(value):
        text = inspect.getdoc(target) or ""
        if isinstance(target, property):
            lines += ["", f"#### `{name}.{member}`", "", *format_paragraphs(text)]
            continue
        signature = format_signature(f"{name}.{member}", target)
        lines += ["", f"#### `{name}.{member}`", "", "```python", signature, "```", ""]
        lines += format_paragraphs(text)
    return "\n".join(lines) + "\n"


def iter_members(owner: type) -> list[tuple[str, Any]]:
    """Return the public documented methods and properties that a class defines itself."""
    found: list[tuple[str, Any]] = []
    for name, raw in vars(owner).items():
        target = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
        is_documented = isinstance(target, property) or inspect.isfunction(target)
        if not name.startswith(("_", "model_")) and is_documented and inspect.getdoc(target):
            found.append((name, target))
    return found


def format_fields(name: str, owner: Any) -> str:
    """Format the public fields of a dataclass as its class definition."""
    lines = [f"class {name}:"]
    for key, annotation in owner.__annotations__.items():
        if not key.startswith("_"):
            lines.append(f"    {key}: {format_annotation(annotation)}")
    return "\n".join(lines)


def format_signature(name: str, function: Any) -> str:
    """Format a signature, one argument per line if it is wide."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    arguments = format_parameters(parameters)
    result = signature.return_annotation
    end = "" if result is inspect.Signature.empty else f" -> {format_annotation(result)}"
    line = f"{name}({', '.join(arguments)}){end}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){end}"])


def format_parameters(parameters: list[inspect.Parameter]) -> list[str]:
    """Format parameters, with the star before keyword-only ones."""
    found, has_star = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            found.append("*")
        has_star |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        text = stars.get(parameter.kind, "") + parameter.name
        has_type = parameter.annotation is not parameter.empty
        if has_type:
            text += f": {format_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f"{' = ' if has_type else '='}{format_default(parameter.default)}"
        found.append(text)
    return found


def format_default(value: object) -> str:
    """Format a default value."""
    return "..." if callable(value) else repr(value)


def format_annotation(annotation: Any) -> str:
    """Format an annotation without module names."""
    if annotation is None or annotation is type(None):
        return "None"
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return MODULE_PREFIX.sub("", text).strip("'\"")


def format_docstring(value: Any) -> list[str]:
    """Format the docstring of a function or class."""
    return format_paragraphs(inspect.getdoc(value) or "")


def format_paragraphs(text: str) -> list[str]:
    """Format a docstring of Google style as Markdown: its sections become lists."""
    lines: list[str] = []
    is_list = False
    for line in text.splitlines():
        if line.strip() in SECTION_TITLES:
            is_list = True
            lines += [f"{SECTION_TITLES[line.strip()]}:", ""]
        elif is_list and re.match(r" {4}[*\w]+: ", line):
            argument, _, rest = line.strip().partition(": ")
            lines.append(f"- `{argument}`: {rest}")
        elif is_list and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            is_list = is_list and not line
            lines.append(line.rstrip())
    return lines


def main() -> int:
    """Write the page, or return 1 under --check if it is stale."""
    text = build_page()
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET} is stale: run python tools/write_api.py", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
