// The page: takes images from files, the clipboard, a drop or the camera, classifies them in turn, and tells the user.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

const app = {
  data, model: data.model, backend: null, cards: [],

  say(text) {
    byId("status").textContent = text;
  },

  warn(text) {
    const dismiss = element("button", { type: "button", class: "dismiss", "aria-label": "Dismiss", text: "×" });
    const item = element("li", {}, element("span", { text }), dismiss);
    dismiss.addEventListener("click", () => { item.remove(); byId("files").focus(); });
    byId("problems").append(item);
  },

  // Runs work(backend); if the back end has failed rather than refused the image, restarts it and tries once more.
  async attempt(work) {
    try {
      return await work(this.backend);
    } catch (error) {
      if (!(error instanceof Stopped)) throw error;
      this.say(`The classifier has stopped (${error.message}). It starts again.`);
    }
    await this.backend.start();
    return work(this.backend);
  },

  removed(card) {
    this.cards = this.cards.filter((each) => each !== card);
    this.counted();
  },

  counted() {
    byId("results-section").hidden = !this.cards.length;
  },
};

let queue = Promise.resolve();

// Adds files; they are classified one after the other, in the order in which they came.
function add(files, name = (file) => file.name) {
  for (const file of files) {
    const card = new Card(app, file, name(file) || "image");
    app.cards.push(card);
    queue = queue.then(() => app.started).then(async () => {
      if (!card.root.isConnected) return;
      app.say(`${card.name}: classifying`);
      app.say(await card.classify());
    }).catch((error) => card.fail(error));
  }
  app.counted();
}

function listen() {
  byId("files").addEventListener("change", ({ target }) => {
    add([...target.files]);
    target.value = ""; // so that the same file can be chosen again
  });
  byId("clear").addEventListener("click", () => {
    app.cards.forEach((card) => card.root.remove());
    app.cards = [];
    app.counted();
    app.say("All images are removed.");
    byId("files").focus();
  });
  let pasted = 0;
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length) {
      event.preventDefault();
      add(files, (file) => (file.name && file.name !== "image.png" ? file.name : `pasted image ${++pasted}`));
    } else if (!event.target.closest?.("input, textarea")) {
      app.say("The clipboard has no image: copy an image, or a file, and paste again.");
    }
  });
  const drop = byId("drop");
  let depth = 0;
  document.addEventListener("dragenter", () => { depth++; drop.classList.add("over"); });
  document.addEventListener("dragleave", () => { if (--depth <= 0) drop.classList.remove("over"); });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    drop.classList.remove("over");
    const files = [...event.dataTransfer.files];
    if (files.length) add(files);
    else app.say("What was dropped is no file. Images of other pages are not fetched: save the image first.");
  });
}

function showProgress(bytes, total) {
  Object.assign(byId("progress"), { value: bytes, max: total });
  const text = `${(bytes / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
  byId("progress-text").textContent = text;
}

async function start() {
  byId("promise").textContent = PROMISE;
  listen();
  offerCamera((file) => add([file]));
  try {
    app.backend = createBackend(data.model, showProgress, (text) => app.say(text));
    const remarks = await app.backend.ready();
    app.model = app.backend.model;
    app.model.maps ??= MAPS;
    remarks.forEach((text) => app.warn(text));
    describeModel(app.model);
    byId("loading").hidden = true;
    document.documentElement.dataset.state = "ready";
    if (!app.cards.length) app.say("Ready.");
  } catch (error) {
    byId("loading").hidden = true;
    document.documentElement.dataset.state = "failed";
    app.warn(error.message);
    throw new Stopped("the classifier has not started");
  }
}

function describeModel(model) {
  const { classes, scores, license } = model, [height, width] = model.pipeline.size;
  byId("model-classes").replaceChildren(...classes.slice(0, 50).flatMap((name, n) => [n ? ", " : "", isolated(name)]),
    classes.length > 50 ? ` and ${classes.length - 50} more` : "");
  byId("model-count").textContent = classes.length;
  byId("model-input").textContent = `${height} by ${width} pixels, ${model.pipeline.channels === 1 ? "grey" : "colour"}`;
  const split = ["test", "val"].find((name) => typeof scores?.[name]?.top1 === "number");
  const other = ["test", "val"].find((name) => typeof scores?.[name]?.mean_ap === "number");
  const score = other ? `mAP ${percent(scores[other].mean_ap)} on the ${other === "val" ? "validation" : "test"} images`
    : split && `${percent(scores[split].top1)} of the ${split === "val" ? "validation" : "test"} images`;
  for (const [id, text] of [["model-score", score], ["model-license", license],
    ["model-maps", !model.maps && "This kind of model has no class map here."]]) {
    const place = byId(id);
    place.textContent = text || "";
    (place.closest("div") ?? place).hidden = !text;
  }
  byId("about").hidden = false;
}

app.started = start();
app.started.catch(() => {}); // said on the page; every card says it too
