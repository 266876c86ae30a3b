"""The documentation's site: it builds, every page is in its navigation, and it loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from browsers import chromium, empty_page, needs_chromium
from build_site import CONFIGURATION, documents, links
from paths import ROOT
from playwright.sync_api import expect

# The generator needs Python 3.11. CI has it.
generator = pytest.mark.skipif(sys.version_info < (3, 11), reason="zensical needs Python 3.11")
EXTERNAL = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\s(?:src|href)=["']?(?:https?:)?//""")
NAVIGATION = CONFIGURATION.read_text().partition("nav = [")[2].partition("\n]\n")[0]


def test_every_page_is_in_the_navigation_once() -> None:
    """If this fails for a new page, add a line for it to docs/site/zensical.toml."""
    in_navigation = sorted(re.findall(r'= "([^"]+\.md)"', NAVIGATION))
    assert in_navigation == sorted(page.relative_to(ROOT).as_posix() for page in documents())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without warnings."""
    folder = tmp_path_factory.mktemp("docs")
    program = ROOT / "docs" / "site" / "build_site.py"
    done = subprocess.run(
        [sys.executable, str(program), str(folder)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@generator
def test_it_has_every_page(site: Path) -> None:
    pages = {page.relative_to(ROOT).with_suffix(".html").as_posix() for page in documents()}
    pages = {page.replace("README.html", "index.html") for page in pages}
    built = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    assert pages | {"404.html"} == built


@generator
def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert pages
    assert [page.name for page in pages if EXTERNAL.search(page.read_text())] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?(?:https?:)?//|@import", styles)


@generator
@needs_chromium
def test_its_search_works_from_the_file_system(site: Path) -> None:
    with chromium() as browser, empty_page(browser) as page:
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__button")
        page.get_by_role("combobox", name="Search").fill("max_rolling_batch_size")
        expect(page.get_by_text("Dynamic batch").first).to_be_visible()


@generator
def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages" / "docs").mkdir(parents=True)
    (tmp_path / "pages" / "docs" / "structure.md").write_text(
        "# Structure\n\n[a](no-such-page.md) [b](structure.md#no-heading)\n"
    )
    (tmp_path / "zensical.toml").write_text(
        re.sub(r"nav = \[.*?\n\]\n", "", CONFIGURATION.read_text(), flags=re.DOTALL)
    )
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode != 0
    assert "docs/structure.md" in done.stdout + done.stderr
    assert [text for text in ("anchor", "page does not exist") if text not in done.stdout + done.stderr] == []


def test_external_links_are_complete_addresses() -> None:
    """Nothing is fetched, because the tests do not depend on other hosts."""
    external = [target for page in documents() for target in links(page.read_text()) if ":" in target]
    assert external
    assert [target for target in external if not re.fullmatch(r"https://[\w.-]+\.[a-z]+(/\S*)?", target)] == []
