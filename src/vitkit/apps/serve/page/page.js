// The page of a server: it sends the photographs that somebody gives it, and shows their classes and what the
// model looks at. Names of classes and of files are put into it as text, always.
"use strict";

const at = (id) => document.getElementById(id);
const TOP = 5; // classes that are shown
const LIKELY = 0.01; // probability of a further class that is named, if the model leaves it open
const TRIES = 5; // of a request that the server has no room for
const FORMULA = /^[=+\-@\t\r]/; // the beginning of a spreadsheet's formula

const models = []; // one, or two side by side
const photographs = []; // what was given, in this order
let shown = null; // the photograph that is looked at
let token = ""; // what a server may want, kept in this page alone

// Requests

async function ask(path, body) {
  for (let tried = 1; ; tried++) {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let response;
    try {
      response = await fetch(path, body ? { method: "POST", headers, body } : { headers });
    } catch {
      const file = body?.get("image");
      if (file && !(await isReadable(file))) {
        throw new Error(`${file.name} cannot be read: it is a folder, or it was moved or changed`);
      }
      throw new Error("the server does not answer; start it again, and open the address that it prints");
    }
    if (response.status === 401) {
      await tokenGiven();
    } else if (response.status === 503 && tried < TRIES) {
      await new Promise((resolve) => setTimeout(resolve, 1000 * (response.headers.get("retry-after") ?? 1)));
    } else {
      const answer = await response.json().catch(() => ({ error: `the server answered with status ${response.status}` }));
      if (!response.ok) throw new Error(answer.error);
      return answer;
    }
  }
}

const isReadable = (file) => file.slice(0, 1).arrayBuffer().then(() => true, () => false);

let givingToken = null; // while the form is there, all requests wait for it

function tokenGiven() {
  givingToken ??= new Promise((resolve) => {
    const label = at("access").querySelector("label");
    if (token) label.textContent = "That is not the token of this server. Its token";
    at("access").hidden = false;
    at("token").focus();
    at("access").onsubmit = (event) => {
      event.preventDefault();
      if (!/^[\x21-\x7e]+$/.test(at("token").value)) { // no header can hold it
        label.textContent = "A token has letters, digits and signs of ASCII. The token of this server";
        return;
      }
      token = at("token").value;
      at("token").value = "";
      at("access").hidden = true;
      givingToken = null;
      resolve();
    };
  });
  return givingToken;
}

const sent = (photograph) => {
  const form = new FormData();
  form.append("image", photograph.file, photograph.file.name || "photograph");
  return form;
};

// The models

function addModel(address) {
  const section = at("model").content.firstElementChild.cloneNode(true);
  const part = (selector) => section.querySelector(selector);
  const model = { address, section, part, labels: [], activation: "softmax", asked: 0, looked: null };
  model.choice = { one: false, layer: 0, head: 0, patch: null }; // numbers from 1; 0 is not chosen yet, or all
  models.push(model);
  at("answer").append(section);

  const again = () => look(model);
  for (const radio of section.querySelectorAll("[type=radio]")) {
    radio.name = `layers-${models.length}`;
    radio.onchange = () => {
      model.choice.one = radio.value === "one";
      if (!model.choice.one) model.choice.patch = null;
      again();
    };
  }
  part("[type=range]").oninput = (event) => {
    model.choice.layer = Number(event.target.value);
    part("output").textContent = event.target.value;
  };
  part("[type=range]").onchange = again;
  part("select").onchange = (event) => {
    model.choice.head = Number(event.target.value);
    again();
  };
  part(".back").onclick = () => {
    model.choice.patch = null;
    part("button.frame").focus();
    again();
  };
  part("button.frame").onclick = (event) => choosePatch(model, event);
  part("button.frame").onkeydown = (event) => movePatch(model, event);
  return model;
}

async function describe(model) {
  const { name, labels, activation, preprocessing, colours } = await ask(`${model.address}model`);
  Object.assign(model, { name, labels, activation, masks: Boolean(colours) });
  if (model.masks) asMasks(model);
  model.part(".name").textContent = name;
  model.part(".name").title = name;
  const facts = [];
  if (labels.length) facts.push(labels.length === 1 ? "1 class" : `${labels.length.toLocaleString("en")} classes`);
  if (model.masks) facts.push("one for every pixel");
  else if (preprocessing.size) facts.push(preprocessing.size.join(" × ") + " pixels");
  return facts.join(", ");
}

