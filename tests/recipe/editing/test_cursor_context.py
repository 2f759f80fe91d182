"""What belongs at a cursor, in texts that need not parse. `|` is the cursor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from titanrun.recipe.editing.cursor_context import RecipeFormat, find_cursor_context

YAML_CASES = [
    ("|", "key", (), ""),
    ("tr|", "key", (), "tr"),
    ("training:\n  |", "key", ("training",), ""),
    ("training:\n  st|", "key", ("training",), "st"),
    ("training:\n  steps: |", "value", ("training", "steps"), ""),
    ("training:\n  steps: 1\n|", "key", (), ""),
    ("training:\n  steps: 1\n  |", "key", ("training",), ""),
    ("training:\n  dataset:\n    name: t|", "value", ("training", "dataset", "name"), "t"),
    ("training:\n  dataset:\n    name: t\n  s|", "key", ("training",), "s"),
    ("converters:\n- |", "key", ("converters", 0), ""),
    ("converters:\n- lora\n- f|", "key", ("converters", 1), "f"),
    ("converters:\n  - name: lora\n    r|", "key", ("converters", 0), "r"),
    ("converters:\n- name: lora\n  rank: |", "value", ("converters", 0, "rank"), ""),
    ("stages:\n- id: a\n  training:\n    s|", "key", ("stages", 0, "training"), "s"),
    ("stages:\n- id: a\n- id: b\n  training: {|", "key", ("stages", 1, "training"), ""),
    ("optimizer: {name: a|", "value", ("optimizer", "name"), "a"),
    ("optimizer: {name: adamw, l|", "key", ("optimizer",), "l"),
    ("optimizer: {name: adamw,\n  l|", "key", ("optimizer",), "l"),
    ("a: {b: {c: 1}, d: [x, {e|", "key", ("a", "d", 1), "e"),
    ("extends: [a.yaml, p|", "value", ("extends", 1), "p"),
    ("extends:\n- parts/f|", "key", ("extends", 0), "parts/f"),
    ("name: x-${tr|", "reference", (), "tr"),
    ("optimizer: {name: adamw}\ntr|", "key", (), "tr"),
    ('name: "a # b"\ntr|', "key", (), "tr"),
    ("training: # all\n  # more\n\n  s|", "key", ("training",), "s"),
]
TOML_CASES = [
    ("|", "key", (), ""),
    ("tr|", "key", (), "tr"),
    ("[training]\nst|", "key", ("training",), "st"),
    ("[training]\nsteps = |", "value", ("training", "steps"), ""),
    ("[training]\ndataset.na|", "key", ("training", "dataset"), "na"),
    ("[tra|", "table", (), "tra"),
    ("[training.da|", "table", ("training",), "da"),
    ("[[stages]]\nid = 'a'\n[[stages]]\nid|", "key", ("stages", 1), "id"),
    ("optimizer = {name = 'adamw', l|", "key", ("optimizer",), "l"),
    ("optimizer = {name = |", "value", ("optimizer", "name"), ""),
    ("extends = [\n  'a.yaml',\n  |", "value", ("extends", 1), ""),
]


@pytest.mark.parametrize(
    ("text", "kind", "path", "word", "recipe_format"),
    [
        *((*case, "yaml") for case in YAML_CASES),
        *((*case, "toml") for case in TOML_CASES),
    ],
)
def test_context(
    text: str, kind: str, path: tuple[str | int, ...], word: str, recipe_format: RecipeFormat
) -> None:
    offset = text.index("|")
    found = find_cursor_context(text.replace("|", ""), offset, recipe_format)
    assert found is not None
    assert (found.kind, found.path, found.word) == (kind, path, word)
    assert found.start == offset - len(word)


@pytest.mark.parametrize("text", ["# tr|", "a: 1 # tr|", "name: 'x' # ${|"])
def test_nothing_belongs_in_a_comment(text: str) -> None:
    assert find_cursor_context(text.replace("|", ""), text.index("|"), "yaml") is None


@pytest.mark.parametrize(
    "text",
    ["a:\n  name: x\n  |\n  lr: 1\nb:\n  other: 2\n", "a: {name: x, lr: 1, |}\n"],
)
def test_siblings_stand_before_and_after_the_cursor(text: str) -> None:
    found = find_cursor_context(text.replace("|", ""), text.index("|"), "yaml")
    assert found is not None
    assert found.siblings == {"name": "x", "lr": "1"}


TREES = st.recursive(
    st.integers(0, 9),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.sampled_from("abcdef"), inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("abcdef"), TREES, min_size=1), st.data())
def test_paths_are_those_of_a_yaml_parser(tree: dict[str, object], data: st.DataObject) -> None:
    """Each scalar of a text that ruamel.yaml wrote has the path that ruamel.yaml reads."""
    from io import StringIO

    yaml = YAML()
    indent = data.draw(st.sampled_from([(2, 0), (4, 2)]))
    yaml.indent(mapping=2, sequence=indent[0], offset=indent[1])
    stream = StringIO()
    yaml.dump(tree, stream)
    text = stream.getvalue()
    lines = text.split("\n")
    for path, line, column in iter_scalars(yaml.load(text), ()):
        offset = sum(len(part) + 1 for part in lines[:line]) + column
        found = find_cursor_context(text, offset, "yaml")
        assert found is not None
        assert found.path == path


def iter_scalars(node: object, path: tuple[str | int, ...]) -> list[tuple[object, int, int]]:
    """Path, line and column of each value that is no collection."""
    found = []
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, dict | list):
                found += iter_scalars(value, (*path, key))
            else:
                found.append(((*path, key), *node.lc.value(key)))  # type: ignore[attr-defined]
    elif isinstance(node, list):
        for index, value in enumerate(node):
            if isinstance(value, dict | list):
                found += iter_scalars(value, (*path, index))
            else:
                found.append(((*path, index), *node.lc.item(index)))  # type: ignore[attr-defined]
    return found
