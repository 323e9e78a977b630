// A photograph as the model gets it, to the level as vitkit prepares it: Preprocessing of
// data/images/preprocessing.py, whose settings these functions get, and Pillow's resize.
"use strict";

const BITS = 22; // behind the point of a weight: Pillow's, whose sums fit into 32 bits
const HALF = 1 << (BITS - 1);
const RADIUS = { bilinear: 1, bicubic: 2 }; // pixels, on each side, that a kernel reaches
const BAND = 1 << 20; // pixels of a photograph that are read at a time: some telephones allow few

// Height and width before the centre crop
function resizedSize(height, width, settings) {
  const [ownHeight, ownWidth] = settings.size;
  if (settings.rule === "square") {
    return settings.resize ? [settings.resize, settings.resize] : [ownHeight, ownWidth];
  }
  const shorter = Math.min(height, width);
  const side = settings.resize || Math.max(ownHeight, ownWidth);
  return [Math.trunc((side * height) / shorter), Math.trunc((side * width) / shorter)];
}

// A half to the nearest whole number, halves to the even one, as Python rounds
function rounded(number) {
  const below = Math.floor(number);
  if (number - below !== 0.5) return Math.round(number);
  return below % 2 === 0 ? below : below + 1;
}

// Where the centre crop begins: top and left in the resized photograph
function cropCorner(resized, settings) {
  return resized.map((side, axis) => rounded((side - settings.size[axis]) / 2));
}

// The box of a photograph that the model gets: top, left, height and width in its own pixels
function visibleBox(height, width, settings) {
  const resized = resizedSize(height, width, settings);
  const [top, left] = cropCorner(resized, settings);
  const down = height / resized[0];
  const across = width / resized[1];
  return [top * down, left * across, settings.size[0] * down, settings.size[1] * across];
}

// The weight of a pixel at a distance from the centre, in pixels
function kernel(distance, interpolation, antialias) {
  const x = Math.abs(distance);
  if (interpolation === "bilinear") return Math.max(1 - x, 0);
  const a = antialias ? -0.5 : -0.75; // Keys' parameter: Pillow's, and PyTorch's without antialiasing
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// How `count` pixels, from the pixel `first` of `resized` ones, are made of `old` ones: for each of them the
// first old pixel, and the weights of that and of those behind it
function shares(old, resized, first, count, { interpolation, antialias }) {
  const scale = old / resized; // old pixels for a new one
  const stretch = antialias ? Math.max(scale, 1) : 1; // the kernel covers all pixels that become one
  const radius = RADIUS[interpolation] * stretch;
  const starts = new Int32Array(count);
  const weights = [];
  for (let i = 0; i < count; i++) {
    const centre = (first + i + 0.5) * scale;
    let own;
    if (antialias) {
      const start = Math.max(Math.trunc(centre - radius + 0.5), 0);
      const end = Math.min(Math.trunc(centre + radius + 0.5), old);
      own = new Float64Array(end - start);
      let sum = 0;
      for (let k = 0; k < own.length; k++) {
        own[k] = kernel((k + start - centre + 0.5) * (1 / stretch), interpolation, true);
        sum += own[k];
      }
      for (let k = 0; k < own.length; k++) own[k] /= sum;
      starts[i] = start;
    } else {
      // The nearest pixels; beyond the border its pixel counts
      const inside = (pixel) => Math.min(Math.max(pixel, 0), old - 1);
      const below = Math.floor(centre - 0.5);
      starts[i] = inside(below + 1 - radius);
      own = new Float64Array(inside(below + radius) - starts[i] + 1);
      for (let step = 1 - radius; step <= radius; step++) {
        const pixel = below + step;
        own[inside(pixel) - starts[i]] += kernel(pixel + 0.5 - centre, interpolation, false);
      }
    }
    weights.push(own);
  }
  return { starts, weights };
}

// Weights as whole numbers, as Pillow has them for levels of 8 bits
function inWholeNumbers(weights) {
  return weights.map((own) => Int32Array.from(own, (weight) => Math.trunc(weight * 2 * HALF + (weight < 0 ? -0.5 : 0.5))));
}

function level(sum) {
  const value = sum >> BITS;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

// A photograph of any size -> Uint8Array of 3 * h * w: red, then green, then blue.
// rows(top, count): the pixels of so many rows, red, green, blue and opacity of each.
function prepare(height, width, rows, settings) {
  const [ownHeight, ownWidth] = settings.size;
  const resized = resizedSize(height, width, settings);
  const [top, left] = cropCorner(resized, settings);
  const down = shares(height, resized[0], top, ownHeight, settings);
  const across = shares(width, resized[1], left, ownWidth, settings);
  const downWeights = inWholeNumbers(down.weights);
  const acrossWeights = inWholeNumbers(across.weights);

  // Each row that counts, at its new width: (rows, w, 3)
  const first = down.starts[0];
  const last = down.starts[ownHeight - 1] + downWeights[ownHeight - 1].length;
  const middle = new Uint8Array((last - first) * ownWidth * 3);
  const band = Math.max(Math.floor(BAND / width), 1);
  let to = 0;
  for (let start = first; start < last; start += band) {
    const count = Math.min(band, last - start);
    const pixels = rows(start, count);
    for (let row = 0; row < count; row++) {
      for (let i = 0; i < ownWidth; i++) {
        const own = acrossWeights[i];
        let from = 4 * (row * width + across.starts[i]);
        let red = HALF, green = HALF, blue = HALF;
        for (let k = 0; k < own.length; k++, from += 4) {
          red += own[k] * pixels[from];
          green += own[k] * pixels[from + 1];
          blue += own[k] * pixels[from + 2];
        }
        middle[to++] = level(red);
        middle[to++] = level(green);
        middle[to++] = level(blue);
      }
    }
  }

  // Then at its new height: (3, h, w)
  const prepared = new Uint8Array(3 * ownHeight * ownWidth);
  const plane = ownHeight * ownWidth;
  for (let j = 0; j < ownHeight; j++) {
    const own = downWeights[j];
    for (let i = 0; i < ownWidth; i++) {
      let from = 3 * ((down.starts[j] - first) * ownWidth + i);
      let red = HALF, green = HALF, blue = HALF;
      for (let k = 0; k < own.length; k++, from += 3 * ownWidth) {
        red += own[k] * middle[from];
        green += own[k] * middle[from + 1];
        blue += own[k] * middle[from + 2];
      }
      const at = j * ownWidth + i;
      prepared[at] = level(red);
      prepared[plane + at] = level(green);
      prepared[2 * plane + at] = level(blue);
    }
  }
  return prepared;
}

// A map of few numbers, rows * columns, enlarged smoothly to height * width
function enlarged(map, rows, columns, height, width) {
  const smooth = { interpolation: "bilinear", antialias: true };
  const down = shares(rows, height, 0, height, smooth);
  const across = shares(columns, width, 0, width, smooth);
  const large = new Float32Array(height * width);
  for (let j = 0; j < height; j++) {
    for (let i = 0; i < width; i++) {
      let sum = 0;
      down.weights[j].forEach((weight, row) => {
        const from = (down.starts[j] + row) * columns + across.starts[i];
        across.weights[i].forEach((other, column) => {
          sum += weight * other * map[from + column];
        });
      });
      large[j * width + i] = sum;
    }
  }
  return large;
}
