"""Secrets that a recipe writes out, or reads from the environment, reach no message and no file.

Rows B4 and B5 of the defect list.
"""

from pathlib import Path

import pytest

from titanrun.cli import main
from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText
from titanrun.config.redaction import is_secret_key, star_out_assigned_secrets
from titanrun.recipe.resolving.read_recipe import hide_secret_in_problem
from titanrun.recipe.resolving.resolve import resolve_recipe

START = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny, steps: 1}\n"
)
CANARY = "canary-0123456789"
WRITTEN = {
    "metrics.wandb_api_key": f"metrics:\n  wandb_api_key: {CANARY}\n",
    "hf_token": f"hf_token: {CANARY}\n",
    "quoted": f'hf_token: "{CANARY} {CANARY}"\n',
    "flow": f"metrics: {{wandbApiKey: {CANARY}, log_freq: x}}\n",
    "several lines": f"hf-token: |\n  {CANARY}\n",
    "a mapping": f"aws: 1\nsecret: {{id: {CANARY}}}\n",
    "beside a syntax error": f"hf_token: {CANARY}\nname: [\n",
    "on the line of a syntax error": f"metrics: {{api_key: {CANARY}, x: y: z}}\n",
    "twice": f"hf_token: {CANARY}\nhf_token: {CANARY}\n",
    "in a component": f"metrics: {{trackers: [{{name: jsonl, token: {CANARY}}}]}}\n",
    "of a known issuer": "description: hf_abcdefghijklmnopqrstuvwxyzabcdefgh\nname: 1\n",
}


