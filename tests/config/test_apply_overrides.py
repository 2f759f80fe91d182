"""Changes from the command line."""

import pytest

from titanrun.config.apply_overrides import apply_overrides, parse_overrides
from titanrun.config.problems import DataPath, Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_value_text
from titanrun.config.tree import Node, find_node, to_plain_data

RECIPE = """\
name: debug
optimizer: {name: adamw, lr: 1.0, beta1: 0.9}
loss: cross_entropy
training:
  steps: 10
  seq_len: 256
converters:
  - float8
  - {name: lora, rank: 8}
filters: [output]
compile: {enable: false}
off: null
"""


def tree(text: str = RECIPE) -> Node:
    """A recipe as a tree."""
    return read_value_text(SourceText("r.yaml", text))


def changed(*arguments: str, lists: tuple[DataPath, ...] = ()) -> Node:
    """The recipe after overrides."""
    return apply_overrides(tree(), parse_overrides(arguments), is_list=lambda path: path in lists)


def value(path: DataPath, *arguments: str, lists: tuple[DataPath, ...] = ()) -> object:
    """What stands at `path` after overrides."""
    return to_plain_data(at(changed(*arguments, lists=lists), path))


def at(root: Node, path: DataPath) -> Node:
    """The node at a path that is there."""
    node = find_node(root, path)
    assert node is not None
    return node


def problem(*arguments: str) -> Problem:
    """The one problem of some overrides."""
    (found,) = problems(*arguments)
    return found


def problems(*arguments: str) -> tuple[Problem, ...]:
    """The problems of some overrides."""
    with pytest.raises(ProblemsFound) as found:
        changed(*arguments)
    return found.value.problems


def marked(problem: Problem) -> str:
    """The characters that a problem marks."""
    assert problem.origin is not None
    return problem.origin.source.get_line(problem.origin.line)[
        problem.origin.column - 1 : problem.origin.end_column - 1
    ]


@pytest.mark.parametrize(
    ("argument", "path", "expected"),
    [
        ("training.steps=50", ("training", "steps"), 50),
        ("optimizer.lr=3e-4", ("optimizer", "lr"), 3e-4),
        ("name=foo bar", ("name",), "foo bar"),
        ("name=it's", ("name",), "it's"),
        ("name=run #5", ("name",), "run #5"),
        ("name=#5", ("name",), "#5"),
        ("name=@home", ("name",), "@home"),
        ("name=*.jsonl", ("name",), "*.jsonl"),
        ("name=50%", ("name",), "50%"),
        ("name=a=b", ("name",), "a=b"),
        ("name='5'", ("name",), "5"),
        ("name=''", ("name",), ""),
        ("name=null", ("name",), None),
        ("name=a:b", ("name",), "a:b"),
        ("name=note: this: that", ("name",), "note: this: that"),
        ("compile.enable=true", ("compile", "enable"), True),
        ("filters=[a, b]", ("filters",), ["a", "b"]),
        ("optimizer={name: sgd}", ("optimizer",), {"name": "sgd"}),
        ("training={steps: 1}", ("training",), {"steps": 1}),
        ("converters[1].rank=4", ("converters", 1), {"name": "lora", "rank": 4}),
        ("converters[0]=lora", ("converters", 0), "lora"),
        (
            "converters[0].recipe=rowwise",
            ("converters", 0),
            {"name": "float8", "recipe": "rowwise"},
        ),
        ("new.section.key=1", ("new",), {"section": {"key": 1}}),
        ("loss.z_loss=1", ("loss",), {"name": "cross_entropy", "z_loss": 1}),
        ("loss.name=mse", ("loss",), {"name": "mse"}),
        ("off=5", ("off",), 5),
    ],
)
def test_a_value_is_set(argument: str, path: DataPath, expected: object) -> None:
    assert value(path, argument) == expected


