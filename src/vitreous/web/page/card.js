// One image on the page: what it is, how sure that is, and where the model looks.
class Stopped extends Error {} // the back end failed, not the image

const SHOWN_CLASSES = 5, SHOWN_LABELS = 20, SHOWN_SET = 12;
const VIEWS = { map: "Class map", attention: "Attention" };

const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);

function element(tag, attributes = {}, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...content);
  return made;
}

const isolated = (text) => element("bdi", { text });

class Card {
  static count = 0;

  // app: {backend, model, say, attempt}. The card is in the document from the start, and filled when the result is there.
  constructor(app, file, name) {
    Object.assign(this, { app, file, name, maps: new Map(), view: "none" });
    this.root = document.getElementById("card").content.firstElementChild.cloneNode(true);
    this.id = `image-${++Card.count}`;
    this.find("h3").append(isolated(name));
    this.find("h3").id = this.id;
    this.find("article").setAttribute("aria-labelledby", this.id);
    this.find(".again").addEventListener("click", async () => app.say(await this.classify()));
    this.find(".remove").addEventListener("click", () => this.remove());
    this.find(".remove").setAttribute("aria-label", `Remove ${name}`);
    paintScale(this.find(".colours"));
    document.getElementById("results").append(this.root);
  }

  find(selector) {
    return this.root.querySelector(selector);
  }

  remove() {
    const next = this.root.nextElementSibling ?? this.root.previousElementSibling;
    this.root.remove();
    this.app.removed(this);
    (next?.querySelector(".remove") ?? document.getElementById("files")).focus();
  }

  // Classifies the image and shows the result or the reason why there is none; returns a sentence for the status line.
  async classify() {
    this.root.dataset.state = "working";
    this.find(".waiting").textContent = "Classifying ...";
    this.find(".failure").hidden = this.find(".again").hidden = true;
    try {
      this.result = await this.app.attempt((backend) => backend.predict(this.file));
    } catch (error) {
      return this.fail(error);
    }
    this.root.result = this.result; // for programs that drive the page
    this.root.dataset.state = "done";
    this.showPhoto();
    return this.showResult();
  }

  fail(error) {
    this.root.dataset.state = "failed";
    const text = error.message.replace(/\.$/, "");
    this.find(".failure").textContent = `${this.name}: ${text}.`;
    this.find(".failure").hidden = false;
    this.find(".again").hidden = error instanceof Unreadable || document.documentElement.dataset.state !== "ready";
    return `${this.name}: ${text}`;
  }

  showPhoto() {
    const { preview, height, width } = this.result, stage = this.find(".stage");
    stage.hidden = !preview;
    if (!preview) return;
    stage.style.setProperty("--ratio", preview.width / preview.height);
    stage.style.maxWidth = `min(100%, ${(22 * preview.width) / preview.height}rem)`;
    const photo = this.find(".photo");
    [photo.width, photo.height] = [preview.width, preview.height];
    photo.getContext("2d").drawImage(preview, 0, 0);
    photo.setAttribute("aria-label", `${this.name}, ${width} by ${height} pixels`);
    preview.close?.();
  }

  showResult() {
    const { classes, multilabel } = this.app.model, { probabilities, unsure, set, labels } = this.result;
    this.order = Array.from(probabilities.keys()).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
    const [best] = this.order, rows = this.find("tbody");
    const given = labels ? this.order.filter((index) => labels[index]) : [best]; // several labels, or the one class
    const names = given.flatMap((index, n) => [n ? ", " : "", isolated(classes[index])]);
    this.find(".label").replaceChildren(...(given.length ? names : ["No label"]));
    this.find(".probability").textContent = labels ? "" : percent(probabilities[best]);
    this.find(".unsure").hidden = !unsure;
    const shown = labels ? Math.max(SHOWN_LABELS, given.length) : SHOWN_CLASSES;
    rows.replaceChildren(...this.order.slice(0, shown).map((index) => {
      const bar = element("span", { class: "bar" });
      bar.style.width = `${100 * probabilities[index]}%`;
      const row = element("tr", {}, element("th", { scope: "row" }, isolated(classes[index])),
        element("td", { class: "number", text: percent(probabilities[index]) }), element("td", { class: "track" }, bar));
      if (labels) {
        const threshold = percent(multilabel.thresholds[index]);
        row.append(element("td", { class: "number", text: `${labels[index] ? "given, \u2265" : "<"} ${threshold}` }));
        row.classList.toggle("soft", !labels[index]);
      }
      return row;
    }));
    const kind = labels ? "labels, each with its threshold," : "classes";
    this.find("caption").textContent = `Most probable of ${classes.length} ${kind} for ${this.name}`;
    this.showDecisions(unsure, set);
    if (this.result.preview !== null) this.offerMaps();
    if (labels) return `${this.name}: ${given.map((index) => classes[index]).join(", ") || "no label"}`;
    return `${this.name}: ${classes[best]}, ${percent(probabilities[best])}${unsure ? ", unsure" : ""}`;
  }

