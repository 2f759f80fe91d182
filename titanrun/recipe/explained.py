"""One entry of the reference as plain text: a path, a component, a problem code or a rule."""

import shlex
from collections.abc import Callable, Iterator
from textwrap import indent

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.describe import MEANING, Described, described, is_section
from titanrun.config.docs import class_summary
from titanrun.config.emit import flow
from titanrun.config.names import PathMistake, parse_path
from titanrun.config.problems import fail
from titanrun.config.shape import bare, is_slot, item_type
from titanrun.config.suggest import closest, listing
from titanrun.config.tree import path_text
from titanrun.recipe import menu
from titanrun.recipe.codes import MEANINGS, RUN_MEANINGS
from titanrun.recipe.rules.book import RULES, rules_in_use
from titanrun.recipe.synonyms import SYNONYMS
from titanrun.recipe.topics import Spot, all_paths, shared_section, spots, topics
from titanrun.recipe.written_only import WRITTEN_ONLY

INDENT = "  "


def explanation(word: str) -> str:
    """What `word` means; a word with several meanings gets all of them. Raises ProblemsFound with what was probably meant."""
    menu.open_menu()
    menu.load_rules()
    explainers: tuple[Callable[[str], list[str]], ...] = (
        explained_path,
        explained_component,
        explained_code,
        explained_rule,
    )
    found = [text for explain in explainers for text in explain(word)]
    if not found:
        raise fail("usage", f"nothing to explain is called '{word}'", help=suggestion(word))
    return "\n".join(found)


def explained_path(word: str) -> list[str]:
    """The field or section at a path of the recipe, once for each component that has it."""
    if word in WRITTEN_ONLY:
        return [block(word, [WRITTEN_ONLY[word]])]
    try:
        keys = tuple(step for step in parse_path(word) if isinstance(step, str))
    except PathMistake:
        return []
    titles = [
        (f"{path_text(keys)}  (of {spot.component})" if spot.component else path_text(keys), spot)
        for spot in spots(keys)
    ]
    return [block(title, [*field_lines(spot), *holder_lines(spot)]) for title, spot in titles]


def explained_component(word: str) -> list[str]:
    """A component by slot:name, a section of one, or a slot that is not at the top of a recipe."""
    for topic in (*topics(), *shared_section(word)):
        if (
            topic.title == word
            and topic.keys
            and not (len(topic.keys) == 1 and topic.is_slot)
            and (topic.component or topic.is_slot)
        ):
            inside = slot_lines(topic.config) if topic.is_slot else section_lines(topic.config)
            return [
                block(
                    word,
                    [
                        class_summary(topic.config),
                        f"written at {path_text(topic.keys)}",
                        "",
                        *inside,
                    ],
                )
            ]
    return []


def explained_code(word: str) -> list[str]:
    """A problem code: cause, fix and example."""
    _, _, name = word.rpartition("conflict/")
    meaning = MEANINGS.get(word) or RUN_MEANINGS.get(name)  # type: ignore[call-overload]
    if meaning is None:
        return []
    lines = [f"cause  {meaning.cause}", f"fix    {meaning.fix}"]
    for title, example in (("wrong", meaning.wrong), ("right", meaning.right)):
        lines += [
            f"{title if number == 0 else '':<5}  {line}"
            for number, line in enumerate(example.splitlines())
        ]
    return [block(f"error[{word}]", lines)]


def explained_rule(word: str) -> list[str]:
    """A rule by its id, or by the label that problems show."""
    code, _, id = word.rpartition("/")
    if id not in {entry.id for entry in rules_in_use()} or (code and code not in MEANINGS):
        return []
    level = (
        "; checked at --level environment, and before training"
        if RULES[id].level == "environment"
        else ""
    )
    return [block(f"rule {id}", [" ".join(RULES[id].documentation.split()) + level])]


def block(title: str, lines: list[str]) -> str:
    """A title and what belongs to it, indented."""
    return f"{title}\n{indent(chr(10).join(lines), INDENT)}\n"


def field_lines(spot: Spot) -> Iterator[str]:
    """What a field takes, what a change of it means, and an example."""
    field = spot.described
    yield field.text
    if is_section(spot.annotation):
        return
    yield ""
    yield f"takes        {takes(field)}"
    yield f"default      {'none: it must be written' if field.required else field.default_words}"
    if field.setting is not None:
        yield f"change       {MEANING[field.setting.change]}"
        yield f"resume       {'a run that goes on may change it' if field.setting.resume else 'a run that goes on keeps it'}"
        if field.setting.not_built:
            yield f"not built    {field.setting.not_built}: only the default is accepted"
    yield f"in a recipe  {flow(spot.written)[1:-1]}"
    yield f"as override  {shlex.quote(f'{path_text(spot.path)}={flow(spot.value)}')}"


def takes(field: Described) -> str:
    """Type and range."""
    return f"{field.type}, {field.range}" if field.range else field.type


def holder_lines(spot: Spot) -> Iterator[str]:
    """What is below a field that holds a section or a component."""
    inner = item_type(spot.annotation) or bare(spot.annotation)
    if is_slot(inner):
        yield ""
        yield from slot_lines(inner)
    elif is_section(inner):
        yield ""
        yield from section_lines(inner)


def slot_lines(slot: type[Config]) -> Iterator[str]:
    """The components of a slot; the fields of its default, or of the only one."""
    choices = registry.choices(slot)  # type: ignore[arg-type]
    width = max(map(len, choices), default=0)
    for name, choice in choices.items():
        yield f"{name:<{width}}  {class_summary(choice)}"
    shown = getattr(slot, "default_name", None) or (
        next(iter(choices)) if len(choices) == 1 else None
    )
    if shown in choices:
        yield ""
        yield f"fields of {shown}:"
        yield from section_lines(choices[shown])
    elif choices:
        yield ""
        yield f"titanrun explain {getattr(slot, 'slot', '')}:NAME shows the fields of one"


def section_lines(config: type[Config]) -> Iterator[str]:
    """Two lines a field: what it takes, and what it is for."""
    fields = described(config)
    if not fields:
        yield "no fields of its own"
    for field in fields:
        default = (
            f"; {'default ' * (not field.required)}{field.default_words}"
            if field.default_words
            else ""
        )
        yield f"{field.name}: {takes(field)}{default}"
        yield f"{INDENT * 2}{field.text}"


def suggestion(word: str) -> str:
    """What was probably meant: a path that ends in this word, a component of this name, or a word like it."""
    ending = [
        path for path in all_paths() if path.rpartition(".")[2] in (word, *SYNONYMS.get(word, ()))
    ]
    named = [
        topic.title
        for topic in topics()
        if topic.component and topic.title.partition(":")[2] == word
    ]
    if ending or named:
        return f"did you mean {listing([f'{found!r}' for found in [*named, *ending]], most=6)}?"
    known = [
        *all_paths(),
        *(topic.title for topic in topics() if topic.component),
        *MEANINGS,
        *RUN_MEANINGS,
        *(entry.id for entry in rules_in_use()),
    ]
    head, _, last = word.rpartition(".")
    moved = [path for path in all_paths() if path.rpartition(".")[2] == last] if head else []
    meant = moved[0] if moved else closest(word, known)
    return (
        f"did you mean '{meant}'?"
        if meant
        else "explain a path such as training.steps, a component such as optimizer:adamw, a problem code or a rule"
    )