async function open() {
  for (const address of document.body.dataset.models.split(" ")) addModel(address);
  at("answer").classList.add(models.length > 1 ? "pair" : "single");
  try {
    const facts = await Promise.all(models.map(describe));
    at("answer").classList.toggle("pixels", models.every(({ masks }) => masks));
    const names = models.map((model) => model.name);
    at("title").textContent = names.join(" and ");
    at("facts").textContent = models.length > 1 ? models.map(({ name }, i) => `${name}: ${facts[i]}`).join(" · ") : facts[0];
    document.title = `${names.join(" and ")} - vitkit`;
    const labels = new Set(models.flatMap((model) => model.labels));
    at("labels").replaceChildren(...[...labels].map((label) => new Option(label)));
  } catch (error) {
    at("problem").textContent = `The models cannot be shown: ${error.message}.`;
  }
}

// What somebody gives

let queue = Promise.resolve(); // photographs are answered one after the other

function give(files) {
  const given = [...files].map((file) => ({ file, url: URL.createObjectURL(file), answers: models.map(() => null) }));
  if (!given.length) return;
  photographs.push(...given);
  at("give").classList.add("small");
  for (const photograph of given) {
    addThumbnail(photograph);
    queue = queue.then(() => Promise.all(models.map((model, i) => answer(photograph, model, i))));
  }
  at("thumbnails").hidden = photographs.length < 2;
  show(given[0]);
}

function addThumbnail(photograph) {
  const button = document.createElement("button");
  const image = document.createElement("img");
  const words = document.createElement("span");
  button.type = "button";
  button.title = photograph.file.name;
  image.src = photograph.url;
  image.alt = "";
  image.onerror = () => image.remove(); // a format that this browser does not show
  words.textContent = photograph.file.name || "photograph";
  button.append(image, words);
  button.onclick = () => show(photograph);
  photograph.button = button;
  photograph.words = words;
  const item = document.createElement("li");
  item.append(button);
  at("thumbnails").append(item);
}

async function answer(photograph, model, i) {
  try {
    const path = model.masks ? "segment" : `predict?top=${TOP}`;
    const { predictions, segmentations } = await ask(`${model.address}${path}`, sent(photograph));
    [photograph.answers[i]] = predictions ?? segmentations;
  } catch (error) {
    photograph.answers[i] = { error: error.message };
  }
  if (i === 0) {
    const { error, unknown, labels } = photograph.answers[0];
    const words = () => (model.masks ? wordsOfMask(photograph.answers[0]) : labels[0]);
    photograph.words.textContent = error ? "no answer" : unknown ? "unknown" : words();
    photograph.words.classList.toggle("problem", Boolean(error || unknown));
  }
  if (photograph === shown) {
    showAnswer(photograph, model, i);
    if (i === 0) at("said").textContent = `${photograph.file.name}: ${model.part(".says").innerText}`;
  }
}

// What is shown

function show(photograph) {
  shown = photograph;
  for (const each of photographs) each.button.setAttribute("aria-pressed", String(each === photograph));
  const image = at("photograph").querySelector("img");
  const caption = at("photograph").querySelector("figcaption");
  caption.textContent = photograph.file.name;
  image.parentElement.hidden = false;
  image.onerror = () => {
    image.parentElement.hidden = true;
    caption.textContent = `${photograph.file.name} (a format that this browser does not show)`;
  };
  image.src = photograph.url;
  image.alt = photograph.file.name;
  at("answer").hidden = false;
  at("corrections").hidden = models[0].masks; // it has no class of a photograph to correct
  at("corrected").textContent = "";
  models.forEach((model, i) => {
    model.choice.patch = null; // it was one of another photograph
    showAnswer(photograph, model, i);
    look(model);
  });
}

function showAnswer(photograph, model, i) {
  if (model.masks) {
    showMask(photograph, model, i);
    return;
  }
  const given = photograph.answers[i];
  const { labels = [], probabilities = [], unknown = false, possible = [], error = "" } = given ?? {};
  const items = labels.map((label, rank) => {
    const item = document.createElement("li");
    const isShare = model.activation !== "none";
    if (isShare) {
      const bar = document.createElement("i");
      bar.style.width = `${(100 * Math.min(Math.max(probabilities[rank], 0), 1)).toFixed(1)}%`;
      item.append(bar);
    }
    const value = isShare ? `${(100 * probabilities[rank]).toFixed(1)} %` : String(Number(probabilities[rank].toPrecision(4)));
    item.append(spanOf(label), spanOf(value, "number"));
    return item;
  });
  model.part("ol").replaceChildren(...items);
  const others = labels.filter((label, rank) => rank > 0 && possible.includes(label) && probabilities[rank] >= LIKELY);
  let sentence = error && `No answer: ${error}.`;
  if (unknown) sentence = "Unknown: it is unlike the photographs that the model has learned from, so it may be none of these.";
  model.part(".unknown").textContent = sentence;
  if (error) model.part("figcaption").textContent = ""; // why there is no map either
  model.part(".possible").textContent = given ? "" : "Waiting for the answer …";
  if (others.length && !unknown) model.part(".possible").textContent = `It may also be: ${others.join(", ")}.`;
}

