// The back end of the web export: the model runs in this browser. Files of the page are fetched from where it lies, or
// are inside it; each is checked against its SHA-256.
const MAPS = true, PROMISE = "Images never leave this page.";
const ANSWER_SECONDS = 5; // in which an idle worker answers
const SILENT_SECONDS = 120; // after which a worker that computes is taken for dead

class Local {
  // model: the page's data. progress(bytes, of): how much is loaded.
  constructor(model, progress) {
    Object.assign(this, { model, progress, waiting: new Map(), loaded: new Map(), number: 0, bytes: 0 });
    this.together = true; // one computation gives the map and the attention of every block
    this.isolated = self.crossOriginIsolated === true; // only then may threads share memory
    this.threads = this.isolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1;
  }

  async ready() {
    const needed = ["script", "wasm", "predict", "weights"];
    this.total = needed.reduce((sum, role) => sum + this.model.files[role].stored, 0);
    for (const role of needed) await this.content(role);
    return this.start();
  }

  // Starts the worker, again if there was one, and resolves with remarks for the user.
  start() {
    this.starting ??= this.launch().finally(() => { this.starting = null; });
    return this.starting;
  }

  async launch() {
    this.fail("it starts again");
    this.worker?.terminate();
    this.explaining = null;
    const source = document.getElementById("worker").textContent;
    this.worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    this.worker.onmessage = ({ data }) => this.answer(data);
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.fail("its worker has ended");
    };
    const { script, wasm } = Object.fromEntries(this.loaded);
    const { changed } = await this.call("start", { script, wasm, threads: this.threads, model: this.model });
    await this.open("predict");
    return changed ? ["This browser changes the pixels that a page reads, as a protection against tracking. " +
      "Predictions may be wrong: allow this page to read canvases, or use another browser."] : [];
  }

  async predict(file) {
    await this.alive();
    return this.call("predict", { file });
  }

  // Returns {map, attention}: values of the patches, and those of every block.
  async explain(result, target) {
    await this.alive();
    this.explaining ??= this.content("explain").then(() => this.open("explain"));
    try {
      await this.explaining;
    } catch (error) {
      this.explaining = null;
      throw error;
    }
    return this.call("explain", { pixels: result.pixels, target });
  }

  async open(graph) {
    const { path } = this.model.files.weights;
    await this.call("open", { graph, bytes: this.loaded.get(graph), weights: { [path]: this.loaded.get("weights") } });
  }

  // Starts another worker if the present one has died without a word.
  async alive() {
    if (this.waiting.size) return; // it computes, and cannot answer yet
    let timer;
    const silence = new Promise((_, reject) => { timer = setTimeout(reject, 1000 * ANSWER_SECONDS, new Error("silent")); });
    try {
      await Promise.race([this.call("ping"), silence]);
    } catch {
      this.fail("its worker has ended");
      await this.start();
    } finally {
      clearTimeout(timer);
    }
  }

  call(name, given) {
    const id = ++this.number;
    if (!this.waiting.size) this.heard = Date.now();
    this.watch ??= setInterval(() => {
      if (this.waiting.size && Date.now() - this.heard > 1000 * SILENT_SECONDS) this.fail("it does not answer");
    }, 5000);
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, name, given });
    });
  }

  answer({ id, value, error, unreadable }) {
    this.heard = Date.now();
    const { resolve, reject } = this.waiting.get(id) ?? {};
    this.waiting.delete(id);
    if (error === undefined) resolve?.(value);
    else reject?.(unreadable ? new Unreadable(error) : new Stopped(error));
  }

  fail(reason) {
    for (const { reject } of this.waiting.values()) reject(new Stopped(reason));
    this.waiting.clear();
  }

  async content(role) {
    if (this.loaded.has(role)) return;
    const { path, sha256, gzip } = this.model.files[role];
    const inside = document.getElementById(`file-${role}`);
    let bytes = inside ? decodeBase64(inside.textContent) : await this.fetched(path);
    inside?.remove();
    if (gzip && bytes[0] === 0x1f && bytes[1] === 0x8b) { // a server may have unpacked it already
      const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      bytes = new Uint8Array(await new Response(unpacked).arrayBuffer());
    }
    if (crypto.subtle && (await hex(bytes)) !== sha256) { // absent without https
      throw new Error(`The file ${path} of this page is damaged or of another version: upload all of its files again.`);
    }
    this.loaded.set(role, bytes);
  }

  async fetched(path) {
    if (location.protocol === "file:") {
      throw new Error("A browser does not let a page read the files beside it. Show this folder by a web server, such as " +
        "`python -m http.server` in it, or export to a single .html file, which opens by itself.");
    }
    let response;
    try {
      response = await fetch(path, { credentials: "same-origin" });
    } catch {
      throw new Error(`The file ${path} of this page cannot be loaded. Check the connection, and load the page again.`);
    }
    if (!response.ok) throw new Error(`The file ${path} of this page is missing (${response.status}): upload all of its files.`);
    const parts = [], reader = response.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      this.bytes += part.value.length;
      this.progress?.(this.bytes, Math.max(this.total, this.bytes));
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  }
}

function decodeBase64(text) {
  return Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

async function hex(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const createBackend = (model, progress) => new Local(model, progress);
