// Where the model's input lies in an image; the same arithmetic as vitreous/data/placement.py. Sizes are [height, width].
const LONGEST = 16; // an image longer than this many times the target is cut before it is resized

// Returns the box {left, top, width, height} that the input covers, as shares of the image; it may reach beyond it.
function inputBox(image, { size, fit, crop_ratio: ratio }) {
  const [h, w] = image, [height, width] = size, floor = Math.floor;
  let cut = [0, 0, h, w], resized = [height, width], left = 0, top = 0; // cut: top, left, height, width
  if (fit === "crop") {
    const [coverH, coverW] = [floor(height / ratio), floor(width / ratio)], wide = w * coverH > h * coverW;
    cut = wide ? centre(image, h, floor((LONGEST * coverW * h) / coverH)) : centre(image, floor((LONGEST * coverH * w) / coverW), w);
    resized = wide ? [coverH, floor((cut[3] * coverH) / cut[2])] : [floor((cut[2] * coverW) / cut[3]), coverW];
    [top, left] = [-halfToEven(resized[0] - height), -halfToEven(resized[1] - width)];
  } else if (fit === "pad") {
    resized = w * height > h * width ? [Math.max(1, floor((h * width) / w)), width]
      : [height, Math.max(1, floor((w * height) / h))];
    [top, left] = [floor((height - resized[0]) / 2), floor((width - resized[1]) / 2)];
  }
  const [perRow, perColumn] = [cut[2] / resized[0], cut[3] / resized[1]]; // pixels of the image for one of the input
  return {
    left: (cut[1] - left * perColumn) / w, top: (cut[0] - top * perRow) / h,
    width: (width * perColumn) / w, height: (height * perRow) / h,
  };
}

function centre([h, w], height, width) {
  const [tall, broad] = [Math.min(Math.max(1, height), h), Math.min(Math.max(1, width), w)];
  return [Math.floor((h - tall) / 2), Math.floor((w - broad) / 2), tall, broad];
}

function halfToEven(n) { // n / 2, where one half is rounded to the even neighbour
  const k = Math.floor(n / 2);
  return n % 2 && k % 2 ? k + 1 : k;
}
