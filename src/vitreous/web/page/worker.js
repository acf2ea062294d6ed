// Runs the model by ONNX Runtime for WebAssembly, away from the page's own thread. A call is {id, name, given}; the
// answer is {id, value} or {id, error}. Calls are answered one after the other. pixels.js stands above this script.
let ort, settings;
const sessions = {};

const calls = {
  // Starts the runtime. given: the bytes of its script and of its WebAssembly, the number of threads, and the model.
  async start({ script, wasm, threads, model }) {
    settings = model;
    ort = await import(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
    ort.env.logLevel = "error";
    Object.assign(ort.env.wasm, { wasmBinary: wasm, numThreads: threads, proxy: false });
    return { changed: canvasChangesPixels() };
  },

  // Opens a graph; its weights are in a file of their own, given by name and content.
  async open({ graph, bytes, weights }) {
    sessions[graph] = await ort.InferenceSession.create(bytes, {
      executionProviders: ["wasm"], externalData: Object.entries(weights).map(([path, data]) => ({ path, data })),
    });
  },

  // Classifies an image file. The pixels that the model sees come along, for its class maps.
  async predict({ file }) {
    const first = performance.now();
    const image = await readPixels(file, settings.pipeline.channels);
    const began = performance.now();
    const outputs = await run("predict", {
      images: new ort.Tensor("uint8", image.pixels, [1, image.height, image.width, settings.pipeline.channels]),
    });
    const { probabilities, unsure, sets, labels, pixels } = outputs, ended = performance.now();
    return {
      probabilities, unsure: unsure && Boolean(unsure[0]), set: sets && Array.from(sets, Boolean), pixels,
      labels: labels && Array.from(labels, Boolean),
      preview: image.preview, height: image.height, width: image.width, milliseconds: ended - began, total: ended - first,
    };
  },

  // Returns the class map of one class, and the attention of every block, for pixels that predict returned.
  async explain({ pixels, target }) {
    const { channels, size } = settings.pipeline;
    return run("explain", {
      pixels: new ort.Tensor("float32", pixels, [1, channels, ...size]),
      target: new ort.Tensor("int64", BigInt64Array.of(BigInt(target)), [1]),
    });
  },

  async ping() {},
};

async function run(graph, feeds) {
  const outputs = await sessions[graph].run(feeds);
  return Object.fromEntries(Object.entries(outputs).map(([name, tensor]) => {
    const values = tensor.data.slice();
    tensor.dispose();
    return [name, values];
  }));
}

// Some browsers change what is read from a canvas, against tracking; predictions would be wrong.
function canvasChangesPixels() {
  const side = 64, context = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
  const drawn = new ImageData(side, side);
  drawn.data.forEach((_, index) => { drawn.data[index] = index % 4 === 3 ? 255 : (index * 7) % 256; });
  context.putImageData(drawn, 0, 0);
  const read = context.getImageData(0, 0, side, side).data;
  return drawn.data.some((value, index) => value !== read[index]);
}

let last = Promise.resolve();
if (!self.name.startsWith("em-pthread")) {
  self.addEventListener("message", ({ data: { id, name, given } }) => {
    last = last.then(async () => {
      try {
        const value = await calls[name](given);
        const moved = Object.values(value ?? {}).filter((each) => ArrayBuffer.isView(each)).map((each) => each.buffer);
        self.postMessage({ id, value }, value?.preview ? [...moved, value.preview] : moved);
      } catch (error) {
        const text = error instanceof Unreadable ? error.message : `${error?.message ?? error}`;
        self.postMessage({ id, error: text, unreadable: error instanceof Unreadable });
      }
    });
  });
}
