import json
from dataclasses import replace

from titanrun.config.diagnostics import (
    MAX_VALUE_LENGTH,
    compute_display_width,
    format_short_value,
    render_problems,
    wrap_message_line,
)
from titanrun.config.problems import Origin, Problem, RelatedLocation, SourceText
from titanrun.config.redaction import redact_url_credentials

OUTER = SourceText("outer.yaml", "extends: recipe.yaml\n")
TEXT = SourceText(
    "recipe.yaml",
    "a: 1\nconverters:\n  - name: 名前 wrong\n",
    included_from=Origin(OUTER, 1, 10, 21),
)
PROBLEM = Problem(
    "unknown-name",
    "unknown converter '名前'",
    ("converters", 0, "name"),
    Origin(TEXT, 3, 11, 19),
    hint="did you mean 'lora'?",
    suggestion="lora",
    related=(RelatedLocation(Origin(TEXT, 1, 1, 2), "a is 1"),),
)


def test_the_caret_follows_display_width_and_the_chain_of_includes_is_told() -> None:
    assert render_problems([PROBLEM]) == (
        "error[unknown-name]: unknown converter '名前'\n"
        " --> recipe.yaml:3:11  (converters[0].name)\n"
        "  |\n"
        "3 |   - name: 名前 wrong\n"
        "  |           ^^^^^^^^^^ help: did you mean 'lora'?\n"
        "  = recipe.yaml:1:1: a is 1\n"
        "  = note: included from outer.yaml:1\n"
    )
    assert compute_display_width("名前 wrong") == 10


def test_programs_get_one_object_a_problem() -> None:
    data = json.loads(render_problems([PROBLEM], output_format="json"))
    assert (data["file"], data["line"], data["col"], data["end_col"], data["path"]) == (
        "recipe.yaml",
        3,
        11,
        19,
        "converters[0].name",
    )
    assert data["related"] == [{"file": "recipe.yaml", "line": 1, "message": "a is 1"}]
    assert data["got"] is None


def test_programs_get_the_value_where_there_is_one() -> None:
    problem = replace(PROBLEM, got="名前 wrong")
    (text,) = render_problems([problem], output_format="json").splitlines()
    assert "名前 wrong" in json.loads(text)["got"]


def test_github_and_sarif_point_at_the_place() -> None:
    assert render_problems([PROBLEM], output_format="github").startswith(
        "::error file=recipe.yaml,line=3,col=11,endColumn=19,title=unknown-name::unknown"
    )
    result = json.loads(render_problems([PROBLEM], output_format="sarif"))["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 3,
        "startColumn": 11,
        "endColumn": 19,
    }


def test_problems_come_in_file_order_and_overrides_last() -> None:
    override = SourceText("<override 1>", "a=2", kind="override")
    problems = [
        Problem("usage", "c", (), Origin(override, 1, 1, 2)),
        Problem("usage", "b", (), Origin(TEXT, 2, 1, 2)),
        Problem("usage", "a", (), Origin(TEXT, 1, 1, 2)),
    ]
    assert [
        json.loads(line)["message"]
        for line in render_problems(problems, output_format="json").splitlines()
    ] == ["a", "b", "c"]


def test_a_related_override_is_shown_by_its_own_text() -> None:
    first = SourceText("<override 1>", "training.steps=1 api_key=hunter2", kind="override")
    second = SourceText("<override 2>", "steps=2", kind="override")
    related = RelatedLocation(Origin(first, 1, 8, 9), "the other one")
    problem = Problem("usage", "one of two", (), Origin(second, 1, 7, 8), related=(related,))
    shown = render_problems([problem])
    assert shown.startswith("error[usage]: one of two\n --> <override 2>\n")
    assert shown.endswith("\n  = training.steps=1 api_key=*******: the other one\n")


