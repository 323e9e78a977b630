// The page: it opens the model that it holds, and answers the photographs that somebody gives it. Nothing leaves
// it. Names of classes and of files are put into it as text, always.
"use strict";

const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent); // what vitkit export says of the model
const SHOWN = 640; // pixels of the longer side of a picture on the page
const TOP = 5; // classes that are shown
// As vitkit.inspection draws it: red, and what is below stays visible
const HOT = [228, 26, 28];
const STRONGEST = 0.7;
const UNLIKE = "Red where it is unlike the good photographs that the model remembers.";
const UNREADABLE = "this browser cannot read it as a photograph";

let session = null; // the model, opened by ONNX Runtime
let newest = 0; // the number of the photograph that was given last
let queue = Promise.resolve(); // the model computes one photograph at a time

// The model and what computes it, which the page holds as text

async function unpacked(id) {
  const text = atob(at(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  at(id).remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const address = (bytes) => URL.createObjectURL(new Blob([bytes], { type: "text/javascript" }));

function loaded(source) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onload = resolve;
    script.onerror = () => reject(new Error("the program in it cannot be run"));
    script.src = source;
    document.head.append(script);
  });
}

async function open() {
  const [program, glue, wasm, model] = await Promise.all(["program", "glue", "wasm", "model"].map(unpacked));
  await loaded(address(program)); // it makes `ort`
  ort.env.wasm.numThreads = 1; // several need headers that a file has not
  ort.env.wasm.wasmBinary = wasm.buffer;
  ort.env.wasm.wasmPaths = { mjs: address(glue) };
  session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
}

// Photographs

async function decoded(file) {
  if (file.size > data.largestFile) {
    throw new Error(`it has ${Math.round(file.size / 2 ** 20)} MiB; photographs of up to ${data.largestFile / 2 ** 20} MiB are accepted`);
  }
  const [width, height] = await sizeOf(file);
  if (width * height > data.largestPixels || Math.max(width, height) > data.longestSide) {
    throw new Error(`it is ${width} × ${height} pixels; photographs of up to ${data.largestPixels / 10 ** 6} megapixels and ${data.longestSide} pixels a side are accepted`);
  }
  // Pixels as they are stored, upright; vitkit ignores colour profiles too
  const asStored = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "default" };
  return createImageBitmap(file, asStored).catch(() => {
    throw new Error(UNREADABLE);
  });
}

// Width and height, by the header alone
function sizeOf(file) {
  const image = new Image();
  const source = URL.createObjectURL(file);
  return new Promise((resolve, reject) => {
    image.onload = () => resolve([image.naturalWidth, image.naturalHeight]);
    image.onerror = () => reject(new Error(UNREADABLE));
    image.src = source;
  }).finally(() => URL.revokeObjectURL(source));
}

// What gives rows of a photograph to prepare(); what is transparent is white, as vitkit has it
function rowsOf(bitmap) {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d", { willReadFrequently: true });
  return (top, count) => {
    canvas.width = bitmap.width;
    canvas.height = count;
    context.fillStyle = "white";
    context.fillRect(0, 0, bitmap.width, count);
    context.drawImage(bitmap, 0, top, bitmap.width, count, 0, 0, bitmap.width, count);
    return context.getImageData(0, 0, bitmap.width, count).data;
  };
}

function preparedBitmap(bitmap) {
  const settings = data.preprocessing;
  const [height, width] = resizedSize(bitmap.height, bitmap.width, settings);
  if (height * width > data.mostResized) {
    throw new Error(`it is ${bitmap.width} × ${bitmap.height} pixels: too narrow for this model`);
  }
  return prepare(bitmap.height, bitmap.width, rowsOf(bitmap), settings);
}

// Answers