@pytest.mark.parametrize(
    ("arguments", "path", "expected"),
    [
        (["--training.steps", "50"], ("training", "steps"), 50),
        (["--training.steps=50"], ("training", "steps"), 50),
        (["--training.seq-len=50"], ("training", "seq_len"), 50),
        (["--training.steps", "-1"], ("training", "steps"), -1),
        (["--compile.enable"], ("compile", "enable"), True),
        (["--compile.no_enable"], ("compile", "enable"), False),
        (["--compile.no-enable"], ("compile", "enable"), False),
        (["--compile.enable", "--training.steps", "3"], ("compile", "enable"), True),
        (["--compile.enable", "training.steps=3"], ("compile", "enable"), True),
        (["--compile.enable", "optimizer.lr!"], ("compile", "enable"), True),
        (["--name", "hello world!"], ("name",), "hello world!"),
        (["--name", "hello!"], ("name",), "hello!"),
        (["--filters", "a,b"], ("filters",), ["a", "b"]),
        (["--filters", "a"], ("filters",), ["a"]),
        (["--filters=1, 2,x,"], ("filters",), [1, 2, "x"]),
        (["filters='a,b'"], ("filters",), ["a,b"]),
        (["filters=null"], ("filters",), None),
        (["filters=auto"], ("filters",), "auto"),
        (["--name", "a,b"], ("name",), "a,b"),
    ],
)
def test_the_spelling_of_torchtitan_is_taken(
    arguments: list[str], path: DataPath, expected: object
) -> None:
    assert value(path, *arguments) == expected


def test_words_become_a_list_where_the_schema_wants_one() -> None:
    assert value(("plugins",), "plugins=a,b", lists=(("plugins",),)) == ["a", "b"]
    assert value(("plugins",), "plugins=a,b") == "a,b"


def test_items_are_added() -> None:
    assert value(("converters",), "converters+=int8", "converters+={name: x}") == [
        "float8",
        {"name": "lora", "rank": 8},
        "int8",
        {"name": "x"},
    ]
    assert value(("converters",), "converters+=[a, b]")[2:] == ["a", "b"]  # type: ignore[index]
    assert value(("new", "list"), "new.list+=a") == ["a"]


@pytest.mark.parametrize(
    ("argument", "rest"),
    [
        ("-=float8", ["lora"]),
        ("-=lora", ["float8"]),
        ("-=0", ["lora"]),
        ("-=1", ["float8"]),
        ("-={name: lora, rank: 8}", ["float8"]),
    ],
)
def test_items_are_removed_by_name_value_or_index(argument: str, rest: list[str]) -> None:
    left = value(("converters",), f"converters{argument}")
    assert isinstance(left, list)
    assert [item["name"] if isinstance(item, dict) else item for item in left] == rest


def test_lists_begin_with_their_default_where_one_is_known() -> None:
    def default_of(path: DataPath) -> object:
        if path == ("kept",):
            return ["a", "b"]
        raise LookupError(path)

    root = apply_overrides(
        tree(), parse_overrides(["kept+=c", "kept-=a", "other+=x"]), get_default=default_of
    )
    assert to_plain_data(at(root, ("kept",))) == ["b", "c"]
    assert to_plain_data(at(root, ("other",))) == ["x"]


def test_a_reset_removes_what_the_recipe_says() -> None:
    root = changed("optimizer.lr!", "training!", "nowhere.at.all!", "training_steps!")
    assert to_plain_data(at(root, ("optimizer",))) == {"name": "adamw", "beta1": 0.9}
    assert find_node(root, ("training",)) is None
    assert find_node(root, ("nowhere",)) is None


def test_a_reset_of_what_no_field_is_called_is_a_mistake() -> None:
    overrides = parse_overrides(["training.steps!", "training.grace!", "trainin.steps!"])
    with pytest.raises(ProblemsFound) as found:
        apply_overrides(tree(), overrides, has_field=lambda path: path[0] == "training")
    (problem,) = found.value.problems
    assert (problem.message, str(problem.origin)) == (
        "the recipe has no 'trainin.steps'",
        "<override 3>",
    )
    assert marked(problem) == "trainin.steps"


def test_another_name_replaces_the_component_but_for_other_overrides() -> None:
    assert value(("optimizer",), "optimizer.name=sgd") == {"name": "sgd"}
    assert value(("optimizer",), "optimizer.name=adamw") == {
        "name": "adamw",
        "lr": 1.0,
        "beta1": 0.9,
    }
    assert value(("optimizer",), "optimizer=sgd") == "sgd"
    assert value(("optimizer",), "optimizer=sgd", "optimizer.lr=2") == {"name": "sgd", "lr": 2}
    for arguments in (
        ["optimizer.lr=2", "optimizer.name=sgd"],
        ["optimizer.name=sgd", "optimizer.lr=2"],
    ):
        assert value(("optimizer",), *arguments) == {"name": "sgd", "lr": 2}
    assert value(("name",), "name=other") == "other"
    assert to_plain_data(changed("name=other"))["training"] == {"steps": 10, "seq_len": 256}  # type: ignore[index]


