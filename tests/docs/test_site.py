"""The site as built: links, figures and weight, and what readers do in Chromium with the files, without a network."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock

from browser import Browser, browser, static_host, wait
from reference_pages.names import public_names

DOCS = Path(__file__).resolve().parents[2] / "docs"
WRITTEN = sorted(
    str(page.relative_to(DOCS).with_suffix(".html"))
    for page in DOCS.rglob("*.md")
    if not {"generated", "_build"} & set(page.parts)
)
GENERATED = [
    "reference/generated/options/train.html",
    "reference/generated/names/entry.html",
    "search.html",
    "tutorials/gallery/index.html",
    "tutorials/gallery/plot_maps.html",
]
SKIP_LINK = "#pst-skip-link a"

pytestmark = pytest.mark.timeout(1800)  # the first test of each worker waits for the build, which trains small models


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once, with warnings as errors."""
    for package in ("sphinx", "myst_nb", "sphinx_gallery", "pydata_sphinx_theme", "sphinx_design", "sphinx_copybutton"):
        pytest.importorskip(package, reason="the site is not built: pip install -e '.[docs]'")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with FileLock(f"{folder}.lock"):  # the build writes into docs/: one for all workers
        if not folder.exists():
            folder.mkdir()
            command = [
                sys.executable,
                "-m",
                "sphinx",
                "-q",
                "-W",
                "--keep-going",
                "-d",
                folder / "trees",
                DOCS,
                folder / "html",
            ]
            quiet = {**os.environ, "NO_COLOR": "1"}
            built = subprocess.run(command, check=False, capture_output=True, text=True, env=quiet)
            (folder / "said.txt").write_text(f"{built.returncode}\n{built.stderr}", encoding="utf-8")
    said = (folder / "said.txt").read_text(encoding="utf-8")
    assert said.startswith("0\n"), said
    return folder / "html"


class _Page(HTMLParser):
    """What a page leads to, what can be led to, and its images."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links, self.loaded, self.ids, self.images = list[str](), list[str](), set[str](), list[dict[str, str]]()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if "href" in values:
            (self.links if tag == "a" else self.loaded).append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])
        if tag == "img":
            self.images.append(values)


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[Path, _Page]:
    """Every page by its file."""
    return {file: _Page(file) for file in sorted(site.rglob("*.html"))}


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, _Page]) -> None:
    assert len(pages) > len(WRITTEN)
    dead = []
    for file, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = Path(os.path.normpath(file.parent / unquote(parts.path))) if parts.path else file
            known = target.is_file() and target.is_relative_to(site)
            if not known or (parts.fragment and unquote(parts.fragment) not in pages[target].ids):
                dead.append((str(file.relative_to(site)), link))
    assert dead == []


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, _Page]) -> None:
    loaded = [link for page in pages.values() for link in page.loaded]
    sheets = [sheet.read_text(encoding="utf-8") for sheet in site.rglob("*.css")]
    loaded += [link for sheet in sheets for link in re.findall(r"url\(\s*[\"']?([^\"')\s]+)", sheet)]
    assert loaded
    assert [link for link in loaded if urlsplit(link).netloc] == []


def test_every_figure_has_a_text(pages: dict[Path, _Page]) -> None:
    images = [image for page in pages.values() for image in page.images]
    assert len(images) >= 10
    assert [image["src"] for image in images if len(image.get("alt", "")) < 20] == []


def test_every_public_name_is_on_a_page(pages: dict[Path, _Page]) -> None:
    """What Sphinx made of the names: it may leave out what it is asked for."""
    listed = {f"{module}.{name}" for module, names in public_names().items() for name in names if module != "vitreous"}
    assert len(listed) > 1000
    assert listed - set().union(*(page.ids for page in pages.values())) == set()


def test_every_icon_is_drawn(pages: dict[Path, _Page], site: Path) -> None:
    drawn = set(re.findall(r"\.(fa-[\w-]+) \{", (DOCS / "static/icons.css").read_text(encoding="utf-8")))
    named = {name for file in pages for name in re.findall(r"\bfa-[\w-]+", file.read_text(encoding="utf-8"))}
    named |= set(
        re.findall(r"\bfa-[\w-]+", (site / "_static/scripts/pydata-sphinx-theme.js").read_text(encoding="utf-8"))
    )
    assert named - {"fa-lg"} == drawn


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def reader(chromium: Browser) -> Iterator[Browser]:
    """A browser whose pages say nothing and ask nobody; the theme's remarks on its choices are none of these."""
    chromium.view(1400, "light")
    yield chromium
    said = [each for each in chromium.complaints if '"[PST]: ' not in each]
    assert said == []
    assert [url for url in chromium.requests if urlsplit(url).scheme != "file"] == []