def test_a_help_too_long_for_the_terminal_stands_below() -> None:
    source = SourceText("mine.yaml", "stepz: 4\n")
    problem = Problem(
        "unknown-key",
        "unknown key 'stepz'",
        ("stepz",),
        Origin(source, 1, 1, 6),
        hint="known keys: " + "abcdef, " * 12,
    )
    assert "^^^^^ help: known keys" in render_problems([problem])
    lines = render_problems([problem], columns=60).splitlines()
    assert lines[4] == "  | ^^^^^"
    assert lines[5].startswith("  = help: known keys: abcdef,")
    assert lines[6].startswith("    abcdef,")
    assert all(len(line) <= 60 for line in lines)


def test_an_address_never_says_who_asks() -> None:
    text = "folder: s3://me:hunter2@bucket/run?sig=abc  # kept"
    origin = Origin(SourceText("recipe.yaml", text), 1, 9, 44)
    value = "s3://me:hunter2@bucket/run?sig=abc"
    problem = Problem(
        "usage",
        f"not '{value}'",
        (),
        origin,
        hint=f"drop {value}",
        got=value,
        related=(RelatedLocation(origin, f"is {value}"),),
    )
    for form in ("text", "json", "github", "sarif"):
        said = render_problems([problem], output_format=form)
        assert "hunter2" not in said and "sig=abc" not in said and "s3://***@bucket/run?***" in said
    assert "1 | folder: s3://**********@bucket/run?*******  # kept\n" in render_problems([problem])
    assert (
        redact_url_credentials("s3:/me@bucket (see a@b) s3://bucket/run@2")
        == "s3:/***@bucket (see a@b) s3://bucket/run@2"
    )


def test_a_value_that_nobody_wrote_is_named_once() -> None:
    related = (
        RelatedLocation(None, "model.head_dim 8 -> 16", ("model", "head_dim")),
        RelatedLocation(None, "is 3", ("training", "steps")),
    )
    assert render_problems([Problem("usage", "differs", related=related)]) == (
        "error[usage]: differs\n  = model.head_dim 8 -> 16\n  = training.steps: is 3\n"
    )


def test_a_long_value_is_cut_to_one_length() -> None:
    whole = "x" * MAX_VALUE_LENGTH
    assert [len(format_short_value(text)) for text in ("1" * 3, whole, whole * 2)] == [
        5,
        MAX_VALUE_LENGTH,
        MAX_VALUE_LENGTH,
    ]
    assert format_short_value(whole).endswith("...")


def test_words_and_paths_are_not_broken_where_lines_are() -> None:
    long = "runs/a-long-name-of-a-folder/checkpoint/step-00001000/resolved.yaml"
    lines = wrap_message_line(f"  = help: look at {long} or at step-by-step", 30)
    assert [line.strip() for line in lines] == ["= help: look at", long, "or at step-by-step"]


def test_a_line_break_in_a_value_begins_no_line_of_its_own() -> None:
    forged = "x\n  = help: forged"
    related = (RelatedLocation(Origin(TEXT, 1, 1, 2), forged),)
    for origin in (PROBLEM.origin, None):
        problem = replace(PROBLEM, message=forged, hint=forged, related=related, origin=origin)
        told = render_problems([problem])
        assert told.count("x\\n  = help: forged") == 3
        assert "\n  = help: forged" not in told


def test_a_list_in_a_message_keeps_its_lines() -> None:
    listed = ("runs/a  x", "runs/b  " + "y " * 20)
    problem = Problem("usage", "2 runs have the name 'a':", listed=listed)
    assert render_problems([problem]).splitlines()[1] == "  runs/a  x"
    narrow = render_problems([problem], columns=40).splitlines()
    assert narrow[:2] == ["error[usage]: 2 runs have the name 'a':", "  runs/a  x"]
    assert all(len(line) <= 40 for line in narrow)


def test_a_line_break_in_a_shown_value_is_escaped() -> None:
    assert format_short_value("a\n  b") == "'a\\n  b'"
