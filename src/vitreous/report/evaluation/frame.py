"""The frame of the page: its style sheet, its one script, and the policy that forbids every other script and request.

The script sorts tables, names the cell of the confusion matrix, and opens folded parts before printing. Without it the
page shows the same figures.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

from vitreous.files.text import html_text

__all__ = ["foot", "head"]

_STYLE = """\
:root { color-scheme: light dark; --back: #fff; --text: #1c1c1e; --soft: #5a5a62; --line: #dcdce2; --card: #f6f6f8;
  --link: #0b57b0; --blue: #0072b2; --orange: #d55e00; --s2: #007a5a; --s3: #a8538a; --s4: #7a6a00; --grey: #85858f;
  --error: #b3261e }
@media (prefers-color-scheme: dark) { :root { --back: #17171a; --text: #ececf0; --soft: #a9a9b3; --line: #3a3a42;
  --card: #212126; --link: #8ab8ff; --blue: #56b4e9; --orange: #ff9d4d; --s2: #3ecf9f; --s3: #e29ccb; --s4: #e0d04a;
  --grey: #8c8c97; --error: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1.25rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .25rem }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem }
p { margin: .25rem 0 .75rem; max-width: 48rem }
a { color: var(--link) }
nav ul, .legend { display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; list-style: none; padding: 0; margin: .75rem 0 }
.soft, .tick, caption { color: var(--soft) }
.wrong { color: var(--error) }
.scroll { overflow-x: auto; max-width: 100% }
.tall { max-height: 34rem; overflow: auto }
.tall thead th { position: sticky; top: 0; background: var(--back); z-index: 1 }
table { border-collapse: collapse; margin: .5rem 0 }
caption { text-align: left; padding-bottom: .3rem; font-size: .9rem }
th, td { text-align: left; padding: .28rem 1.1rem .28rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
tbody th { font-weight: 400 }
td bdi, th bdi { overflow-wrap: anywhere }
thead th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0;
  cursor: pointer; text-align: inherit }
thead th button::after { content: "\\2195"; color: var(--soft); padding-left: .25rem; font-weight: 400 }
th[aria-sort=ascending] button::after { content: "\\2191"; color: var(--link) }
th[aria-sort=descending] button::after { content: "\\2193"; color: var(--link) }
svg text { font: 12px system-ui, sans-serif; fill: var(--text) }
svg text.tick { fill: var(--soft) }
.grid { stroke: var(--line) } .axis { stroke: var(--soft) }
.line { fill: none; stroke-width: 2; stroke: var(--c) } .dot { fill: var(--c) } .bar { fill: var(--c) }
.bar.blue { opacity: .55 }
.blue, .s0 { --c: var(--blue) } .orange, .s1 { --c: var(--orange) } .s2 { --c: var(--s2) } .s3 { --c: var(--s3) }
.s4 { --c: var(--s4) } .grey { --c: var(--grey) }
.dashed { stroke-dasharray: 4 4; stroke-width: 1.5 }
.s1 { stroke-dasharray: 9 3 } .s2 { stroke-dasharray: 2 3 } .s3 { stroke-dasharray: 9 3 2 3 }
.s4 { stroke-dasharray: 5 2 }
.key { display: inline-block; width: 1.6rem; height: 0; border-top: 3px solid var(--c); vertical-align: middle;
  margin-right: .4rem }
.key.s1, .key.s4 { border-top-style: dashed } .key.s2, .key.s3 { border-top-style: dotted }
.charts { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; margin: .75rem 0 }
figure { margin: 0 } figcaption { font-size: .9rem } .chart svg { width: 100%; height: auto; display: block }
.chart { width: min(100%, 24rem) } .chart.wide { width: min(100%, 34rem) } .chart.medium { width: min(100%, 17rem) }
.chart.small { width: min(calc(50% - .75rem), 12.5rem) }
.ci { width: 8rem; height: .9rem; display: block } .ci path { stroke: var(--line) }
.ci rect { fill: var(--blue); opacity: .45 } .ci circle { fill: var(--blue) }
.matrix { overflow: auto; max-width: 100%; max-height: 92vh; margin-top: .75rem }
.matrix svg { display: block; max-width: none }
.matrix .empty { fill: var(--card) } .hit { fill: var(--blue) } .miss { fill: var(--orange) }
.matrix text { font-size: 11px } .matrix text.on { fill: var(--back); font-weight: 600 }
.matrix .cursor { fill: none; stroke: var(--text); stroke-width: 2 }
.l0 { opacity: .1 } .l1 { opacity: .2 } .l2 { opacity: .32 } .l3 { opacity: .45 } .l4 { opacity: .6 }
.l5 { opacity: .8 }
.swatch { width: 30px; height: 14px; vertical-align: -2px; margin-right: .35rem }
.readout { min-height: 1.5rem; overflow-wrap: anywhere }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); gap: .9rem .75rem;
  list-style: none; margin: .75rem 0; padding: 0 }
.sheet li { font-size: .85rem; line-height: 1.35; overflow-wrap: anywhere; break-inside: avoid }
.sheet span { display: block }
.thumb { display: block; width: 128px; height: 128px; object-fit: contain; background: var(--card);
  border: 1px solid var(--line); border-radius: .25rem; margin-bottom: .25rem }
.thumb[src^="data:image/png"] { image-rendering: pixelated }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: 0 2rem }
.pair { border-top: 1px solid var(--line); padding: .6rem 0; break-inside: avoid }
.pair .sheet { grid-template-columns: repeat(4, 1fr); gap: .5rem; margin: .25rem 0 }
.pair .thumb { width: 100%; height: auto; aspect-ratio: 1 }
td.why { min-width: 15rem; color: var(--soft) }
summary { cursor: pointer; padding: .35rem 0; color: var(--link) }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
@media (max-width: 30rem) { body { padding: .9rem } th, td { padding-right: .8rem } .thumb { width: 100%; height: auto;
  aspect-ratio: 1 } .sheet { grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr)) } }