def visit(page: Browser, file: Path) -> None:
    page.events.clear()
    page.open(file)


@pytest.mark.parametrize("name", [*WRITTEN, *GENERATED])
def test_pages_fit(reader: Browser, site: Path, name: str) -> None:
    visit(reader, site / name)
    for theme, shade in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 24, 30)")):
        for width in (390, 1400):
            reader.view(width, theme)
            wait(reader, f"getComputedStyle(document.body).backgroundColor === '{shade}'", 10)
            assert reader.js("document.documentElement.scrollWidth") <= width, (theme, width)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_front_page_is_at_most_500_kb(chromium: Browser, site: Path, theme: str) -> None:
    """As a static host without compression sends it."""
    chromium.call("Page.navigate", url="about:blank")
    chromium.view(1400, theme)
    chromium.events.clear()
    with static_host(site) as address:
        chromium.call("Network.clearBrowserCache")
        chromium.call("Page.navigate", url=address)
        wait(chromium, "document.readyState === 'complete' && [...document.images].some(each => each.naturalWidth)")
        wait(chromium, "performance.now() > 1000")  # what scripts and style sheets ask for after the page is there
        shown = chromium.js("[...document.images].filter(each => each.offsetWidth).map(each => each.className)")
        events = {kind: _of_kind(chromium, kind) for kind in ("loadingFinished", "loadingFailed", "requestWillBeSent")}
    asked = [each["request"]["url"] for each in events["requestWillBeSent"]]
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    assert events["loadingFailed"] == []
    assert shown == [f"only-{theme}"]
    assert 100_000 < sum(each["encodedDataLength"] for each in events["loadingFinished"]) <= 500_000


def _of_kind(page: Browser, kind: str) -> list[dict]:
    return [event["params"] for event in page.events if event.get("method") == f"Network.{kind}"]


def test_search_finds_a_page(reader: Browser, site: Path) -> None:
    """By keyboard alone, from the front page."""
    visit(reader, site / "index.html")
    press_until(reader, "document.activeElement.matches('.search-button__button, .search-button-field')")
    reader.key("Enter")
    wait(reader, "document.activeElement.matches('#pst-search-dialog input')")
    reader.call("Input.insertText", text="imbalanced classes")
    reader.key("Enter")
    first = wait(reader, "document.querySelector('#search-results li a')?.href ?? ''")
    assert first.startswith((site / "how-to/imbalanced-classes.html").as_uri())


@pytest.mark.parametrize("question", ["ONNX", "--resume", "class weights", "Rope2d", "unsure"])
def test_search_finds_something(reader: Browser, site: Path, question: str) -> None:
    visit(reader, site / "index.html")
    address = f"{(site / 'search.html').as_uri()}?q={question.replace(' ', '+')}"
    reader.call("Page.navigate", url=address)
    assert wait(reader, "document.querySelectorAll('#search-results li a').length")


def press_until(page: Browser, condition: str) -> None:
    """Press Tab until a condition holds."""
    for _ in range(20):
        page.key("Tab")
        if page.js(condition):
            return
    pytest.fail(f"20 times Tab, and not {condition}")