  showDecisions(unsure, set) {
    const { classes, abstention, conformal } = this.app.model;
    const held = set && this.order.filter((index) => set[index]);
    if (abstention) {
      const promise = `at least ${percent(abstention.required_precision)} of the predictions are right`;
      this.find(".decision").textContent = unsure ? `Unsure: below the threshold above which ${promise}.`
        : `Above the threshold above which ${promise}.`;
    }
    if (!held) return;
    const shown = held.slice(0, SHOWN_SET).flatMap((index, n) => [n ? ", " : "", isolated(classes[index])]);
    const more = held.length > SHOWN_SET ? ` and ${held.length - SHOWN_SET} more` : "";
    this.find(".set").replaceChildren(...(held.length ? ["One of ", ...shown, more] : ["No class fits"]),
      `. Such a set holds the true class with a chance of ${percent(conformal.coverage)}.`);
  }

  // Lets the user choose an overlay, if the model has maps.
  offerMaps() {
    const { model } = this.app, controls = this.find(".overlay");
    const views = Object.keys(VIEWS).filter((view) => (view === "map" ? model.maps : model.blocks));
    controls.hidden = !views.length;
    if (this.target !== undefined || !views.length) return;
    this.target = this.order[0];
    for (const [index, radio] of controls.querySelectorAll("input[type=radio]").entries()) {
      Object.assign(radio, { name: `view-${this.id}`, id: `view-${this.id}-${index}` });
      radio.nextElementSibling.htmlFor = radio.id;
      radio.closest("span").hidden = radio.value !== "none" && !views.includes(radio.value);
      radio.addEventListener("change", () => this.show({ view: radio.value }));
    }
    const target = this.find(".target"), block = this.find(".block"), opacity = this.find(".opacity");
    for (const [name, field] of Object.entries({ target, block, opacity })) {
      field.id = `${name}-${this.id}`;
      field.closest("div").querySelector("label").htmlFor = field.id;
    }
    target.addEventListener("change", () => this.show({ target: Number(target.value) }));
    Object.assign(block, { max: model.blocks || 1, value: model.blocks || 1 });
    this.block = (model.blocks || 1) - 1;
    block.addEventListener("input", () => this.show({ block: Number(block.value) - 1 }));
    opacity.addEventListener("input", () => {
      this.root.style.setProperty("--opacity", Number(opacity.value) / 100);
      opacity.nextElementSibling.textContent = `${opacity.value} %`;
    });
  }

  // Shows an overlay; `change` has what is new of view, target and block.
  async show(change) {
    Object.assign(this, change);
    const { view, target, block } = this;
    this.find(".of-map").hidden = view !== "map";
    this.find(".of-attention").hidden = view !== "attention";
    this.find(".of-any").hidden = view === "none";
    this.find(".block + output").textContent = `block ${block + 1} of ${this.app.model.blocks}`;
    this.find(".block").setAttribute("aria-valuetext", `block ${block + 1} of ${this.app.model.blocks}`);
    this.find(".map").hidden = this.find(".seen").hidden = this.find(".legend").hidden = view === "none";
    if (view === "none") return;
    const choices = this.find(".target");
    if (view === "map" && !choices.length) { // late: there may be thousands
      choices.append(...this.order.map((index) => element("option", { value: index, text: this.app.model.classes[index] })));
    }
    try {
      const grid = await this.values(view, target, block);
      if (view === this.view && target === this.target && block === this.block) this.draw(grid);
    } catch (error) {
      this.find(".said").textContent = `There is no map: ${error.message}`;
      this.app.say(`${this.name}: there is no map: ${error.message}`);
    }
  }

  // Returns {values, grid} of the patches, computed once.
  async values(view, target, block) {
    const { backend, model } = this.app;
    const key = backend.together ? `${target}` : view === "map" ? `map ${target}` : `block ${block}`;
    if (!this.maps.has(key)) {
      this.find(".said").textContent = "Computing the map ...";
      const pending = this.app.attempt((one) => one.explain(this.result, target, view, block));
      this.maps.set(key, pending);
      pending.catch(() => this.maps.delete(key));
    }
    const found = await this.maps.get(key), grid = found.grid ?? model.grid;
    const all = found[view], cells = grid[0] * grid[1];
    return { grid, values: all.length > cells ? all.subarray(block * cells, (block + 1) * cells) : all };
  }

  draw({ values, grid: [rows, columns] }) {
    const canvas = this.find(".map"), box = inputBox([this.result.height, this.result.width], this.app.model.pipeline);
    for (const layer of [canvas, this.find(".seen")]) {
      for (const [side, share] of Object.entries(box)) layer.style[side] = `${100 * share}%`;
    }
    [canvas.width, canvas.height] = [columns, rows];
    paint(canvas, values);
    const best = values.reduce((at, value, index) => (value > values[at] ? index : at), 0);
    const where = `highest in row ${Math.floor(best / columns) + 1} of ${rows}, column ${(best % columns) + 1} of ${columns}`;
    const what = this.view === "map" ? `Class map for ${this.app.model.classes[this.target]}`
      : `Attention in block ${this.block + 1}`;
    canvas.setAttribute("aria-label", `${what}: ${where}`);
    this.find(".said").textContent = `${what}: ${where}.`;
  }
}
