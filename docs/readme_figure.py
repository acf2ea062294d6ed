"""Save the figures of the site's front page as README.md shows them, in light and in dark.

    sphinx-build -b html docs docs/_build/html
    python docs/readme_figure.py docs/_build/html

Chromium draws the page; `docs/images/` gets the two files.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from browser import browser, wait  # noqa: E402

_BOX = """(() => {
    const cells = [...document.querySelectorAll('article .cell_output')].map(cell => cell.getBoundingClientRect());
    const [x, y] = [Math.min(...cells.map(box => box.x)), Math.min(...cells.map(box => box.y)) + scrollY];
    return {x, y, width: Math.max(...cells.map(box => box.right)) - x,
            height: Math.max(...cells.map(box => box.bottom)) + scrollY - y, scale: 2};
})()"""


def main(site: Path) -> None:
    """Save both figures."""
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as page:
        for theme, name in (("light", "digits.png"), ("dark", "digits-dark.png")):
            page.view(1100, theme)
            page.open(site / "index.html")
            wait(page, "document.readyState === 'complete' && document.querySelectorAll('article .cell_output').length")
            shot = page.call("Page.captureScreenshot", clip=page.js(_BOX), captureBeyondViewport=True)
            (HERE / "images" / name).write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