@media print { :root { --back: #fff; --text: #000; --soft: #444; --line: #bbb; --card: #f2f2f2; --link: #000;
  --blue: #0072b2; --orange: #d55e00; --s2: #007a5a; --s3: #a8538a; --s4: #7a6a00; --grey: #777;
  color-scheme: light }
  body { max-width: none; font-size: 11pt; print-color-adjust: exact; -webkit-print-color-adjust: exact }
  nav, .readout, thead button::after { display: none } .tall, .matrix, .scroll { max-height: none; overflow: visible }
  .matrix svg { max-width: 100%; height: auto } figure, tr, .pair { break-inside: avoid }
  h2, h3 { break-after: avoid } }
"""

_SCRIPT = """\
"use strict";
const key = (row, column) => { const cell = row.cells[column], value = cell.dataset.v;
  return value === undefined ? cell.textContent.trim() : value === "" ? NaN : Number(value); };
for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button"; button.append(...head.childNodes); head.append(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending", body = table.tBodies[0];
      const rows = [...body.rows].map((row, n) => [key(row, column), n, row]);
      rows.sort(([a, i], [b, j]) => { if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
        const by = typeof a === "string" ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
        return (rising ? by : -by) || i - j; });
      table.tHead.querySelectorAll("th").forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      body.append(...rows.map(([, , row]) => row)); }); }); }
const source = document.getElementById("cells");
if (source) {
  const {names, support, cells} = JSON.parse(source.textContent), box = document.querySelector(".matrix");
  const drawing = box.querySelector("svg"), cursor = box.querySelector(".cursor");
  const left = Number(box.dataset.left), side = Number(box.dataset.cell), last = names.length - 1;
  const readout = document.querySelector(".readout"), counts = new Map(cells.map(([r, c, n]) => [r * 1e5 + c, n]));
  let at = null;
  const show = (r, c) => { at = [r, c]; const n = counts.get(r * 1e5 + c) || 0;
    const share = support[r] ? (100 * n / support[r]).toFixed(1) : "0.0";
    readout.textContent = `${names[r]} predicted as ${names[c]}: ${n} of ${support[r]} images (${share}%)`;
    for (const [name, value] of [["x", left + c * side], ["y", left + r * side], ["width", side], ["height", side]])
      cursor.setAttribute(name, value); };
  box.addEventListener("pointermove", event => { const area = drawing.getBoundingClientRect();
    const scale = drawing.viewBox.baseVal.width / area.width;
    const c = Math.floor(((event.clientX - area.left) * scale - left) / side);
    const r = Math.floor(((event.clientY - area.top) * scale - left) / side);
    if (r >= 0 && c >= 0 && r <= last && c <= last) show(r, c); });
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  box.addEventListener("keydown", event => { const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    if (!at) { show(0, 0); return; }
    let [r, c] = at;
    do { r += step[0]; c += step[1]; } while (r >= 0 && c >= 0 && r <= last && c <= last && !counts.has(r * 1e5 + c));
    if (r >= 0 && c >= 0 && r <= last && c <= last) show(r, c); }); }
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(each => { each.open = true; }));
"""

_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode("ascii")
_POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'"


def head(title: str) -> Iterator[str]:
    """Yield everything before the content; the title is untrusted text."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{html_text(title)}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n<main>\n"


def foot() -> str:
    """Return everything after the content."""
    return f"</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
