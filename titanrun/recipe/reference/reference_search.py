"""Search of the reference for words that are no entry of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import shorten

from titanrun.config.field_docs import get_class_summary, get_field_docs
from titanrun.config.pluralize import pluralize
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import format_path
from titanrun.recipe.editing.synonym_table import SYNONYMS
from titanrun.recipe.reference.problem_codes import PROBLEM_CODES, RUN_END_CODES
from titanrun.recipe.reference.schema_topics import get_topics
from titanrun.recipe.reference.tool_words import ToolWord
from titanrun.recipe.rules.registry import get_active_rules

MAX_HITS = 10
MIN_SUMMARY_WIDTH = 20


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    """An entry of the reference: its title, the last part of it, and its description."""

    title: str
    name: str
    text: str


def search_reference(word: str) -> list[ReferenceEntry]:
    """Return the entries for a word: those named so, then similar names, then descriptions.

    Return nothing for a misspelled path or slot:name.
    """
    if not word.strip() or any(mark in word for mark in ".:/"):
        return []
    wanted = join_words(word)
    problems = {entry.title for entry in iter_problem_entries()}
    ranked = [
        (rank, entry.title in problems, entry.title.count("."), order, entry)
        for order, entry in enumerate(list_entries())
        if (rank := rank_entry(entry, word.lower(), wanted)) is not None
    ]
    return [entry for *_, entry in sorted(ranked, key=lambda found: found[:4])]


def list_entries() -> list[ReferenceEntry]:
    """Return every field, section, component, problem code and rule, each title once."""
    found: dict[str, ReferenceEntry] = {}
    for entry in (*iter_schema_entries(), *iter_problem_entries()):
        found.setdefault(entry.title, entry)
    return list(found.values())


def iter_schema_entries() -> Iterator[ReferenceEntry]:
    """Yield the fields, sections and components of the schema."""
    for topic in get_topics():
        if topic.keys and "." not in topic.title:
            name = topic.title.partition(":")[2] or topic.title
            yield ReferenceEntry(topic.title, name, get_class_summary(topic.config))
        if topic.is_slot:
            continue
        texts = get_field_docs(topic.config)
        for name in topic.config.model_fields:
            path = format_path((*topic.keys, name))
            yield ReferenceEntry(path, name, texts.get(name, ""))


def iter_problem_entries() -> Iterator[ReferenceEntry]:
    """Yield the problem codes and rules."""
    for code, meaning in (*PROBLEM_CODES.items(), *RUN_END_CODES.items()):
        yield ReferenceEntry(code, code, meaning.cause)
    for rule in get_active_rules():
        yield ReferenceEntry(rule.id, rule.id, " ".join(rule.documentation.split()))


def join_words(name: str) -> str:
    """Return a name without what separates its words: seqlen for seq_len and SeqLen."""
    return re.sub(r"[\s_-]", "", name).lower()


def rank_entry(entry: ReferenceEntry, word: str, joined: str) -> int | None:
    """Return how well an entry matches, 0 best; None if it does not match.

    `joined` is the word as `join_words` returns it.
    """
    name = entry.name.lower()
    spelled = (joined, f"{joined}s", joined.removesuffix("s"))
    if name in (word, *SYNONYMS.get(word, ())) or join_words(name) in spelled:
        return 0
    if word in re.split(r"[_-]", name):
        return 1
    if joined in join_words(name):
        return 2
    return 3 if re.search(rf"\b{re.escape(word)}", entry.text.lower()) else None


def list_words() -> set[str]:
    """Return the names in the reference and the words they consist of."""
    names = {entry.name for entry in list_entries()}
    return names | {part for name in names for part in re.split(r"[_-]", name) if len(part) > 2}


def format_search_result(word: str, found: list[ReferenceEntry], columns: int | None) -> str:
    """Format the best entries with one line each, no wider than `columns`."""
    lines = [f"'{word}' is found in {pluralize(len(found), 'entry', 'entries')}:"]
    lines += iter_reference_lines(found[:MAX_HITS], columns)
    hidden = len(found) - MAX_HITS
    lines += [f"  ... and {hidden:,} more; a longer word finds fewer"] if hidden > 0 else []
    return "\n".join(lines) + "\n"


def format_tool_word(word: str, meant: ToolWord, columns: int | None) -> str:
    """Format what stands for a word of other tools, and the entries of its settings."""
    entries = {entry.title: entry for entry in list_entries()}
    head = f"'{word}' is a word of other tools. Here: " + (
        meant.sentence or format_word_list(meant.paths)
    )
    lines = [head, *iter_reference_lines([entries[path] for path in meant.paths], columns)]
    return "\n".join(lines) + "\n"


def iter_reference_lines(shown: list[ReferenceEntry], columns: int | None) -> Iterator[str]:
    """Yield title and first sentence of each entry, no wider than `columns`."""
    width = max((len(entry.title) for entry in shown), default=0)
    for entry in shown:
        summary = re.split(r"(?<=[.;])\s", entry.text.strip(), maxsplit=1)[0].rstrip(".;")
        if columns is not None:
            room = max(columns - width - 4, MIN_SUMMARY_WIDTH)
            summary = shorten(summary, room, placeholder=" ...")
        yield f"  {entry.title:<{width}}  {summary}".rstrip()
