"""Write a page at each former address of the documentation site, which leads to the present one.

Usage: python tools/write_redirects.py SITE
"""

import sys
from html import escape
from pathlib import Path

# pages that were renamed: former and present name
RENAMED = {
    "engines": "training_engine",
    "experiments": "managing_runs",
    "migration": "migration_torchtitan",
    "numerics": "loss_parity",
    "operations": "troubleshooting",
    "reliability": "fault_injection",
    "reproducing": "reproducibility",
    "stores": "object_storage",
    "trackers": "experiment_tracking",
}


def build_redirect(target: str, title: str = "Moved") -> str:
    """Build a page that leads to another one, also without JavaScript."""
    address = escape(target, quote=True)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n"
        f'<meta name="robots" content="noindex">\n<link rel="canonical" href="{address}">\n'
        f'<meta http-equiv="refresh" content="0; url={address}">\n</head>\n'
        f'<body><p>This page is <a href="{address}">here</a>.</p></body>\n</html>\n'
    )


def write_redirects(site: Path) -> None:
    """Write the pages.

    Raises:
        ValueError: A former name is that of a page, or a present one is that of none.
    """
    for former, present in RENAMED.items():
        page, target = site / f"{former}.html", site / f"{present}.html"
        if page.exists() or not target.exists():
            raise ValueError(f"cannot lead from {page.name} to {target.name}")
        page.write_text(build_redirect(target.name), encoding="utf-8")


if __name__ == "__main__":
    write_redirects(Path(sys.argv[1]))
