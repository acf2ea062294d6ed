"""The audit as one self-contained HTML page with embedded thumbnails, light or dark as the reader's system.

Names of files and classes are untrusted: they are escaped and isolated from the direction of the surrounding text, and
a content security policy forbids all scripts and requests.
"""

from __future__ import annotations

import base64
import html
import itertools
from collections.abc import Iterator, Sequence

from vitreous.audit.findings import KINDS, LEVELS, Audit, AuditImage, Finding
from vitreous.audit.look import to_jpeg
from vitreous.audit.watch import make_thumbnails
from vitreous.data.sources.scan import Progress
from vitreous.files.text import MAX_NAME_LENGTH, html_text

__all__ = ["page"]

_MAX_THUMBNAILS = 1500  # in a page: 6 MB
_MAX_SHOWN = 12  # images of one finding that are shown; of the others only the names
_MAX_LINE = 4000  # characters of a sentence, which may contain several names
_MAX_OPEN = 200  # findings of a kind that are not folded

_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Audit of {title}</title>
<style>
:root {{ color-scheme: light dark; --back: #fff; --text: #1c1c1e; --soft: #5a5a62; --line: #dcdce2; --card: #f6f6f8;
  --error: #b3261e; --warning: #8a5200; --note: #3d5a80; --link: #0b57b0 }}
@media (prefers-color-scheme: dark) {{ :root {{ --back: #17171a; --text: #ececf0; --soft: #a9a9b3; --line: #3a3a42;
  --card: #212126; --error: #ff8a80; --warning: #ffc069; --note: #9dc1f0; --link: #8ab8ff }} }}
body {{ margin: 0 auto; max-width: 72rem; padding: 1.5rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif }}
h1 {{ font-size: 1.6rem; margin: 0 0 .25rem }}
h2 {{ font-size: 1.2rem; margin: 2.5rem 0 .25rem }}
p {{ margin: .25rem 0 .75rem; max-width: 48rem }}
a {{ color: var(--link) }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ text-align: left; padding: .3rem 1.25rem .3rem 0; border-bottom: 1px solid var(--line) }}
td.count {{ text-align: right; font-variant-numeric: tabular-nums }}
.soft {{ color: var(--soft) }}
.error {{ color: var(--error); font-weight: 600 }}
.warning {{ color: var(--warning); font-weight: 600 }}
.note {{ color: var(--note) }}
ol {{ list-style: none; margin: 0; padding: 0 }}
ol.cards {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: .75rem }}
ol.cards > li {{ background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .75rem;
  content-visibility: auto; contain-intrinsic-size: auto 15rem; overflow: hidden }}
.row {{ display: flex; flex-wrap: wrap; gap: .6rem; margin: 0; padding: 0; list-style: none }}
.row li {{ width: 136px }}
.row img, .none {{ display: flex; width: 128px; height: 128px; object-fit: contain; background: var(--back);
  border: 1px solid var(--line); border-radius: .25rem; align-items: center; justify-content: center;
  color: var(--soft); font-size: .8rem }}
.name {{ font-size: .8rem; overflow-wrap: anywhere; line-height: 1.3; display: block; margin-top: .2rem }}
.what {{ margin: 0 0 .4rem; overflow-wrap: anywhere }}
summary {{ cursor: pointer; padding: .5rem 0; color: var(--link) }}
:focus-visible {{ outline: 3px solid var(--link); outline-offset: 2px }}
</style>
</head>
<body>
<main>
"""


def page(result: Audit, progress: Progress = lambda done, total: None) -> Iterator[str]:
    """Yield the page in parts; `progress` is called while thumbnails are created."""
    thumbs = _thumbs(result, progress)
    yield _HEAD.format(title=html_text(result.name))  # <bdi> is not allowed in a title
    yield f"<h1>Audit of {_safe(result.name)}</h1>\n"
    yield f'<p class="soft">{len(result.images):,} images: {result.describe_counts()}.</p>\n'
    for note in result.notes:
        yield f"<p>{_safe(note, _MAX_LINE)}</p>\n"
    yield from _contents(result)
    for name, findings in result.by_kind().items():
        kind = KINDS[name]
        yield f'<section aria-labelledby="{name}">\n<h2 id="{name}">{html.escape(kind.title)} '
        yield f'<span class="soft">({len(findings):,})</span></h2>\n'
        yield f'<p><span class="{kind.level}">{kind.level}</span>: {html.escape(kind.meaning)}</p>\n'
        yield from _cards(result, findings[:_MAX_OPEN], thumbs)
        if len(findings) > _MAX_OPEN:
            yield f"<details><summary>{len(findings) - _MAX_OPEN:,} more</summary>\n"
            yield from _cards(result, findings[_MAX_OPEN:], thumbs)
            yield "</details>\n"
        yield "</section>\n"
    yield "</main>\n</body>\n</html>\n"


def _contents(result: Audit) -> Iterator[str]:
    groups = result.by_kind()
    if not groups:
        yield "<p>No problems were found.</p>\n"
        return
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("level", "finding", "count"))
    yield f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n"
    for level in LEVELS:
        for name, findings in groups.items():
            if KINDS[name].level == level:
                link = f'<a href="#{name}">{html.escape(KINDS[name].title)}</a>'
                count = f'<td class="count">{len(findings):,}</td>'
                yield f'<tr><td class="{level}">{level}</td><td>{link}</td>{count}</tr>\n'
    yield "</tbody>\n</table>\n"


def _cards(result: Audit, findings: Sequence[Finding], thumbs: dict[int, str]) -> Iterator[str]:
    yield '<ol class="cards">\n'
    for finding in findings:
        yield "<li>"
        if finding.text:
            yield f'<p class="what">{_safe(finding.text, _MAX_LINE)}</p>'
        first, rest = finding.images[:_MAX_SHOWN], finding.images[_MAX_SHOWN:]
        if first:
            yield '<ul class="row">'
            yield from (_figure(result.images[n], thumbs.get(n), n in finding.drop) for n in first)
            yield "</ul>"
        if rest:
            names = "".join(f"<li>{_safe(result.images[n].name)}</li>" for n in rest)
            yield f"<details><summary>{len(rest):,} more</summary><ul>{names}</ul></details>"
        yield "</li>\n"
    yield "</ol>\n"


def _figure(image: AuditImage, thumb: str | None, is_dropped: bool) -> str:
    """Return an image with its name, label and split. An `alt` would make screen readers say the name twice."""
    thumbnail = f'<img src="{thumb}" alt="">' if thumb else '<span class="none" aria-hidden="true">not shown</span>'
    label = f'<span class="soft">label</span> {_safe(image.label)}, {image.split}'
    excluded = '<span class="name soft">in the exclusion list</span>' if is_dropped else ""
    return (
        f'<li>{thumbnail}<span class="name">{_safe(image.name)}</span><span class="name">{label}</span>{excluded}</li>'
    )


def _safe(text: str, limit: int = MAX_NAME_LENGTH) -> str:
    """Return untrusted text as HTML: escaped, and isolated from the direction of the surrounding text."""
    return f"<bdi>{html_text(text, limit)}</bdi>"


def _thumbs(result: Audit, progress: Progress) -> dict[int, str]:
    """Return data URIs of thumbnails by image index, for the first images of findings, in order of severity.

    Files are opened in watched processes, because a damaged one could crash this process.
    """
    order = (n for finding in result.findings for n in finding.images[:_MAX_SHOWN])
    readable = (n for n in dict.fromkeys(order) if result.images[n].facts.thumb)
    chosen = list(itertools.islice(readable, _MAX_THUMBNAILS))
    files = {n: path for n in chosen if (path := result.images[n].path) is not None}
    jpegs = dict(zip(files, make_thumbnails(list(files.values()), progress=progress), strict=True))
    for n in chosen:
        if n not in files:
            jpegs[n] = base64.b64encode(to_jpeg(result.images[n].pixels().convert("RGB"))).decode("ascii")
    return {n: f"data:image/jpeg;base64,{jpeg}" for n, jpeg in jpegs.items() if jpeg}