function probabilitiesOf(logits) {
  if (data.activation === "sigmoid") return logits.map((x) => 1 / (1 + Math.exp(-x)));
  if (data.activation !== "softmax") return logits;
  const highest = Math.max(...logits);
  const powers = logits.map((x) => Math.exp(x - highest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((x) => x / sum);
}

async function computed(images) {
  const input = new ort.Tensor("uint8", images, [1, 3, ...data.preprocessing.size]);
  const outputs = await session.run({ images: input });
  const logits = Array.from(outputs.logits.data);
  if (!logits.every(Number.isFinite)) throw new Error("the model's outputs are not finite");
  const answer = { probabilities: probabilitiesOf(logits), strangeness: null, attention: null };
  if (outputs.strangeness) answer.strangeness = outputs.strangeness.data[0];
  const looked = outputs.attention || outputs.anomaly_map;
  if (looked) {
    const [, rows, columns] = looked.dims;
    const isAnomaly = Boolean(outputs.anomaly_map);
    answer.attention = { map: looked.data, rows, columns, isAnomaly };
    if (isAnomaly) at("looked").querySelector("figcaption").textContent = UNLIKE;
  }
  return answer;
}

// A photograph, a Blob -> its pixels as the model gets them, and the answer to them
async function answered(file) {
  await ready;
  const began = performance.now();
  const bitmap = await decoded(file);
  const images = preparedBitmap(bitmap);
  const prepared = performance.now();
  const answer = await computed(images);
  const seconds = { preparing: (prepared - began) / 1000, computing: (performance.now() - prepared) / 1000 };
  return { bitmap, images, seconds, ...answer };
}

// What is shown

function isUnknown(answer) {
  return answer.strangeness !== null && answer.strangeness > 0;
}

// Classes that the model leaves open, of those that are shown; others than the first only if they are likely, as
// some may be open only because too few images of them were learned from
function openClasses({ probabilities }, shown) {
  if (!data.unknown) return [];
  const { least, likely } = data.unknown;
  const leastOf = (k) => Math.max(least[least.length === 1 ? 0 : k], likely);
  return shown.filter((k, rank) => rank === 0 || probabilities[k] >= leastOf(k));
}

function show(name, answer) {
  const { probabilities } = answer;
  const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
  const shown = order.slice(0, TOP);

  // The likeliest classes
  at("classes").replaceChildren(
    ...shown.map((k) => {
      const item = document.createElement("li");
      const value = probabilities[k];
      if (data.activation !== "none") {
        const bar = document.createElement("i");
        bar.style.width = `${(100 * value).toFixed(1)}%`;
        item.append(bar);
      }
      item.append(spanOf(data.labels[k]), spanOf(numberText(value), "number"));
      return item;
    }),
  );

  // What its limits say
  at("unknown").hidden = !isUnknown(answer);
  at("unknown").textContent = "Unknown: it is unlike the photographs that the model has learned from, so it may be none of these.";
  const open = openClasses(answer, shown);
  const leavesOpen = !isUnknown(answer) && open.length > 1;
  const sentence = leavesOpen ? `It leaves open: ${open.map((k) => data.labels[k]).join(", ")}.` : "";
  at("open").textContent = sentence;
  const total = answer.seconds.preparing + answer.seconds.computing;
  at("time").textContent = `${total.toFixed(total < 1 ? 2 : 1)} seconds, in this browser`;

  // The part of the photograph that the model gets, and what it looks at
  const canvas = at("shown").querySelector("canvas");
  drawVisible(canvas, answer.bitmap);
  canvas.setAttribute("aria-label", name);
  at("shown").querySelector("figcaption").textContent = name;
  at("looked").hidden = answer.attention === null;
  at("answer").classList.toggle("alone", answer.attention === null);
  if (answer.attention !== null) drawLooked(at("looked").querySelector("canvas"), canvas, answer.attention);
  at("answer").hidden = false;
}

function spanOf(text, style = "") {
  const span = document.createElement("span");
  span.className = style;
  span.textContent = text;
  return span;
}

function numberText(value) {
  return data.activation === "none" ? String(Number(value.toPrecision(4))) : `${(100 * value).toFixed(1)} %`;
}

function drawVisible(canvas, bitmap) {
  const [top, left, height, width] = visibleBox(bitmap.height, bitmap.width, data.preprocessing);
  const scale = SHOWN / Math.max(height, width);
  canvas.width = Math.max(Math.round(width * scale), 1);
  canvas.height = Math.max(Math.round(height * scale), 1);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, left, top, width, height, 0, 0, canvas.width, canvas.height);
}

// The photograph, dark where the map has little weight (Fig. 6 of the paper); or red where it is unlike good ones
function drawLooked(canvas, photograph, { map, rows, columns, isAnomaly }) {
  canvas.width = photograph.width;
  canvas.height = photograph.height;
  const pixels = photograph.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const large = enlarged(map, rows, columns, canvas.height, canvas.width);
  const highest = Math.max(...map, Number.MIN_VALUE);
  large.forEach((weight, i) => {
    if (isAnomaly) {
      // A probability: a good photograph has none that is high, and stays as it is
      const share = STRONGEST * Math.min(Math.max(weight, 0), 1);
      HOT.forEach((level, channel) => {
        const index = 4 * i + channel;
        pixels.data[index] += share * (level - pixels.data[index]);
      });
      return;
    }
    for (let channel = 0; channel < 3; channel++) pixels.data[4 * i + channel] *= weight / highest;
  });
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// What somebody gives

function give(file) {
  if (!file) return;
  const number = ++newest;
  const name = file.name || "photograph";
  at("problem").textContent = "";
  at("status").textContent = `Looking at ${name} …`;
  queue = queue.then(async () => {
    if (number !== newest) return; // another one was given meanwhile
    await new Promise((resolve) => setTimeout(resolve, 20)); // the sentence is seen first
    try {
      const answer = await answered(file);
      if (number === newest) show(name, answer);
      answer.bitmap.close();
    } catch (error) {
      if (number === newest) at("problem").textContent = `${name}: ${error.message}.`;
    }
    if (number === newest) at("status").textContent = "";
  });
}

// The first picture among what was dropped or pasted
function givePicture(transfer) {
  const files = [...transfer.files];
  const picture = files.find((file) => file.type.startsWith("image/")) || files[0];
  if (picture) give(picture);
  else at("problem").textContent = "There is no file in it: drop or paste a photograph.";
}

function listen() {
  const isTouched = navigator.maxTouchPoints > 0; // a telephone: it has a camera, and nothing is dropped
  at("take").hidden = !isTouched;
  at("drop").hidden = isTouched && matchMedia("(hover: none)").matches;
  for (const [button, input] of [["choose", "file"], ["take", "camera"]]) {
    at(button).disabled = false;
    at(button).addEventListener("click", () => at(input).click());
    at(input).addEventListener("change", () => {
      give(at(input).files[0]);
      at(input).value = ""; // so that the same file can be chosen again
    });
  }
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) givePicture(event.clipboardData);
  });
  document.addEventListener("drop", (event) => givePicture(event.dataTransfer));
}

// A file that is dropped is never opened in the page's place, even before the model is
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  at("over").hidden = false;
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) at("over").hidden = true;
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  at("over").hidden = true;
});

function about() {
  document.querySelector("h1").textContent = data.name;
  document.title = data.name;
  at("facts").textContent = data.facts;
  for (const [name, text] of data.about) {
    const term = document.createElement("dt");
    const description = document.createElement("dd");
    term.textContent = name;
    description.textContent = text;
    at("about").append(term, description);
  }
  at("notice").textContent = data.notice;
}

about();
const ready = open();
ready.then(
  () => {
    at("status").textContent = "";
    listen();
  },
  (error) => {
    at("status").textContent = "";
    at("problem").textContent = `The model cannot be opened in this browser: ${error.message}.`;
  },
);

// For programs: vitkit.answer(blob) -> the probabilities of data.labels, and all that is shown
globalThis.vitkit = { ready, answer: answered, labels: data.labels };