function spanOf(text, style = "") {
  const span = document.createElement("span");
  span.className = style;
  span.textContent = text;
  return span;
}

// What a model looks at

async function look(model) {
  if (model.masks) return;
  const number = ++model.asked; // of what is asked meanwhile, the last counts
  const photograph = shown;
  const { one, layer, head, patch } = model.choice;
  const query = new URLSearchParams();
  if (one) {
    query.set("layer", layer);
    if (head) query.set("head", head);
    if (patch) query.set("row", patch[0]), query.set("column", patch[1]);
  }
  const frame = model.part("button.frame");
  frame.classList.add("busy");
  let looked = null;
  let sentence = "";
  try {
    looked = await ask(`${model.address}attention?${query}`, sent(photograph));
  } catch (error) {
    sentence = error.message;
  }
  if (number !== model.asked) return;
  frame.classList.remove("busy");
  if (looked) showLooked(model, looked);
  else showNothing(model, sentence);
}

function showLooked(model, looked) {
  const { one } = model.choice;
  if (!model.looked) prepareChoice(model, looked);
  model.looked = looked;
  const image = model.part("button.frame img");
  image.src = `data:image/jpeg;base64,${looked.picture}`;
  image.alt = looked.caption;
  image.hidden = false;
  model.part("button.frame").hidden = false;
  model.part("button.frame").disabled = looked.unlike; // a map of what is unlike good images has no layers
  model.part("button.frame").setAttribute("aria-label", looked.unlike ? looked.caption : `${looked.caption} Arrow keys choose a patch.`);
  model.part("figcaption").textContent = one || looked.unlike ? looked.caption : `${looked.caption} Click a patch to see where it looks.`;
  showChoice(model);
}

function showNothing(model, sentence) {
  const isKnown = models.some((_, i) => shown.answers[i]?.error === sentence); // it is said below the photograph
  model.part("button.frame").hidden = true;
  model.part("figcaption").textContent = isKnown ? "" : `No map: ${sentence}.`;
  model.part(".choice").hidden = true;
}

// The controls of a model that has attention
function prepareChoice(model, looked) {
  const layers = looked.layers.length;
  model.choice.layer = Math.ceil(layers / 2);
  const range = model.part("[type=range]");
  range.max = layers;
  range.value = model.choice.layer;
  model.part("output").textContent = range.value;
  range.parentElement.hidden = layers < 2;
  const heads = [new Option("mean of all", 0)];
  for (let head = 1; head <= looked.heads; head++) heads.push(new Option(head, head));
  model.part("select").replaceChildren(...heads);
}

function showChoice(model) {
  const { one, patch } = model.choice;
  model.part(".choice").hidden = model.looked.unlike;
  model.part(".one").hidden = !one;
  model.part(".back").hidden = !patch;
  model.part(`[value=${one ? "one" : "all"}]`).checked = true;
}

function takePatch(model, patch) {
  model.choice.patch = patch;
  model.choice.one = true;
  look(model);
}

const nearest = (middles, share) =>
  1 + middles.reduce((best, middle, i) => (Math.abs(middle - share) < Math.abs(middles[best] - share) ? i : best), 0);

function choosePatch(model, event) {
  const { rows, columns } = model.looked;
  if (event.detail === 0) return takePatch(model, model.choice.patch ?? [Math.ceil(rows.length / 2), Math.ceil(columns.length / 2)]); // by key
  const box = model.part("button.frame img").getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width;
  const y = (event.clientY - box.top) / box.height;
  if (x < 0 || x > 1 || y < 0 || y > 1) return; // beside the picture
  takePatch(model, [nearest(rows, y), nearest(columns, x)]);
}

function movePatch(model, event) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step || !model.looked) return;
  event.preventDefault();
  const { rows, columns } = model.looked;
  const [row, column] = model.choice.patch ?? [Math.ceil(rows.length / 2), Math.ceil(columns.length / 2)];
  const within = (number, count) => Math.min(Math.max(number, 1), count);
  takePatch(model, [within(row + step[0], rows.length), within(column + step[1], columns.length)]);
}

