"""The whole reference as Markdown: docs/reference.md and `titanrun explain --all` are this text."""

from collections.abc import Iterable, Iterator

from titanrun.config.describe import MEANING, Described, described, example_of, is_section
from titanrun.config.docs import class_summary
from titanrun.config.emit import flow
from titanrun.config.suggest import listing
from titanrun.config.tree import path_text
from titanrun.recipe import menu
from titanrun.recipe.codes import MEANINGS, RUN_MEANINGS
from titanrun.recipe.rules.book import rules_in_use
from titanrun.recipe.topics import Topic, topics
from titanrun.recipe.written_only import WRITTEN_ONLY

HEAD = """\
# Reference

Everything a recipe can hold, written by `titanrun explain --all`. `titanrun explain training.steps` shows one entry.

A component is written as its name, or as a mapping with `name` and its own fields: `optimizer: adamw`,
`optimizer: {name: adamw, lr: 0.001}`. `auto` is decided from the rest of the recipe, and `titanrun show` prints the decision.

What a change of a field means for a run:
"""
RESUME_NOTE = "Where *resume* says yes, a run that was stopped may go on with another value."
COLUMNS = ("field", "takes", "default", "unit", "change", "resume", "example")


def reference() -> str:
    """Sections, slots, components, problem codes and rules."""
    return "\n".join([*head(), *chapters(), *problem_codes(), *rules()]) + "\n"


def head() -> Iterator[str]:
    """How to read the rest."""
    yield HEAD
    for name, meaning in MEANING.items():
        yield f"- *{name}*: {meaning.partition(': ')[2]}"
    yield ""
    yield RESUME_NOTE
    yield ""
    yield "Files also have keys that are gone once they are read:"
    yield ""
    for key, text in WRITTEN_ONLY.items():
        yield f"- `{key}`: {text}"


def chapters() -> Iterator[str]:
    """One heading for each topic: second level for sections and slots, third for components and what they hold."""
    for topic in topics():
        yield ""
        yield f"{'###' if topic.component else '##'} {heading(topic)}"
        yield ""
        yield prose(class_summary(topic.config))
        yield from slot_lines(topic) if topic.is_slot else field_table(topic)


def heading(topic: Topic) -> str:
    """`training`, `optimizer:adamw`, or what the whole is called."""
    return "The recipe" if not topic.keys else f"`{topic.title}`"


def slot_lines(topic: Topic) -> Iterator[str]:
    """Where the slot stands and what may be named there."""
    names = [other.title.partition(":")[2] for other in choices(topic)]
    default = getattr(topic.config, "default_name", None)
    yield ""
    yield f"Written at `{path_text(topic.keys)}`; names: {listing([f'`{name}`' for name in names], last='and', most=99) or 'none yet'}."
    if default:
        yield f"Where nothing is written: `{default}`."


def choices(slot: Topic) -> list[Topic]:
    """The components of a slot."""
    return [
        topic
        for topic in topics()
        if issubclass(topic.config, slot.config) and topic.config is not slot.config
    ]


def field_table(topic: Topic) -> Iterator[str]:
    """A table of the fields, and what each means below it."""
    fields = described(topic.config)
    if not fields:
        yield ""
        yield "No fields of its own."
        return
    yield ""
    yield row(COLUMNS)
    yield row("---" for _ in COLUMNS)
    for field in fields:
        yield row(cells(topic, field))
    yield ""
    for field in fields:
        missing = (
            f" *Not built yet: {field.setting.not_built}.*"
            if field.setting and field.setting.not_built
            else ""
        )
        yield f"- `{field.name}`: {prose(field.text)}{missing}"


def cells(topic: Topic, field: Described) -> Iterator[str]:
    """The columns of one field."""
    declared = topic.config.model_fields[field.name]
    section = is_section(declared.annotation)
    yield f"`{field.name}`"
    yield f"{field.type}, {field.range}" if field.range else field.type
    yield "required" if field.required else "" if section else f"`{field.default}`"
    yield field.unit
    yield field.change
    yield "" if field.setting is None else "yes" if field.setting.resume else "no"
    yield "" if section else f"`{flow({field.name: example_of(declared)})[1:-1]}`"


def prose(text: str) -> str:
    """Text in which Markdown sees no tags."""
    return text.replace("<", "\\<")


def row(texts: Iterable[str]) -> str:
    """One line of a table."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def problem_codes() -> Iterator[str]:
    """Every problem code, and every other end of a run, with cause, fix and example."""
    yield "\n## Problem codes"
    for code, meaning in [*MEANINGS.items(), *RUN_MEANINGS.items()]:
        yield f"\n### `{code}`\n\nCause: {meaning.cause}.\n\nFix: {meaning.fix}."
        if meaning.wrong:
            language = "sh" if meaning.wrong.startswith("$") else "yaml"
            yield f"\n```{language}\n# wrong\n{meaning.wrong}\n# right\n{meaning.right}\n```"


def rules() -> Iterator[str]:
    """Every rule with its documentation."""
    menu.load_rules()
    yield "\n## Rules\n"
    for entry in rules_in_use():
        level = " (level environment)" if entry.level == "environment" else ""
        yield f"- `{entry.id}`{level}: {prose(' '.join(entry.documentation.split()))}"