def test_the_skip_link_comes_first(reader: Browser, site: Path) -> None:
    visit(reader, site / "how-to/calibrate.html")
    reader.key("Tab")
    assert reader.js(f"document.activeElement.matches('{SKIP_LINK}')")
    wait(reader, f"document.querySelector('{SKIP_LINK}').getBoundingClientRect().top >= 0", 10)  # it slides in
    reader.key("Enter")
    assert reader.js("location.hash") == "#main-content"
    reader.key("Tab")
    assert reader.js("document.querySelector('main').contains(document.activeElement)")


def test_the_theme_is_switched_by_keyboard_and_kept(reader: Browser, site: Path) -> None:
    try:
        visit(reader, site / "index.html")
        for theme in ("light", "dark"):
            press_until(reader, "document.activeElement.matches('.theme-switch-button')")
            reader.key("Enter")
            wait(reader, "document.querySelector('.theme-switch-container .dropdown-menu').matches('.show')")
            press_until(reader, f"document.activeElement.matches('[data-mode={theme}]')")
            reader.key("Enter")
            assert reader.js("document.documentElement.dataset.theme") == theme
        visit(reader, site / "how-to/index.html")
        assert reader.js("document.documentElement.dataset.theme") == "dark"
    finally:
        reader.js("localStorage.clear()")


def test_the_menu_opens_on_a_narrow_screen(reader: Browser, site: Path) -> None:
    reader.view(390, "light")
    visit(reader, site / "how-to/calibrate.html")
    press_until(reader, "document.activeElement.matches('.primary-toggle')")
    reader.key("Enter")
    wait(reader, "document.querySelector('#pst-primary-sidebar-modal').open")
    assert "Fit a run into memory" in reader.js("document.querySelector('#pst-primary-sidebar-modal').innerText")
    reader.key("Escape")
    assert not reader.js("document.querySelector('#pst-primary-sidebar-modal').open")


def test_figures_have_a_name_for_assistive_technology(reader: Browser, site: Path) -> None:
    visit(reader, site / "index.html")
    wait(reader, "[...document.images].some(each => each.naturalWidth)")
    assert reader.unnamed_images() == []


_LOOKS = """
const looks = () => [...document.querySelectorAll('body *')].map(element => ['', '::before', '::after'].map(part => {
  const style = getComputedStyle(element, part);
  return [...style].map(name => `${name}: ${style.getPropertyValue(name)}`).join('; ');
}).join());
const swap = (link, address) => new Promise(done => { link.onload = done; link.href = address; });
"""
_COMPARE = """(async () => {
  document.head.insertAdjacentHTML('beforeend', '<style>* {transition: none !important}</style>');
  const lean = looks(), links = [...document.querySelectorAll('link[rel=stylesheet]')];
  await Promise.all(links.map(link => swap(link, link.href.replace('_static/', '_static/full/'))));
  const full = looks(), elements = document.querySelectorAll('body *');
  return [lean.length, [...elements].filter((_, place) => lean[place] !== full[place]).map(each => each.outerHTML)];
})()"""


@pytest.fixture(scope="session")
def full_site(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with the style sheets as the packages have them below `_static/full`."""
    copy = shutil.copytree(site, tmp_path_factory.mktemp("full") / "html")
    sphinx_design, theme = (importlib.import_module(name) for name in ("sphinx_design", "pydata_sphinx_theme"))
    shutil.copytree(site / "_static", copy / "_static/full")
    theirs = Path(theme.__file__).parent / "theme/pydata_sphinx_theme/static/styles/pydata-sphinx-theme.css"
    shutil.copy(theirs, copy / "_static/full/styles")
    shutil.copy(Path(sphinx_design.__file__).parent / "static/sphinx-design.min.css", copy / "_static/full")
    return copy


@pytest.mark.parametrize(("name", "width"), [("index.html", 1400), ("how-to/export.html", 390)])
def test_lean_styles_look_the_same(reader: Browser, full_site: Path, name: str, width: int) -> None:
    """Every element looks as it does with the style sheets that the packages have."""
    reader.view(width, "light")
    visit(reader, full_site / name)
    reader.js(_LOOKS)
    found = reader.call("Runtime.evaluate", expression=_COMPARE, awaitPromise=True, returnByValue=True)
    count, different = found["result"]["value"]
    assert count > 50
    assert different == []