// Corrections: they stay in this page until they are downloaded

const corrections = new Map(); // of a photograph: its right class, and what the first model said

at("correct").onsubmit = (event) => {
  event.preventDefault();
  const label = at("label").value.trim();
  let sentence = "";
  if (!label) sentence = "Say what is on the photograph first.";
  else if (/[\p{Cc}\p{Cf}]/u.test(label)) sentence = "A label is one line of text.";
  else if (FORMULA.test(label)) sentence = "A label does not begin as a formula of a spreadsheet does.";
  if (!sentence) {
    corrections.set(shown, { label, predicted: shown.answers[0]?.labels?.[0] ?? "" });
    at("label").value = "";
    at("download").hidden = false;
    sentence = corrections.size === 1 ? "1 photograph corrected." : `${corrections.size} photographs corrected.`;
  }
  at("corrected").textContent = sentence;
};

at("download").onclick = async () => {
  const rows = [["image", "label", "predicted"]];
  const files = [];
  for (const [{ file }, { label, predicted }] of corrections) {
    const image = `images/${fileName(files.length + 1, file)}`;
    files.push([`corrections/${image}`, new Uint8Array(await file.arrayBuffer())]);
    const said = predicted.replace(/[\p{Cc}\p{Cf}]/gu, " ");
    rows.push([image, label, FORMULA.test(said) ? `'${said}` : said]);
  }
  const cell = (text) => (/[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const table = rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
  files.push(["corrections/corrections.csv", new TextEncoder().encode(table)]);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(zipped(files));
  link.download = "corrections.zip";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
};

// A unique name that every file system accepts: "0001-bee.jpg"
function fileName(number, file) {
  const [, stem, ending] = /^(.*?)(?:\.([A-Za-z0-9]{1,5}))?$/s.exec(file.name);
  const safe = stem.replace(/[^A-Za-z0-9_-]+/g, "_").replace(/^_+|_+$/g, "").slice(0, 60) || "photograph";
  return `${String(number).padStart(4, "0")}-${safe}.${(ending ?? "jpg").toLowerCase()}`;
}

const CRCS = Uint32Array.from({ length: 256 }, (_, number) => {
  for (let bit = 0; bit < 8; bit++) number = number & 1 ? (number >>> 1) ^ 0xedb88320 : number >>> 1;
  return number;
});

function crc32(bytes) {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = CRCS[(crc ^ byte) & 255] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

// A zip file of files that are stored as they are: photographs are compressed already
function zipped(files) {
  const numbers = (...fields) => {
    const view = new DataView(new ArrayBuffer(fields.reduce((sum, [size]) => sum + size, 0)));
    let place = 0;
    for (const [size, value] of fields) {
      if (size === 2) view.setUint16(place, value, true);
      else view.setUint32(place, value, true);
      place += size;
    }
    return new Uint8Array(view.buffer);
  };
  const parts = [];
  const directory = [];
  let offset = 0;
  let length = 0;
  for (const [path, bytes] of files) {
    const name = new TextEncoder().encode(path);
    // version, flags, method, time, date (1980-01-01), checksum, two sizes, and the length of the name
    const facts = [[2, 20], [2, 0], [2, 0], [2, 0], [2, 33], [4, crc32(bytes)], [4, bytes.length], [4, bytes.length], [2, name.length], [2, 0]];
    const head = numbers([4, 0x04034b50], ...facts);
    const entry = numbers([4, 0x02014b50], [2, 20], ...facts, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]);
    parts.push(head, name, bytes);
    directory.push(entry, name);
    offset += head.length + name.length + bytes.length;
    length += entry.length + name.length;
  }
  const end = numbers([4, 0x06054b50], [2, 0], [2, 0], [2, files.length], [2, files.length], [4, length], [4, offset], [2, 0]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

// Choosing, pasting and dropping

at("choose").onclick = () => at("file").click();
at("file").onchange = () => {
  give(at("file").files);
  at("file").value = ""; // the same file may be chosen again
};
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) give(event.clipboardData.files);
});
let within = 0; // elements of the page that something is dragged over
const dragged = (change) => (event) => {
  event.preventDefault();
  within = Math.max(within + change, 0);
  at("over").hidden = within === 0;
};
document.addEventListener("dragenter", dragged(1));
document.addEventListener("dragleave", dragged(-1));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  within = 0;
  at("over").hidden = true;
  give(event.dataTransfer.files);
});

open();