def test_the_recipe_itself_stays_as_it_is() -> None:
    root = tree("x: &a {b: 1}\ny: *a\n")
    assert to_plain_data(apply_overrides(root, parse_overrides(["y.b=2", "x.c=3"]))) == {
        "x": {"b": 1, "c": 3},
        "y": {"b": 2},
    }
    assert to_plain_data(root) == {"x": {"b": 1}, "y": {"b": 1}}


def test_values_know_their_argument_and_what_they_shadow() -> None:
    node = at(changed("name=a", "--training.steps=50"), ("training", "steps"))
    assert (str(node.origin), node.origin.column, node.origin.end_column, node.via) == (
        "<override 2>",
        18,
        20,
        "override",
    )
    assert node.origin.source.text == "--training.steps=50"
    assert node.key is not None
    assert (node.key.column, node.key.end_column) == (12, 17)
    assert [str(origin) for origin in node.shadowed_origins] == ["r.yaml:5:10"]


def test_new_mappings_are_marked_at_their_step_of_the_path() -> None:
    root = changed("new.section.key=1")
    new, section = at(root, ("new",)), at(root, ("new", "section"))
    assert new.key is not None and section.key is not None
    assert (new.key.column, new.key.end_column) == (1, 4)
    assert (section.key.column, section.key.end_column, section.via) == (5, 12, "override")


def test_words_and_values_inside_lists_are_marked_exactly() -> None:
    items = at(changed("--filters", "aa, b"), ("filters",)).value
    assert isinstance(items, list)
    assert [(item.origin.column, item.origin.end_column) for item in items] == [(11, 13), (15, 16)]
    inner = at(changed("optimizer={name: sgd, lr: 2}"), ("optimizer", "lr"))
    assert (inner.origin.column, inner.via) == (27, "override")


@pytest.mark.parametrize(
    ("argument", "message", "mark"),
    [
        ("", "the override is empty", ""),
        ("--", "the override is empty", "--"),
        ("training.steps", "'training.steps' has no value", "training.steps"),
        ("training.steps=", "no value after 'training.steps='", "training.steps="),
        ("--training.steps=", "no value after '--training.steps='", "--training.steps="),
        ("training..steps=5", "a key cannot begin with '.'", "."),
        ("training.=5", "a key cannot begin with '='", "="),
        ("training.", "a key is missing", ""),
        ("filters.0.column=lang", "write an index in brackets, not after a dot: filters[0]", "0"),
        ("=5", "a key cannot begin with '='", "="),
        ("50", "a key cannot begin with '5'", "5"),
        ("-x", "a key cannot begin with '-'", "-"),
        ("training:5", "expected =, +=, -= or ! after 'training'", ":"),
        ("training.seq-len=5", "expected =, +=, -= or ! after 'training.seq'", "-"),
        ("training.steps =5", "expected =, +=, -= or ! after 'training.steps'", " "),
        ("converters[-1]=a", "brackets must contain an index counted from 0", "["),
        ("converters[a]=a", "brackets must contain an index counted from 0", "["),
        ("training.steps!5", "unexpected text after !", "5"),
        ("extends=b.yaml", "extends cannot be changed here", "extends"),
        ("name=\udcff", "the argument is not UTF-8 text", "name=\udcff"),
    ],
)
def test_a_misspelt_override_is_shown_where_it_goes_wrong(
    argument: str, message: str, mark: str
) -> None:
    found = problem(argument)
    assert (found.code, found.message) == ("usage", message)
    assert marked(found) == mark


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        ("filters.0.column=lang", "filters[0].column=lang"),
        ("filters.0.rules.1+=1.5", "filters[0].rules[1]+=1.5"),
    ],
)
def test_an_index_after_a_dot_is_told_the_override_with_brackets(
    argument: str, written: str
) -> None:
    assert problem(argument).hint == f"write {written}"


