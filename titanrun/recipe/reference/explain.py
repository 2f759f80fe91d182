"""One reference entry as plain text: a path, component, problem code or rule."""

import shlex
from collections.abc import Callable, Iterable, Iterator
from textwrap import indent

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.describe_field import (
    CHANGE_CLASS_MEANINGS,
    FieldDescription,
    describe_fields,
    is_section_type,
)
from titanrun.config.field_docs import get_class_summary
from titanrun.config.path_syntax import PathSyntaxError, parse_path
from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import find_closest
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import (
    find_item_type,
    find_value,
    is_slot,
    unwrap_annotation,
)
from titanrun.recipe import builtins
from titanrun.recipe.comparing.resume_policy import format_resume_policy
from titanrun.recipe.recipe import FILE_ONLY_KEYS
from titanrun.recipe.reference.problem_codes import PROBLEM_CODES, RUN_END_CODES
from titanrun.recipe.reference.program_words import describe_program_word
from titanrun.recipe.reference.reference_search import (
    format_search_result,
    format_tool_word,
    list_words,
    search_reference,
)
from titanrun.recipe.reference.schema_topics import (
    FieldLocation,
    find_field_locations,
    find_shared_section,
    get_topics,
    list_explainable_paths,
)
from titanrun.recipe.reference.tool_words import ToolWord, find_tool_word
from titanrun.recipe.rules.registry import RULES, get_active_rules

INDENT = "  "
RECIPE_EXAMPLE_HEAD = "in a recipe  "


def explain_word(word: str, *, columns: int | None = None) -> str:
    """Return all meanings of `word`, else the entries of the reference that mention it.

    Args:
        word: A path, component, problem code or rule, or a word to search for.
        columns: Width to which the lines of a search result are shortened.

    Raises:
        ProblemsFound: With a suggestion if nothing mentions the word.
    """
    builtins.register_builtins()
    builtins.load_rules()
    explainers: tuple[Callable[[str], list[str]], ...] = (
        explain_path,
        explain_component,
        explain_code,
        explain_rule,
    )
    found = [text for explain in explainers for text in explain(word)]
    if not found and (meant := find_tool_word(word)):
        return format_tool_word(word, meant, columns)
    if not found and (entries := search_reference(word)):
        return format_search_result(word, entries, columns)
    if not found and (hint := describe_program_word(word)):
        return format_tool_word(word, ToolWord((), hint), columns)
    if not found:
        raise problem_error(
            "usage", f"nothing to explain is named '{word}'", hint=format_suggestion(word)
        )
    return "\n".join(found)


def explain_path(word: str) -> list[str]:
    """Explain the field or section at a path, once for each component that has it."""
    if word in FILE_ONLY_KEYS:
        return [format_titled_block(word, [FILE_ONLY_KEYS[word]])]
    try:
        keys = tuple(step for step in parse_path(word) if isinstance(step, str))
    except PathSyntaxError:
        return []
    return [
        format_titled_block(format_path_title(keys, spots), lines)
        for lines, spots in group_equal_fields(find_field_locations(keys))
    ]


def group_equal_fields(
    spots: Iterable[FieldLocation],
) -> list[tuple[list[str], list[FieldLocation]]]:
    """Return the lines that explain fields, each with the fields that have these lines.

    The example of a recipe is that of the default component if it is among them, which needs no
    name, else of the first one.
    """
    groups: dict[tuple[str, ...], tuple[list[str], list[FieldLocation]]] = {}
    for spot in spots:
        lines = [*iter_field_lines(spot), *iter_holder_lines(spot)]
        facts = tuple(line for line in lines if not line.startswith(RECIPE_EXAMPLE_HEAD))
        shown, members = groups.get(facts, (lines, []))
        groups[facts] = (shown if names_component(spot) else lines, [*members, spot])
    return list(groups.values())


def names_component(spot: FieldLocation) -> bool:
    """Return whether the example of a field must name the component that has it."""
    holder = find_value(spot.recipe_example, spot.path[:-1])
    return isinstance(holder, dict) and "name" in holder


def format_path_title(keys: tuple[str, ...], spots: list[FieldLocation]) -> str:
    """Return a path with the components that have it: `model.dim  (of model: llama3, qwen3)`."""
    components = [spot.component for spot in spots if spot.component]
    if not components:
        return format_path(keys)
    slot = components[0].partition(":")[0]
    names = [component.removeprefix(f"{slot}:") for component in components]
    of = components[0] if len(names) == 1 else f"{slot}: {', '.join(names)}"
    return f"{format_path(keys)}  (of {of})"


def explain_component(word: str) -> list[str]:
    """Explain a component by slot:name, a section of one, or a nested slot."""
    for topic in (*get_topics(), *find_shared_section(word)):
        if (
            topic.title == word
            and topic.keys
            and not (len(topic.keys) == 1 and topic.is_slot)
            and (topic.component or topic.is_slot)
        ):
            inside = (
                iter_slot_lines(topic.config) if topic.is_slot else iter_section_lines(topic.config)
            )
            return [
                format_titled_block(
                    word,
                    [
                        get_class_summary(topic.config),
                        f"written at {format_path(topic.keys)}",
                        "",
                        *inside,
                    ],
                )
            ]
    return []


