"""Secret fields: what they take, what is shown of them, and how they get their values."""

import pytest
from pydantic import ValidationError

from titanrun.config.base import Config, dump_config
from titanrun.config.describe_field import describe_fields
from titanrun.config.diagnostics import render_problems
from titanrun.config.fields import bookkeeping, section
from titanrun.config.problems import ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.redaction import get_likely_secrets, redact, redact_tokens
from titanrun.config.secrets import fill_secrets, iter_secrets
from titanrun.config.types import Text
from titanrun.config.validate_tree import validate_tree


class Door(Config):
    key: Text = bookkeeping("${env:DOOR_KEY}", secret=True)
    width: int = bookkeeping(1)


class House(Config):
    door: Door = section(Door)
    windows: tuple[Door, ...] = bookkeeping(())
    safe: Text | None = bookkeeping(None, secret=True, examples=["${env:SAFE}"])


ENVIRONMENT = {"DOOR_KEY": "open sesame", "SAFE": "12-34"}


@pytest.mark.parametrize(
    "written",
    [
        "open sesame",
        "",
        "$${env:SAFE}",
        "${env:SAFE,x}",
        "${env:SAFE} ",
        "${safe}",
        "${env:}",
        1234,
        ["x"],
    ],
)
def test_a_secret_takes_a_reference_only(written: object) -> None:
    with pytest.raises(ValidationError) as caught:
        House.model_validate({"safe": written})
    assert caught.value.errors()[0]["type"] == "secret"


def test_null_stays_where_the_field_takes_it() -> None:
    assert House.model_validate({"safe": None}).safe is None
    with pytest.raises(ValidationError):
        Door.model_validate({"key": None})


def test_a_secret_written_out_is_shown_as_stars_in_every_message_of_its_text() -> None:
    (tree := read_source_text(SourceText("r.yaml", "{safe: hush, door: {width: many}}"), "yaml"))
    assert (
        render_problems(validate_tree(House, tree).problems)
        == """\
error[wrong-type]: a recipe must not contain a secret; the value is not shown
 --> r.yaml:1:8  (safe)
  |
1 | {safe: ****, door: {width: many}}
  |        ^^^^ help: write ${env:NAME} and set that environment variable where the run starts

error[wrong-type]: expected a whole number, got text 'many'
 --> r.yaml:1:28  (door.width)
  |
1 | {safe: ****, door: {width: many}}
  |                            ^^^^ help: write a number; the default is 1
"""
    )


def test_revealed_fills_every_secret_and_keeps_the_rest() -> None:
    house = House.model_validate(
        {"safe": "${env:SAFE}", "windows": [{"key": "${env:SAFE}", "width": 3}]}
    )
    assert list(iter_secrets(house)) == [
        (("safe",), "SAFE"),
        (("door", "key"), "DOOR_KEY"),
        (("windows", 0, "key"), "SAFE"),
    ]
    known = fill_secrets(house, ENVIRONMENT)
    assert (known.door.key, known.safe, known.windows[0].key, known.windows[0].width) == (
        "open sesame",
        "12-34",
        "12-34",
        3,
    )
    assert dump_config(house)["door"]["key"] == "${env:DOOR_KEY}"
    assert "12-34" not in repr(known)
    assert "open sesame" not in repr(known)


def test_a_config_without_secrets_is_itself() -> None:
    class Plain(Config):
        width: int = bookkeeping(1)

    plain = Plain()
    assert fill_secrets(plain, {}) is plain


@pytest.mark.parametrize("environment", [{}, {"DOOR_KEY": ""}])
def test_what_is_not_set_is_a_problem_of_its_path(environment: dict[str, str]) -> None:
    with pytest.raises(ProblemsFound) as caught:
        fill_secrets(House(), environment)
    assert [problem.path for problem in caught.value.problems] == [("door", "key")]


def test_of_two_secrets_the_longer_one_is_masked_first() -> None:
    assert redact("abc abcdef x", {"abc", "abcdef"}) == "*** *** x"


def test_the_reference_says_what_a_secret_takes() -> None:
    assert [field.type for field in describe_fields(House)] == [
        "section",
        "list of sections",
        "${env:NAME}, a secret or null",
    ]


def test_what_is_hidden_are_secrets_of_the_recipe_and_variables_that_say_they_hold_one() -> None:
    environment = {
        "HF_TOKEN": "hf_0123456789",
        "MY_API_KEY": "abcdefgh-1",
        "DB_PASSWORD": "short",
        "TOKENIZERS_PARALLELISM": "false-false",
        "KEYBOARD": "a-german-one",
        "SSH_PRIVATE_KEY": "-----BEGIN-----\nline-one-of-it\nend\n-----END-----",
        "HOME": "/home/somebody",
    }
    hidden = get_likely_secrets(environment)
    assert {"hf_0123456789", "abcdefgh-1", "line-one-of-it"} <= hidden
    assert not hidden & {"short", "false-false", "a-german-one", "/home/somebody", "end"}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("+token = hf_AbCdEfGhIjKlMn0123", "+token = ***"),
        ("+  'api_key': 'aB3dE5fG7hI9jK1l',", "+  'api_key': '***',"),
        ("-url = https://me:s3cret@host/x", "-url = https://***@host/x"),
        ("+AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "+AWS_SECRET_ACCESS_KEY=***"),
        (
            "+tokens_per_step = global_batch_size * seq_len",
            "+tokens_per_step = global_batch_size * seq_len",
        ),
        ("+token = next(iterator)  # of 2048", "+token = next(iterator)  # of 2048"),
        ("+key = jax.random.PRNGKey(0)", "+key = jax.random.PRNGKey(0)"),
    ],
)
def test_a_diff_loses_what_looks_like_a_token_and_nothing_else(line: str, kept: str) -> None:
    assert redact_tokens(f" before\n{line}\n after\n") == f" before\n{kept}\n after\n"


def test_a_diff_loses_a_private_key_even_where_it_is_cut_off() -> None:
    text = "+-----BEGIN RSA PRIVATE KEY-----\n+MIIEpAIBAAKC\n"
    assert "MIIE" not in redact_tokens(text)
    assert "MIIE" not in redact_tokens(text + "+-----END RSA PRIVATE KEY-----\n+x = 1\n")
    assert "+x = 1" in redact_tokens(text + "+-----END RSA PRIVATE KEY-----\n+x = 1\n")