@pytest.mark.parametrize(
    ("argument", "message", "mark", "place"),
    [
        ("training.steps.x=5", "training.steps is 10, which has no keys", "x", "r.yaml:5:10"),
        ("name.x=5", "name is 'debug', which has no keys", "x", "r.yaml:1:7"),
        ("off.x=5", "off is null, which has no keys", "x", "r.yaml:12:6"),
        ("training[0]=5", "training is a mapping, not a list", "[0]", None),
        ("converters.lr=5", "converters is a list", "lr", None),
        ("converters[2]=5", "converters has 2 items, no [2]", "[2]", None),
        ("nothing[0].x=5", "nothing has no items, no [0]", "[0]", None),
        ("filters-=1", "filters has 1 item, no [1]", "1", None),
        ("filters-=-1", "filters has 1 item, no [-1]", "-1", None),
        ("filters-=input", "filters has no such item", "input", None),
        ("nothing-=a", "nothing has no such item", "a", None),
        ("training.steps+=5", "training.steps is 10, not a list", "steps", "r.yaml:5:10"),
        ("training-=5", "training is a mapping, not a list", "training", None),
        ("converters[0]!", "a list item has no default to reset to", "[0]", None),
    ],
)
def test_an_override_that_does_not_fit_the_recipe_is_shown_at_its_step(
    argument: str, message: str, mark: str, place: str | None
) -> None:
    found = problem(argument)
    assert (found.code, found.message) == ("usage", message)
    assert marked(found) == mark
    assert place is None or [str(related.origin) for related in found.related] == [place]


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("converters.lora.rank=4", "write converters[1].rank"),
        ("converters.float8.recipe.x=4", "write converters[0].recipe.x"),
        ("converters.lora=4", "write converters[0].lora for its first item"),
        ("converters.rank=4", "write converters[0].rank for its first item"),
    ],
)
def test_a_path_through_a_list_gets_the_item_that_it_names(argument: str, hint: str) -> None:
    assert problem(argument).hint == hint


def test_an_item_that_is_there_twice_needs_an_index() -> None:
    found = problem("filters+=output", "filters-=output")
    assert found.message == "filters has 2 such items"
    assert found.hint == "use an index: filters-=0"


def test_a_path_is_given_once() -> None:
    found = problem("training.steps=5", "name=a", "--training.steps", "6")
    assert (found.message, str(found.origin)) == ("'training.steps' is given twice", "<override 3>")
    assert [str(related.origin) for related in found.related] == ["<override 1>"]
    assert problem("compile.enable=true", "--compile.no_enable").code == "usage"
    assert problem("filters+=a", "filters=[b]").code == "usage"


def test_an_override_does_not_undo_another_one() -> None:
    assert (
        problem("optimizer.lr=2", "optimizer=sgd").message
        == "'optimizer' would undo 'optimizer.lr', given before it"
    )
    assert problem("optimizer.lr=2", "optimizer!").code == "usage"


def test_all_problems_come_at_once() -> None:
    assert [str(found.origin) for found in problems("a..b=1", "name=5", "c")] == [
        "<override 1>",
        "<override 3>",
    ]
    assert [
        str(found.origin) for found in problems("name.x=1", "training.seq_len=5", "converters[9]=1")
    ] == [
        "<override 1>",
        "<override 3>",
    ]


@pytest.mark.parametrize(
    ("argument", "column"), [("filters=[a, b", 9), ("name='a", 6), ("optimizer={lr: ${x}}", 11)]
)
def test_broken_yaml_is_shown_in_the_argument(argument: str, column: int) -> None:
    found = problem(argument)
    assert found.code == "syntax"
    assert found.origin is not None
    assert str(found.origin) == "<override 1>"
    assert column <= found.origin.column <= len(argument) + 1


def test_text_is_short_for_a_component_only_where_there_is_one() -> None:
    overrides = parse_overrides(["loss.x=1"])
    with pytest.raises(ProblemsFound, match="loss is 'cross_entropy', which has no keys"):
        apply_overrides(tree(), overrides, is_component=lambda path: False)


def test_text_with_a_comment_sign_is_placed_where_it_begins() -> None:
    (override,) = parse_overrides(["training.note= a #b"])
    assert override.value is not None
    origin = override.value.origin
    assert (origin.line, origin.column, origin.end_column) == (1, 16, 20)


def test_a_list_that_is_not_written_grows_from_its_default() -> None:
    def grown(default: object) -> object:
        root = apply_overrides(
            tree(),
            parse_overrides(["scopes+=b"]),
            is_list=lambda path: True,
            get_default=lambda path: default,
        )
        return to_plain_data(at(root, ("scopes",)))

    assert grown(["a"]) == ["a", "b"]
    assert grown(None) == ["b"]
