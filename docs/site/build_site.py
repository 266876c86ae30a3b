"""Builds the documentation's site: `python docs/site/build_site.py build/docs`, or `make docs`.

The pages are copied to where they are in the repository, so that the links that work there work on the site. Other
files that pages link to, such as examples, are copied beside them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGURATION = Path(__file__).parent / "zensical.toml"
FILES = ("tables.css", "iframe-worker.js", "iframe-worker.LICENSE")
"""Of the site only. They are beside this program."""


def documents() -> list[Path]:
    """Return all pages."""
    patterns = ("*.md", "docs/*.md", "sagemaker/*.md", "examples/*.md", "examples/*/*.md")
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def links(text: str) -> list[str]:
    """Return the targets of a page's links and pictures."""
    without_code = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^()\s]+)\)", without_code)


def copy_pages(folder: Path) -> None:
    """Copy the pages, and every file that they link to."""
    found = set(documents())
    for page in documents():
        targets = [target.partition("#")[0] for target in links(page.read_text()) if "://" not in target]
        linked = {(page.parent / target).resolve() for target in targets if target}
        found |= {path for path in linked if path.is_file()}  # the generator says which of the others is missing where
    for path in sorted(found):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def build(folder: Path) -> int:
    """Build the site in `folder`/site, from nothing. Return the generator's exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    copy_pages(folder / "pages")
    for name in FILES:
        shutil.copy(Path(__file__).parent / name, folder / "pages")
    shutil.copy(CONFIGURATION, folder)
    return subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
