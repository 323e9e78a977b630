// The page of inspection: a photograph, and what each of its patches looks at.
// The numbers are in the element "data", as attention_tables.py packs them: a layer has a table of what the
// model's head reads, and one with a row for each cell of patches.
"use strict";

const MEAN = -1; // instead of a head's number
const BRIGHTEST = 0.98; // share of the cells below which none is as bright as possible
const DARKEST = 0.15; // of a cell that gets nothing
const LOW = [0, 32, 76]; // colours of the heads' small maps: cividis, for every kind of sight
const HIGH = [255, 233, 69];

const data = JSON.parse(document.getElementById("data").textContent);
const [height, width] = data.cells;
const cells = height * width;
const [rowsOfPatches, columnsOfPatches] = data.grid;
const [patch, stride, pixels] = [data.patch, data.stride, data.pixels]; // heights, then widths
const overlap = patch[0] !== stride[0] || patch[1] !== stride[1];
const { block } = data; // patches along the side of a cell; at the end of a row fewer may be left
const element = (id) => document.getElementById(id);
const picture = element("picture");

// What is chosen. A query is a cell's number, or null: what the model's head reads
const last = data.layers.length - 1; // the rollout
const start = data.reader ? null : Math.floor(height / 2) * width + Math.floor(width / 2);
const chosen = { photograph: 0, layer: last, head: MEAN, query: start };
let hovered = null; // the cell under the mouse, which is shown unless another is chosen
let pinned = false; // whether a cell was chosen by a click, a tap or a key

// Tables: R scales as float32, then R rows of integers of 8 bits

const unpacked = new Map(); // of the photograph that is shown

