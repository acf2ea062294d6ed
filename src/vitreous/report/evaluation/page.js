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
