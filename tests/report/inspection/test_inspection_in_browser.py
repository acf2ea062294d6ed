"""The page of an inspection in Chromium: narrow and wide, light and dark, read by assistive technology, and printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image
from test_inspection_page import classifier_of

import vitreous
from browser import browser
from vitreous.report.inspection.page import page


def test_page_fits_is_named_and_prints(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (50, 70, 3), np.uint8)) for _ in range(10)]
    path, profile = tmp_path / "page.html", tmp_path / "profile"
    path.write_text("".join(page(vitreous.inspect(classifier_of(), images, quiet=True))), encoding="utf-8")
    profile.mkdir()
    with browser(profile) as view:
        view.open(path)
        for width in (390, 1400):
            for theme in ("light", "dark"):
                view.view(width, theme)
                wide, inner = view.js("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
                assert wide <= inner, (width, theme)
                back = view.js("getComputedStyle(document.body).backgroundColor")
                assert (sum(map(int, re.findall(r"\d+", back)[:3])) > 600) == (theme == "light")
        assert view.js("[...document.images].filter(each => !each.naturalWidth).length") == 0
        assert view.unnamed_images() == []
        headings = view.js("[...document.querySelectorAll('h2')].map(each => each.textContent)")
        titles = [title.decode("latin-1") for title in re.findall(rb"/Title \((.*?)\)", view.pdf())]
        assert headings[-2:] == ["Faithfulness of the maps", "The model"]
        assert [title for title in titles if title in headings[-2:]] == headings[-2:]
        assert sum(title.startswith("#") for title in titles) == len(images)
        assert view.complaints == []
        assert view.requests == [path.as_uri()]