def explain_code(word: str) -> list[str]:
    """Explain a problem code: cause, fix and example."""
    code, _, name = word.rpartition("/")
    word = code if code == name else word
    name = name if code in ("", "conflict", "data") else word
    meaning = PROBLEM_CODES.get(word) or RUN_END_CODES.get(name)  # type: ignore[call-overload]
    if meaning is None:
        return []
    lines = [f"cause  {meaning.cause}", f"fix    {meaning.fix}"]
    for title, example in (("wrong", meaning.wrong), ("right", meaning.right)):
        lines += [
            f"{title if number == 0 else '':<5}  {line}"
            for number, line in enumerate(example.splitlines())
        ]
    return [format_titled_block(f"error[{word}]", lines)]


def explain_rule(word: str) -> list[str]:
    """Explain a rule by its id, or by the label that problems show."""
    code, _, rule_id = word.rpartition("/")
    known = {entry.id for entry in get_active_rules()}
    if rule_id not in known or (code and code not in PROBLEM_CODES):
        return []
    rule = RULES[rule_id]
    level = (
        "; checked at --level environment, and before training"
        if rule.level == "environment"
        else ""
    )
    return [format_titled_block(f"rule {rule_id}", [" ".join(rule.documentation.split()) + level])]


def format_titled_block(title: str, lines: list[str]) -> str:
    """Return a title followed by indented lines."""
    return f"{title}\n{indent(chr(10).join(lines), INDENT)}\n"


def iter_field_lines(spot: FieldLocation) -> Iterator[str]:
    """Yield description, type, default, effect of a change, and examples of a field."""
    field = spot.description
    yield field.text
    if is_section_type(spot.annotation):
        return
    yield ""
    yield f"takes        {format_type_and_range(field)}"
    yield f"default      {'none (required)' if field.is_required else field.default_text}"
    if field.metadata is not None:
        yield f"change       {CHANGE_CLASS_MEANINGS[field.metadata.change]}"
        yield f"resume       {format_resume_policy(spot.path, field.metadata)}"
        if field.metadata.not_built:
            yield f"not built    {field.metadata.not_built}: only the default is accepted"
    yield f"{RECIPE_EXAMPLE_HEAD}{to_flow_yaml(spot.recipe_example)[1:-1]}"
    yield f"as override  {shlex.quote(f'{format_path(spot.path)}={to_flow_yaml(spot.example)}')}"


def format_type_and_range(field: FieldDescription) -> str:
    """Return type and range of a field."""
    return f"{field.type}, {field.range}" if field.range else field.type


def iter_holder_lines(spot: FieldLocation) -> Iterator[str]:
    """Yield the content of a field that holds a section or a component."""
    inner = find_item_type(spot.annotation) or unwrap_annotation(spot.annotation)
    if is_slot(inner):
        yield ""
        yield from iter_slot_lines(inner)
    elif is_section_type(inner):
        yield ""
        yield from iter_section_lines(inner)


def iter_slot_lines(slot: type[Config]) -> Iterator[str]:
    """Yield the components of a slot, and the fields of its default or only one."""
    choices = registry.load_choices(slot)  # type: ignore[arg-type]
    width = max(map(len, choices), default=0)
    for name, choice in choices.items():
        yield f"{name:<{width}}  {get_class_summary(choice)}"
    shown = getattr(slot, "default_name", None) or (
        next(iter(choices)) if len(choices) == 1 else None
    )
    if shown in choices:
        yield ""
        yield f"fields of {shown}:"
        yield from iter_section_lines(choices[shown])
    elif choices:
        yield ""
        yield f"titanrun explain {getattr(slot, 'slot', '')}:NAME shows the fields of one"


def iter_section_lines(config: type[Config]) -> Iterator[str]:
    """Yield two lines per field: type and default, and description."""
    fields = describe_fields(config)
    if not fields:
        yield "no fields"
    for field in fields:
        shown = field.default_text
        # some fields have an option of this name
        shown = '"default"' if shown == "default" else shown
        words = f"default {shown}" if shown and not field.is_required else shown
        yield "; ".join(filter(None, [f"{field.name}: {format_type_and_range(field)}", words]))
        yield f"{INDENT * 2}{field.text}"


def format_suggestion(word: str) -> str:
    """Return a suggestion for an unknown word: the path that it ends, or the most similar word."""
    known = [
        *list_explainable_paths(),
        *(topic.title for topic in get_topics() if topic.component),
        *PROBLEM_CODES,
        *RUN_END_CODES,
        *(entry.id for entry in get_active_rules()),
        *list_words(),
    ]
    head, _, last = word.rpartition(".")
    moved = (
        [path for path in list_explainable_paths() if path.rpartition(".")[2] == last]
        if head
        else []
    )
    meant = moved[0] if moved else find_closest(word, known)
    # the name of a component may be that of a plug-in, which only the command line tells
    unknown = " Those of a plug-in need --plugins FILE.py" if ":" in word else ""
    return (
        f"did you mean '{meant}'?{unknown}"
        if meant
        else "explain a path such as training.steps, a component such as optimizer:adamw, "
        "a problem code or a rule"
    )
