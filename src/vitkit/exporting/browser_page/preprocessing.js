// A photograph as the model gets it, to the level as vitkit prepares it: Preprocessing of
// data/images/preprocessing.py, whose settings these functions get, and Pillow's resize.
"use strict";

const BITS = 22; // behind the point of a weight: Pillow's, whose sums fit into 32 bits
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

// Weights as whole numbers, as Pillow has them for levels of 8 bits, or PyTorch, which resizes without
// antialiasing: these fit into 16
function inWholeNumbers({ starts, weights }, antialias) {
  let bits = BITS;
  if (!antialias) {
    const largest = Math.max(...weights.map((own) => Math.max(...own)));
    bits = 0;
    while (bits < BITS && Math.trunc(0.5 + largest * 2 ** (bits + 1)) < 2 ** 15) bits++;
  }
  const whole = (weight) => Math.trunc(weight * 2 ** bits + (weight < 0 ? -0.5 : 0.5));
  return { starts, bits, half: 1 << (bits - 1), weights: weights.map((own) => Int32Array.from(own, whole)) };
}

function level(sum, bits) {
  const value = sum >> bits;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

// A photograph of any size -> Uint8Array of 3 * h * w: red, then green, then blue.
// rows(top, count): the pixels of so many rows, red, green, blue and opacity of each.
function prepare(height, width, rows, settings) {
  const [ownHeight, ownWidth] = settings.size;
  const resized = resizedSize(height, width, settings);
  const [top, left] = cropCorner(resized, settings);
  const down = inWholeNumbers(shares(height, resized[0], top, ownHeight, settings), settings.antialias);
  const across = inWholeNumbers(shares(width, resized[1], left, ownWidth, settings), settings.antialias);

  // Both passes give whole levels, so their order counts. Pillow begins with the rows, and from version 13 on with
  // the columns of photographs that lose much more of their height
  const lost = [height - resized[0], width - resized[1]];
  const isTall = settings.tallByColumns && settings.antialias && lost[0] > 0 && lost[0] > 2 * lost[1];
  const first = down.starts[0];
  const last = down.starts[ownHeight - 1] + down.weights[ownHeight - 1].length;
  const bands = bandsOf(first, last, width, rows);
  const prepared = isTall ? columnsFirst(bands, down, across, width) : rowsFirst(bands, down, across, first, last, width);

  // (h, w, 3) -> (3, h, w)
  const plane = ownHeight * ownWidth;
  const planes = new Uint8Array(3 * plane);
  for (let at = 0; at < plane; at++) {
    for (let channel = 0; channel < 3; channel++) planes[channel * plane + at] = prepared[3 * at + channel];
  }
  return planes;
}

// Rows of a photograph, some at a time: the number of the first, how many, and their pixels
function* bandsOf(first, last, width, rows) {
  const band = Math.max(Math.floor(BAND / width), 1);
  for (let start = first; start < last; start += band) {
    const count = Math.min(band, last - start);
    yield [start, count, rows(start, count)];
  }
}

// Each row at its new width, (rows, w, 3); then at the new height, (h, w, 3)
function rowsFirst(bands, down, across, first, last, width) {
  const ownWidth = across.weights.length;
  const middle = new Uint8Array((last - first) * ownWidth * 3);
  for (const [start, count, pixels] of bands) {
    for (let row = 0; row < count; row++) {
      resizeRow(pixels, 4 * row * width, 4, across, middle, 3 * (start - first + row) * ownWidth);
    }
  }
  const length = 3 * ownWidth;
  const prepared = new Uint8Array(down.weights.length * length);
  down.weights.forEach((own, j) => {
    for (let i = 0; i < length; i++) {
      let sum = down.half;
      let from = (down.starts[j] - first) * length + i;
      for (let k = 0; k < own.length; k++, from += length) sum += own[k] * middle[from];
      prepared[j * length + i] = level(sum, down.bits);
    }
  });
  return prepared;
}

// The other way round: each new row is the sum of old ones, whichever band they come in
function columnsFirst(bands, down, across, width) {
  const ownWidth = across.weights.length;
  const sums = down.weights.map(() => new Int32Array(3 * width).fill(down.half));
  for (const [start, count, pixels] of bands) {
    down.weights.forEach((own, j) => {
      for (let k = 0; k < own.length; k++) {
        const row = down.starts[j] + k - start;
        if (row < 0 || row >= count) continue;
        for (let i = 0; i < width; i++) {
          const from = 4 * (row * width + i);
          sums[j][3 * i] += own[k] * pixels[from];
          sums[j][3 * i + 1] += own[k] * pixels[from + 1];
          sums[j][3 * i + 2] += own[k] * pixels[from + 2];
        }
      }
    });
  }
  const prepared = new Uint8Array(down.weights.length * 3 * ownWidth);
  sums.forEach((row, j) => resizeRow(row.map((sum) => level(sum, down.bits)), 0, 3, across, prepared, 3 * j * ownWidth));
  return prepared;
}

// A row of pixels, which begins somewhere and has so many numbers a pixel, at its new width
function resizeRow(pixels, begin, step, across, out, to) {
  for (let i = 0; i < across.weights.length; i++) {
    const own = across.weights[i];
    let from = begin + step * across.starts[i];
    let red = across.half, green = across.half, blue = across.half;
    for (let k = 0; k < own.length; k++, from += step) {
      red += own[k] * pixels[from];
      green += own[k] * pixels[from + 1];
      blue += own[k] * pixels[from + 2];
    }
    out[to++] = level(red, across.bits);
    out[to++] = level(green, across.bits);
    out[to++] = level(blue, across.bits);
  }
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
