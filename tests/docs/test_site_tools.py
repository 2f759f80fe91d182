"""What is made of the pages for the site: the split reference, redirects, versions."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from titanrun.config.version import VERSION
from tools.copy_pages import REFERENCE, ROOT, find_pages, rewrite_links, split_long_page
from tools.publish_site import publish_site
from tools.split_reference import find_anchors
from tools.write_redirects import RENAMED, write_redirects

# of a rule
ANCHOR = re.compile(r"\{: #[\w-]+ \}")


def test_the_split_reference_has_every_word() -> None:
    pages = split_long_page()
    source = (ROOT / REFERENCE).read_text(encoding="utf-8")
    whole, split = (
        Counter(word for word in re.split(r"[\s#:-]+", text) if word)
        for text in (source, ANCHOR.sub("", "\n".join(pages.values())))
    )
    assert whole - split == Counter()
    rules = source.partition("\n## Rules\n")[2].count("\n### ")
    assert len(ANCHOR.findall(pages["reference/rules.md"])) == rules > 200
    assert len(pages) > 30
    assert max(len(text.splitlines()) for text in pages.values()) < 800
    assert "\n## `local_batch_size`\n" in pages["reference/training.md"]


def test_choices_are_on_the_page_of_their_slot() -> None:
    pages = split_long_page()
    for name, text in pages.items():
        slots = set(re.findall(r"^##+ `([a-z_]+):", text, re.MULTILINE))
        assert slots <= {Path(name).stem}, name
    assert "## `model:qwen3`" in pages["reference/model.md"]
    assert "## `rl.rollout`" in pages["reference/rl.md"]


def test_links_into_the_reference_lead_to_the_page_of_the_section() -> None:
    anchors = find_anchors(split_long_page())
    for link, expected in (
        ("reference.md#trackers", "reference/trackers.md#trackers"),
        ("reference.md#the-recipe", "reference.md#the-recipe"),
        ("reference.md", "reference.md"),
    ):
        text = rewrite_links(f"[a]({link})", "docs/data.md", find_pages(), anchors)
        assert text == f"[a]({expected})"


def test_former_addresses_lead_to_pages_that_exist(tmp_path: Path) -> None:
    present = {f"{name.removesuffix('.md')}.html" for name in find_pages().values()}
    for name in present:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    write_redirects(tmp_path)
    for former, name in RENAMED.items():
        assert f'url={name}.html"' in (tmp_path / f"{former}.html").read_text()
    # once more: the former addresses are pages now
    with pytest.raises(ValueError, match=r"cannot lead from engines\.html"):
        write_redirects(tmp_path)


def test_versions_are_published_beside_each_other(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "public"
    with pytest.raises(ValueError, match="make docs"):
        publish_site(site, folder, is_release=False)
    site.mkdir()

    def publish(text: str, version: str, *, is_release: bool) -> list[object]:
        (site / "index.html").write_text(text)
        publish_site(site, folder, is_release=is_release, version=version)
        return json.loads((folder / "versions.json").read_text())

    listed = publish("zero", "0.9.0", is_release=False)
    assert listed == [{"version": "dev", "title": "dev", "aliases": []}]
    assert 'url=dev/"' in (folder / "index.html").read_text()
    publish("one", "0.9.0", is_release=True)
    publish("two", "0.10.0", is_release=True)
    listed = publish("a correction of one", "0.9.1", is_release=True)
    assert listed == [
        {"version": "0.10", "title": "0.10", "aliases": ["latest"]},
        {"version": "0.9", "title": "0.9", "aliases": []},
        {"version": "dev", "title": "dev", "aliases": []},
    ]
    texts = {path.parent.name: path.read_text() for path in folder.glob("*/index.html")}
    assert texts == {"dev": "zero", "0.9": "a correction of one", "0.10": "two", "latest": "two"}
    assert 'url=latest/"' in (folder / "index.html").read_text()


def test_the_site_is_pushed_into_a_branch_beside_other_versions(tmp_path: Path) -> None:
    site, repository = tmp_path / "site", tmp_path / "repository"
    site.mkdir()
    subprocess.run(["git", "init", "--quiet", "--bare", str(repository)], check=True)

    def push(text: str, *options: str) -> list[str]:
        (site / "index.html").write_text(text)
        script = [ROOT / "tools" / "push_site.sh", site, repository, *options]
        subprocess.run(script, check=True, env=os.environ | {"PYTHON": sys.executable})
        return git("ls-tree", "-r", "--name-only", "site").split()

    def git(*words: str) -> str:
        command = ["git", "--git-dir", str(repository), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    name = VERSION.rpartition(".")[0]
    development = [".nojekyll", "dev/index.html", "index.html", "versions.json"]
    assert push("first") == development
    released = sorted([*development, f"{name}/index.html", "latest/index.html"])
    assert push("second", "--release") == released
    assert push("second", "--release") == released
    assert git("show", "site:dev/index.html") == "first"
    assert git("show", "site:latest/index.html") == "second"