@pytest.mark.parametrize("case", WRITTEN)
@pytest.mark.parametrize("output_format", ["text", "json"])
def test_a_secret_written_under_any_key_is_masked(
    tmp_path: Path, case: str, output_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(START + WRITTEN[case])
    assert main.run(["validate", str(file), "--format", output_format]) == 2
    told = capsys.readouterr()
    assert CANARY not in told.out + told.err and "hf_abcdef" not in told.out + told.err
    assert told.out + told.err


def list_formats(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what validate prints of a file that is no recipe, by format."""
    printed = {}
    for output_format in ("text", "json", "sarif", "github"):
        assert main.run(["validate", str(file), "--format", output_format]) == 2
        told = capsys.readouterr()
        printed[output_format] = told.out + told.err
    return printed


@pytest.mark.parametrize("first", "*&!@`%|>?-:{[}],#\"'")
def test_a_secret_is_masked_however_it_begins(
    first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has a meaning in YAML was quoted by the syntax error, or shown in its line."""
    file = tmp_path / "recipe.yaml"
    for text in (f"hf_token: {first}{CANARY}\n", f"metrics: {{api_key: {first}{CANARY}}}\n"):
        file.write_text(START + text)
        printed = list_formats(file, capsys)
        assert [name for name, told in printed.items() if CANARY in told] == []


@pytest.mark.parametrize(
    "text",
    [
        "api_key = {}\n",
        "hf_token = *{}\n",
        "hf_token = '{}\n",
        "metrics = {{api_key = {}}}\n",
        "hf_token = 0123456789\n",
    ],
)
def test_a_secret_without_quotes_in_toml_is_masked(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text("version = 1\n" + text.format(CANARY))
    printed = list_formats(file, capsys)
    assert [name for name, told in printed.items() if "123456789" in told] == []


@pytest.mark.parametrize("override", ["metrics.wandb_api_key", "hf_token", "model.hfToken"])
def test_a_secret_in_an_override_is_masked_and_the_variable_is_named(
    tmp_path: Path, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text(START)
    assert main.run(["show", str(tmp_path / "recipe.yaml"), f"{override}={CANARY}"]) == 2
    told = capsys.readouterr().err
    assert CANARY not in told and "****" in told


def test_a_secret_that_is_written_twice_is_told_as_such() -> None:
    text = SourceText("recipe.yaml", "hf_token: x\nhf_token: y\n")
    origin = Origin(text, 2, 1, 9)
    for code, expected in (("duplicate-key", "duplicate-key"), ("out-of-range", "wrong-type")):
        problem = Problem(code, "told", ("hf_token",), origin)  # type: ignore[arg-type]
        assert hide_secret_in_problem(problem).code == expected


def test_the_problem_points_to_the_environment(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(START + WRITTEN["metrics.wandb_api_key"])
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={})
    (problem,) = found.value.problems
    assert problem.hint == "a recipe holds no secrets: set WANDB_API_KEY where the run starts"
    assert problem.fix is None


def test_columns_stay_and_references_and_other_keys_are_shown() -> None:
    for line in (
        'api_key: "${env:MY_KEY}"',
        "eos_token: <s>",
        "max_new_tokens: 4",
        "tokens: 10B",
        "tokenizer: tiny",
        "keys: x",
        "hf_assets_path: assets/hf_asset-of-2024",
    ):
        assert star_out_assigned_secrets(line) == line
    line = "a: {token: abc, b: 1}"
    assert star_out_assigned_secrets(line) == "a: {token: ***, b: 1}"
    assert star_out_assigned_secrets("token: two words # why") == "token: ***************"
    assert is_secret_key("apiKey") and is_secret_key("hf-token") and not is_secret_key("bos_token")


@pytest.mark.parametrize("piece", ["a.", "a", "a: ", "token: ", "sk-", "://a:", '"', "! ", "a!"])
def test_a_long_line_takes_no_longer_a_character_than_a_short_one(piece: str) -> None:
    """A line of 400,000 characters takes hours where the time grows with the square."""
    line = piece * (400_000 // len(piece))
    assert len(star_out_assigned_secrets(line)) == len(line)


@pytest.mark.parametrize(
    "name",
    [
        "MY_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "db_password",
        "API_KEY_2",
        "PGPASSWORD",
        "MYSQL_PWD",
        "GITHUB_PAT",
        "SSH_PASSPHRASE",
    ],
)
def test_only_secret_fields_read_variables_named_like_secrets(tmp_path: Path, name: str) -> None:
    (tmp_path / "recipe.yaml").write_text(START + f'name: "x-${{env:{name}}}"\n')
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={name: CANARY})
    (problem,) = found.value.problems
    assert (problem.code, problem.path, problem.origin is not None) == (
        "interpolation",
        ("name",),
        True,
    )
    assert name in problem.message and CANARY not in problem.message
    # whether it is set must not be told either
    with pytest.raises(ProblemsFound, match="looks like a secret"):
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={})


@pytest.mark.parametrize(
    "value", ["hf_abcdefghijklmnopqrstuvwxyzabcdefgh", "-----BEGIN PRIVATE KEY-----"]
)
def test_only_secret_fields_read_variables_that_hold_a_secret(tmp_path: Path, value: str) -> None:
    (tmp_path / "recipe.yaml").write_text(START + 'name: "x-${env:INNOCENT}"\n')
    with pytest.raises(ProblemsFound, match="'INNOCENT' looks like a secret") as found:
        resolve_recipe(str(tmp_path / "recipe.yaml"), environment={"INNOCENT": value})
    assert value not in found.value.problems[0].message


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "COMPASS", "MAX_TOKENS", "SPAT", "KEYBOARD"])
def test_other_variables_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "recipe.yaml").write_text(START + f'description: "${{env:{name}}}"\n')
    run = resolve_recipe(str(tmp_path / "recipe.yaml"), environment={name: "/data"}).run
    assert run.description == "/data"


def test_validate_lists_the_other_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch")
    text = START + 'description: "${env:SCRATCH} and ${env:NOT_SET_HERE,none} $${env:NO}"\n'
    (tmp_path / "recipe.yaml").write_text(text)
    assert main.run(["validate", str(tmp_path / "recipe.yaml")]) == 0
    told = capsys.readouterr().err
    assert "reads environment variable SCRATCH: description\n" in told
    assert "reads environment variable NOT_SET_HERE: description\n" in told
    assert "variable NO:" not in told


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("axolotl.yaml", f"base_model: a/b\nhub_token: {CANARY}\nwandb_api_key: {CANARY}\n"),
        ("llamafactory.yaml", f"model_name_or_path: a/b\nstage: sft\nhf_hub_token: {CANARY}\n"),
        ("titan.toml", f'[job]\n[model]\nname = "llama3"\n[metrics]\napi_key = "{CANARY}"\n'),
    ],
)
def test_a_secret_of_another_tools_file_is_not_migrated(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    main.run(["migrate", str(tmp_path / name), "-o", str(tmp_path / "recipe.yaml")])
    told = capsys.readouterr()
    written = (tmp_path / "recipe.yaml").read_text()
    assert CANARY not in told.out + told.err + written and "****" in written


def test_the_value_of_an_unknown_option_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["train", "a.yaml", f"--hf-token={CANARY}"]) == 2
    told = capsys.readouterr().err
    assert "unknown option '--hf-token'" in told and CANARY not in told
