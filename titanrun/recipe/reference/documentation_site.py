"""Addresses of problems on the documentation site, if the installed package says where that is.

The address is the URL `Documentation` of the package's metadata. Without it nothing is linked.
"""

from importlib.metadata import PackageNotFoundError, metadata
from urllib.parse import urljoin, urlsplit

from titanrun.config.problems import Problem
from titanrun.config.sarif import DocumentationSite
from titanrun.config.version import LIGHT_DISTRIBUTION
from titanrun.recipe import builtins
from titanrun.recipe.reference.problem_codes import PROBLEM_CODES, RUN_END_CODES
from titanrun.recipe.rules.registry import RULES

URL_LABEL = "documentation"
# pages that tools/split_reference.py makes; a heading is the id of a rule or code
CODE_PAGE = "reference/problem_codes.html"
RULE_PAGE = "reference/rules.html"
# rules of plug-ins have other modules, and no heading
BUILTIN_PREFIX = "titanrun."


def find_documentation_site() -> DocumentationSite | None:
    """Return the site that the package's metadata names, or None if it names none."""
    address = find_documentation_url(read_project_urls())
    if address is None:
        return None
    builtins.load_rules()
    return DocumentationSite(
        address, lambda problem: urljoin(address, get_problem_location(problem))
    )


def read_project_urls() -> list[str]:
    """Return the lines `Project-URL` of the installed package: a label, a comma and an address."""
    try:
        return metadata(LIGHT_DISTRIBUTION).get_all("Project-URL") or []
    except PackageNotFoundError:
        return []


def find_documentation_url(lines: list[str]) -> str | None:
    """Return the address of the documentation, as one to which names of pages can be appended."""
    for line in lines:
        label, _, address = (part.strip() for part in line.partition(","))
        if label.lower() == URL_LABEL and urlsplit(address).scheme in ("http", "https"):
            return address if address.endswith(("/", ".html")) else f"{address}/"
    return None


def get_problem_location(problem: Problem) -> str:
    """Return the page and heading that explain a problem, relative to the site.

    A rule of a plug-in has none, so that its code is explained.
    """
    name = problem.rule
    if name and name in RULES and RULES[name].module.startswith(BUILTIN_PREFIX):
        return f"{RULE_PAGE}#{name}"
    is_documented = name in RUN_END_CODES or name in PROBLEM_CODES
    return f"{CODE_PAGE}#{name if is_documented else problem.code}"
