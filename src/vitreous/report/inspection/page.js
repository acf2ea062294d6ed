// Shows what the patch under the pointer or the keyboard's cursor attends to. Weights are in the page, and nothing is
// fetched. Token t of an image is a prefix token if t < prefix, and otherwise patch t - prefix in raster order.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const colours = bytes(page.colours);
  const percent = (share) => (100 * share).toFixed(share < 0.1 ? 1 : 0) + " %";

  // Row of weights of one query: Float32Array of all tokens.
  function read(store, block, map, query) {
    store.bytes ??= bytes(store.weights);
    const tokens = store.prefix.length + store.grid[0] * store.grid[1];
    const maps = store.layers.length * (1 + store.heads.length);
    store.scales ??= new DataView(store.bytes.buffer, maps * tokens * tokens);
    const row = (block * (1 + store.heads.length) + map) * tokens + query;
    const scale = store.scales.getFloat32(4 * row, true) / 255;
    return Float32Array.from(store.bytes.subarray(row * tokens, (row + 1) * tokens), (weight) => weight * scale);
  }

  function tokenName(store, token) {
    if (token < store.prefix.length) return store.prefix[token];
    const cell = token - store.prefix.length;
    return `row ${Math.floor(cell / store.grid[1]) + 1}, column ${(cell % store.grid[1]) + 1}`;
  }

  function draw(canvas, weights) {
    const pixels = new ImageData(canvas.width, canvas.height);
    const most = Math.max(...weights) || 1;
    weights.forEach((weight, cell) => {
      const at = 3 * Math.round((255 * weight) / most);
      pixels.data.set([colours[at], colours[at + 1], colours[at + 2], 255], 4 * cell);
    });
    canvas.getContext("2d").putImageData(pixels, 0, 0);
  }

  function describe(store, state, row) {
    const patches = row.subarray(store.prefix.length);
    const best = patches.indexOf(Math.max(...patches)) + store.prefix.length;
    const who = state.query < store.prefix.length ? `The ${tokenName(store, state.query)}`
      : `The patch in ${tokenName(store, state.query)}`;
    const head = state.map ? `head ${store.heads[state.map - 1]}` : "mean of the heads";
    const special = store.prefix.map((name, n) => `, ${percent(row[n])} to the ${name}`).slice(0, 3).join("");
    return `${who} attends most to the patch in ${tokenName(store, best)}: ${percent(row[best])} of its attention` +
      `${special} (block ${store.layers[state.block]}, ${head}; uniform attention is ${percent(1 / row.length)}).`;
  }

  for (const viewer of document.querySelectorAll(".viewer")) {
    const store = page.images[Number(viewer.dataset.image)];
    const [h, w] = store.grid;
    const state = { block: store.layers.length - 1, map: 0, query: store.prefix.length ? 0 : Math.floor(h / 2) * w + (w >> 1) };
    const find = (name) => viewer.querySelector(`.${name}`);
    const patches = find("patches"), cursor = find("cursor"), block = find("block-slider"), head = find("head-slider");

    function show() {
      const row = read(store, state.block, state.map, state.query);
      draw(find("map"), row.subarray(store.prefix.length));
      const cell = state.query - store.prefix.length;
      cursor.hidden = cell < 0;
      if (cell >= 0) {
        Object.assign(cursor.style, { width: `${100 / w}%`, height: `${100 / h}%`,
          left: `${(100 * (cell % w)) / w}%`, top: `${(100 * Math.floor(cell / w)) / h}%` });
      }
      find("said").textContent = describe(store, state, row);
      for (const [slider, text] of [[block, `block ${store.layers[state.block]}`],
        [head, state.map ? `head ${store.heads[state.map - 1]}` : "mean of heads"]]) {
        slider.setAttribute("aria-valuetext", text);
        slider.nextElementSibling.textContent = text;
      }
    }

    function choose(row, column) {
      const query = store.prefix.length + Math.min(h - 1, Math.max(0, row)) * w + Math.min(w - 1, Math.max(0, column));
      if (query !== state.query) {
        state.query = query;
        show();
      }
    }

    function point(event) {
      const box = patches.getBoundingClientRect();
      choose(Math.floor(((event.clientY - box.top) / box.height) * h), Math.floor(((event.clientX - box.left) / box.width) * w));
    }

    patches.addEventListener("pointermove", point);
    patches.addEventListener("pointerdown", point);
    patches.addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const cell = state.query - store.prefix.length;
      if (cell < 0) choose(0, 0);
      else choose(Math.floor(cell / w) + step[0], (cell % w) + step[1]);
    });
    patches.addEventListener("focus", () => {
      if (state.query < store.prefix.length) choose(Math.floor(h / 2), w >> 1);
    });
    block.addEventListener("input", () => { state.block = Number(block.value); show(); });
    head.addEventListener("input", () => { state.map = Number(head.value); show(); });
    viewer.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => {
      state.query = Number(button.dataset.token);
      show();
    }));
    show();
  }

  for (const slider of document.querySelectorAll(".opacity-slider")) {
    slider.addEventListener("input", () => {
      slider.closest("section").style.setProperty("--opacity", Number(slider.value) / 100);
      slider.nextElementSibling.textContent = `${slider.value} %`;
    });
  }
})();
