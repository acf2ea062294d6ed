// From an image file to the pixels that the graph reads: upright, 8 bits per channel, alpha on white, full size. The
// graph resizes. A canvas that resized would give other pixels in every browser.
class Unreadable extends Error {}

const MOST_PIXELS = 40_000_000, LONGEST_SIDE = 16_384, PREVIEW_SIDE = 640;

const SIGNATURES = [ // format, offset, bytes as text
  ["JPEG", 0, "\xff\xd8\xff"], ["PNG", 0, "\x89PNG"], ["GIF", 0, "GIF8"], ["BMP", 0, "BM"], ["WebP", 8, "WEBP"],
  ["AVIF", 4, "ftypavif"], ["AVIF", 4, "ftypavis"], ["HEIC", 4, "ftyphei"], ["HEIC", 4, "ftyphev"], ["HEIC", 4, "ftypmif"],
  ["TIFF", 0, "II*\0"], ["TIFF", 0, "MM\0*"], ["PDF", 0, "%PDF"], ["video", 4, "ftyp"], ["ZIP", 0, "PK\x03\x04"],
];
const READABLE = ["JPEG", "PNG", "GIF", "BMP", "WebP", "AVIF"], SOMETIMES = ["HEIC", "TIFF"];

// Returns the format by content, never by name, or null.
async function formatOf(file) {
  let head;
  try {
    head = String.fromCharCode(...new Uint8Array(await file.slice(0, 16).arrayBuffer()));
  } catch {
    throw new Unreadable("it cannot be read: it is a folder, or has changed since");
  }
  return SIGNATURES.find(([, at, bytes]) => head.startsWith(bytes, at))?.[0] ?? null;
}

// Returns why a file of a format is not read, before it is decoded or after that has failed.
function refusal(format, failed) {
  if (failed && SOMETIMES.includes(format)) return `this browser cannot read ${format} images: save it as JPEG or PNG`;
  if (failed) return `the ${format} file is damaged or truncated: save it again`;
  const kinds = `${READABLE.slice(0, -1).join(", ")} or ${READABLE.at(-1)}`;
  return `this is ${format ? `a ${format} file` : "no image that can be read here"}: choose ${kinds}`;
}

async function decode(file) {
  if (!file.size) throw new Unreadable("the file is empty");
  const format = await formatOf(file);
  if (![...READABLE, ...SOMETIMES].includes(format)) throw new Unreadable(refusal(format, false));
  let bitmap;
  try {
    // Colour profiles are ignored, as in training.
    bitmap = await createImageBitmap(file, {
      imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none",
    });
  } catch {
    throw new Unreadable(refusal(format, true));
  }
  const { width, height } = bitmap;
  if (width * height > MOST_PIXELS || Math.max(width, height) > LONGEST_SIDE) {
    bitmap.close();
    throw new Unreadable(`it has ${width} x ${height} pixels, the limit is ${MOST_PIXELS / 1e6} million and ` +
      `${LONGEST_SIDE} per side: save it smaller`);
  }
  return bitmap;
}

function drawnOnWhite(bitmap, width, height) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return { canvas, context };
}

function smaller(bitmap) {
  const scale = Math.min(1, PREVIEW_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  return drawnOnWhite(bitmap, width, height).canvas.transferToImageBitmap();
}

// Returns pixels (height, width, channels) as bytes, and a small preview. Grey is ITU-R 601 luma, as Pillow rounds it.
async function readPixels(file, channels) {
  const bitmap = await decode(file);
  const { width, height } = bitmap;
  const rgba = drawnOnWhite(bitmap, width, height).context.getImageData(0, 0, width, height).data;
  const preview = smaller(bitmap);
  bitmap.close();
  const pixels = new Uint8Array(width * height * channels);
  for (let from = 0, to = 0; from < rgba.length; from += 4, to += channels) {
    if (channels === 1) {
      pixels[to] = (rgba[from] * 19595 + rgba[from + 1] * 38470 + rgba[from + 2] * 7471 + 0x8000) >> 16;
    } else {
      pixels[to] = rgba[from];
      pixels[to + 1] = rgba[from + 1];
      pixels[to + 2] = rgba[from + 2];
    }
  }
  return { pixels, preview, width, height };
}