function table(kind) {
  const text = data.photographs[chosen.photograph].tables[chosen.layer][kind];
  const name = `${chosen.photograph} ${chosen.layer} ${kind}`;
  if (!unpacked.has(name)) unpacked.set(name, unpack(text));
  return unpacked.get(name);
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function row(buffer, columns, number) {
  const rows = buffer.byteLength / (columns + 4);
  const scale = new DataView(buffer).getFloat32(4 * number, true);
  const integers = new Uint8Array(buffer, 4 * rows + number * columns, columns);
  return Array.from(integers, (integer) => scale * (integer / 255) ** 2);
}

// What a query gives to each token before the patches, and to each cell: a list for each head
async function shares(query) {
  const layer = data.layers[chosen.layer];
  const prefix = data.prefix.length;
  const heads = Array.from({ length: layer.heads }, (_, head) => head);
  const ofReader = query === null || !layer.patches;
  if (ofReader || layer.reach === "all") {
    const buffer = await table(ofReader ? "reader" : "patches");
    const rows = ofReader ? 1 : cells;
    return heads.map((head) => row(buffer, prefix + cells, head * rows + (ofReader ? 0 : query)));
  }

  // Axial attention: of its row or its column alone
  const length = layer.reach === "row" ? width : height;
  const buffer = await table("patches");
  return heads.map((head) => {
    const all = new Array(prefix + cells).fill(0);
    row(buffer, length, head * cells + query).forEach((share, i) => {
      const cell = layer.reach === "row" ? query - (query % width) + i : i * width + (query % width);
      all[prefix + cell] = share;
    });
    return all;
  });
}

function mean(lists) {
  return lists[0].map((_, i) => lists.reduce((sum, list) => sum + list[i], 0) / lists.length);
}

// Drawing

const photograph = new Image();
let drawing = 0; // the number of the latest call

async function draw() {
  const number = ++drawing;
  const query = pinned || hovered === null ? chosen.query : hovered;
  const layer = data.layers[chosen.layer];
  const byHead = await shares(query);
  if (number !== drawing) return; // something else was chosen meanwhile
  const average = mean(byHead);
  const head = layer.heads > 1 ? chosen.head : MEAN;
  const shown = head === MEAN ? average : byHead[head];
  const prefix = data.prefix.length;
  drawPicture(shown.slice(prefix), layer.patches ? query : null);
  drawHeads([average, ...byHead].map((list) => list.slice(prefix)));
  say(shown, query);
}

function drawPicture(map, query) {
  const context = picture.getContext("2d");
  const small = Math.max(photograph.naturalWidth, photograph.naturalHeight) < 100;
  context.imageSmoothingEnabled = !small;
  context.drawImage(photograph, 0, 0, picture.width, picture.height);

  // Dark where there is little
  const brightest = [...map].sort((a, b) => a - b)[Math.floor(BRIGHTEST * (cells - 1))];
  const limit = brightest || Math.max(...map) || 1;
  const light = map.map((share) => DARKEST + (1 - DARKEST) * Math.min(share / limit, 1));
  context.imageSmoothingEnabled = false;
  const shade = (value) => [0, 0, 0, 255 * (1 - value)];
  // Where patches overlap, a pixel that the model gets is as dark as the patch nearest to it
  const ofPixel = (y, x) => cellOf(nearest(y + 0.5, 0), nearest(x + 0.5, 1));
  const shadow = overlap ? painted(light, shade, pixels, ofPixel) : painted(light, shade);
  context.drawImage(shadow, 0, 0, picture.width, picture.height);

  // A frame around the cell that looks
  if (query === null) return;
  const left = (query % width) * block;
  const top = Math.floor(query / width) * block;
  const across = picture.width / pixels[1]; // pixels of the canvas to one that the model gets
  const down = picture.height / pixels[0];
  const further = [rowsOfPatches - top, columnsOfPatches - left]
    .map((count, axis) => patch[axis] + (Math.min(block, count) - 1) * stride[axis]);
  const box = [left * stride[1] * across, top * stride[0] * down,
    further[1] * across, further[0] * down];
  for (const [colour, line] of [["#000", 6], ["#ffc400", 3]]) {
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(...box);
  }
}

// A pixel for each patch, in the colour of its cell; or of another size, with the cell at each pixel
function painted(map, colour, [tall, wide] = data.grid, cellAtPixel = cellOf) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [wide, tall];
  const image = new ImageData(wide, tall);
  for (let line = 0; line < tall; line++) {
    for (let column = 0; column < wide; column++) {
      image.data.set(colour(map[cellAtPixel(line, column)]), 4 * (line * wide + column));
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function drawHeads(maps) {
  const single = maps.length === 2; // a mean alone
  element("head-choice").hidden = single;
  const buttons = [...element("heads").children];
  maps.forEach((map, i) => {
    const button = buttons[i];
    if (!button) return;
    const largest = Math.max(...map) || 1;
    const colour = (value) => [...LOW.map((low, c) => low + (HIGH[c] - low) * value), 255];
    const small = button.querySelector("canvas");
    small.getContext("2d").drawImage(painted(map.map((x) => x / largest), colour), 0, 0);
    button.setAttribute("aria-pressed", String(chosen.head === i - 1));
  });
  buttons.forEach((button, i) => { button.hidden = i >= maps.length; });
}

// In words

const percent = (share) => `${(100 * share).toFixed(share < 0.01 ? 2 : 1)}\u00a0%`;
const place = (cell) => `row ${Math.floor(cell / width) + 1}, column ${(cell % width) + 1}`;

function say(shown, query) {
  const layer = data.layers[chosen.layer];
  const map = shown.slice(data.prefix.length);
  const largest = map.indexOf(Math.max(...map));
  let looks = query === null || !layer.patches ? data.reader : `the ${data.cell} in ${place(query)}`;
  let head = "";
  if (layer.heads > 1) head = chosen.head === MEAN ? ", mean of its heads" : `, head ${chosen.head + 1}`;
  const title = layer.name[0].toUpperCase() + layer.name.slice(1) + head;
  const parts = [];
  if (chosen.layer === last) {
    parts.push(`Attention rollout through all layers. Of what reaches ${looks}, the largest share, ` +
      `${percent(map[largest])}, comes from ${place(largest)}.`);
  } else {
    const most = map[largest] > 0
      ? `most at ${place(largest)}, with ${percent(map[largest])} of the attention`
      : `at no ${data.cell}`;
    parts.push(`${title}: ${looks} looks ${most}.`);
  }
  const before = data.prefix.map((name, i) => `${name} ${percent(shown[i])}`);
  if (before.length) parts.push(`Of the tokens before the patches: ${before.join(", ")}.`);
  if (pinned && hovered !== null) parts.push(`Here, ${place(hovered)}: ${percent(map[hovered])}.`);
  element("said").textContent = parts.join(" ");

  // What the controls say of themselves
  element("layer-name").textContent = layer.name;
  element("layer").setAttribute("aria-valuetext", layer.name);
  picture.setAttribute("aria-label",
    `Photograph ${chosen.photograph + 1}, ${height} by ${width} cells. ${title}, ${looks} looks`);
  element("back").disabled = query === null;
}

// Choosing

function choosePhotograph(number) {
  chosen.photograph = number;
  unpacked.clear();
  const { name, source, answers } = data.photographs[number];
  photograph.src = source;
  photograph.decode().then(() => {
    const scale = 640 / Math.max(photograph.naturalWidth, photograph.naturalHeight);
    picture.width = Math.round(photograph.naturalWidth * scale);
    picture.height = Math.round(photograph.naturalHeight * scale);
    return draw();
  }, () => {}); // another was chosen before this one could be shown
  const caption = answers.map(([label, value]) => `${label} ${value}`).join(", ");
  element("answers").textContent = caption ? `${name}: ${caption}` : name;
  [...element("photographs").children].forEach((button, i) =>
    button.setAttribute("aria-pressed", String(i === number)));
}

function chooseQuery(query) {
  chosen.query = query === null ? start : query;
  pinned = query !== null;
  draw();
}

function cellAt(event) {
  const box = picture.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * pixels[1];
  const y = ((event.clientY - box.top) / box.height) * pixels[0];
  return cellOf(nearest(y, 0), nearest(x, 1));
}

// The row (axis 0) or column of patches whose middle is nearest to a pixel that the model gets
function nearest(position, axis) {
  const steps = (position - patch[axis] / 2) / stride[axis]; // from the middle of the first
  return clamp(Math.floor(steps + 0.5), data.grid[axis]);
}

// The cell that a patch belongs to
function cellOf(line, column) {
  return Math.floor(line / block) * width + Math.floor(column / block);
}

const clamp = (value, count) => Math.min(Math.max(value, 0), count - 1);

picture.addEventListener("pointermove", (event) => {
  if (event.pointerType !== "mouse" || cellAt(event) === hovered) return;
  hovered = cellAt(event);
  draw();
});
picture.addEventListener("pointerleave", () => { hovered = null; draw(); });
picture.addEventListener("click", (event) => {
  const cell = cellAt(event);
  chooseQuery(pinned && chosen.query === cell ? null : cell);
});

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

picture.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return chooseQuery(null);
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return undefined;
  event.preventDefault(); // or the page would scroll
  hovered = null;
  const middle = Math.floor(height / 2) * width + Math.floor(width / 2);
  if (chosen.query === null) return chooseQuery(middle);
  const line = clamp(Math.floor(chosen.query / width) + step[0], height);
  return chooseQuery(line * width + clamp((chosen.query % width) + step[1], width));
});

element("layer").addEventListener("input", (event) => {
  chosen.layer = Number(event.target.value);
  draw();
});
element("back").addEventListener("click", () => chooseQuery(null));

// The buttons

function button(parent, label, content, choose) {
  const made = document.createElement("button");
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.append(...content);
  made.addEventListener("click", choose);
  parent.append(made);
}

function begin() {
  data.photographs.forEach(({ name, source }, number) => {
    const image = new Image();
    image.src = source;
    image.alt = "";
    button(element("photographs"), name, [image], () => choosePhotograph(number));
  });
  element("photographs").hidden = data.photographs.length < 2;
  const most = Math.max(...data.layers.map((layer) => layer.heads));
  for (let head = MEAN; head < most; head++) {
    const small = document.createElement("canvas");
    [small.width, small.height] = [columnsOfPatches, rowsOfPatches];
    const title = head === MEAN ? "mean" : `${head + 1}`;
    button(element("heads"), head === MEAN ? "Mean of the heads" : `Head ${head + 1}`,
      [small, title], () => { chosen.head = head; draw(); });
  }
  element("layer").max = last;
  element("layer").value = last;
  element("back").textContent = data.reader ? `Back to ${data.reader}` : "Back to the middle";
  element("keys").textContent =
    `Move over the photograph, or tap it, to see what a ${data.cell} looks at; a click keeps it. ` +
    "Move the slider to see one layer and its heads. " +
    "With the keyboard: arrow keys on the photograph, Escape to go back.";
  element("explorer").hidden = false;
  choosePhotograph(0);
}

if (typeof DecompressionStream === "undefined") element("too-old").hidden = false;
else begin();
