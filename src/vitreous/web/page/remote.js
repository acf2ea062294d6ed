// The back end of the service: images are sent to /v1/predict and /v1/explain of the server that this page came from.
const MAPS = true, PROMISE = "Images are sent to this server and are not stored.";
const TRIES = 5, LONGEST_WAIT = 30; // attempts for one request, and seconds between two
const MOST_CLASSES = 1000; // that the service returns
const NO_HEAD = "This model has no classification head, so that there is nothing to classify: POST /v1/embed gives the features of images.";

class Remote {
  // say(text): tells the user what happens. Path and query of the page choose the model, as ?model=NAME.
  constructor(data, progress, say) {
    Object.assign(this, { say, key: "", chosen: new URLSearchParams(location.search).get("model") });
  }

  async ready() {
    try {
      this.model = await (await this.request("v1/model")).json();
    } catch (error) { // a service with several models asks for one of them
      const names = this.chosen ? null : error.message.match(/add \?model= with one of (.+)$/);
      if (!names) throw error;
      [this.chosen] = names[1].split(", ");
      this.model = await (await this.request("v1/model")).json();
    }
    this.chosen = this.model.name;
    showPython(Boolean(this.model.multilabel));
    this.offerModels(this.model.models ?? []);
    return this.model.classes.length ? [] : [NO_HEAD];
  }

  // Lets the user choose, if the service has several models; the address names the choice.
  offerModels(names) {
    if (names.length < 2) return;
    const list = document.getElementById("models");
    list.append(...names.map((name) => element("option", { value: name, text: name })));
    list.value = this.chosen;
    list.closest("p").hidden = false;
    list.addEventListener("change", () => { location.search = `?model=${encodeURIComponent(list.value)}`; });
  }

  async start() {} // the service restarts its own engine

  async predict(file) {
    const top_k = Math.max(1, Math.min(MOST_CLASSES, this.model.classes.length)); // without a head, the service says why not
    const answer = await (await this.request("v1/predict", { top_k }, file)).json();
    const [found] = answer.predictions;
    if (found.error) throw new Unreadable(found.error);
    const number = new Map(this.model.classes.map((name, index) => [name, index]));
    const probabilities = new Float32Array(this.model.classes.length);
    for (const { label, probability } of found.top) probabilities[number.get(label)] = probability;
    const inside = new Set(found.set ?? []);
    const set = found.set && this.model.classes.map((name) => inside.has(name));
    const given = new Set(found.labels ?? []);
    const labels = found.labels && this.model.classes.map((name) => given.has(name));
    return { probabilities, unsure: found.unsure, set, labels, file, ...(await shown(file)) };
  }

  // Returns {map} or {attention}: grey values of the patches, from 0 at the lowest to 255 at the highest.
  async explain(result, target, view, block) {
    const method = view === "map" ? { target: this.model.classes[target] } : { method: "attention", layer: block };
    const answer = await this.request("v1/explain", { ...method, render: "patches" }, result.file);
    const bitmap = await createImageBitmap(await answer.blob());
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d", { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    const { data } = context.getImageData(0, 0, bitmap.width, bitmap.height);
    const values = Float32Array.from({ length: bitmap.width * bitmap.height }, (_, patch) => data[4 * patch]);
    return { [view]: values, grid: [bitmap.height, bitmap.width] };
  }

  // Sends a request, again after the pause that a busy server asks for.
  async request(path, query = {}, body = undefined) {
    const url = new URL(path, document.baseURI);
    for (const [name, value] of Object.entries({ ...(this.chosen && { model: this.chosen }), ...query })) {
      if (value !== undefined) url.searchParams.set(name, value);
    }
    for (let attempt = 1; ; attempt++) {
      let answer;
      try {
        const headers = { ...(this.key && { "X-API-Key": this.key }), ...(body && { "Content-Type": "application/octet-stream" }) };
        answer = await fetch(url, { method: body ? "POST" : "GET", body, headers, credentials: "same-origin" });
      } catch {
        if (attempt === TRIES) throw new Stopped("the server does not answer: check that `vitreous serve` still runs");
      }
      if (answer?.ok) return answer;
      if (answer?.status === 401) {
        this.key = await askForKey(Boolean(this.key));
        attempt = 0;
        continue;
      }
      if (answer && ![429, 502, 503, 504].includes(answer.status)) throw new Unreadable(await detail(answer));
      if (attempt === TRIES) throw new Stopped(answer ? await detail(answer) : "the server does not answer");
      const pause = Math.min(LONGEST_WAIT, Number(answer?.headers.get("Retry-After")) || attempt);
      this.say(answer?.status === 429 ? `The server is busy: trying again in ${pause} s`
        : `The classifier on the server is not ready, it may be restarting: trying again in ${pause} s`);
      await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
    }
  }
}

async function detail(answer) {
  try {
    const problem = await answer.json();
    return problem.detail ?? problem.title ?? `${answer.status}`;
  } catch {
    return `the server answers ${answer.status} ${answer.statusText}`;
  }
}

// Returns what is shown of a file: nothing if the server can read it but this browser cannot, as a TIFF.
async function shown(file) {
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
    const found = { preview: smaller(bitmap), height: bitmap.height, width: bitmap.width };
    bitmap.close();
    return found;
  } catch {
    return { preview: null, height: 1, width: 1 };
  }
}

function askForKey(wrong) {
  const dialog = document.getElementById("key-dialog"), field = document.getElementById("key");
  document.getElementById("key-wrong").hidden = !wrong;
  return new Promise((resolve, reject) => {
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "send" && field.value) resolve(field.value.trim());
      else reject(new Stopped("this server wants an API key"));
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
  });
}

const createBackend = (data, progress, say) => new Remote(data, progress, say);
