// The part of the page for models that classify every pixel: a photograph under the colours of its classes, and a
// legend of them. page.js gives the photographs, and asks the server.
"use strict";

const LONGEST = 1600; // pixels of a drawn mask along its longer side
const FAINT = 0.55; // how much of the classes' colours is seen at first
const BACKGROUND = "background"; // a class that is no thing: its colour is not drawn

const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

// Replace a model's part of the page by that of one that classifies every pixel
function asMasks(model) {
  const section = document.getElementById("masks").content.firstElementChild.cloneNode(true);
  model.section.replaceWith(section);
  model.section = section;
  model.part = (selector) => section.querySelector(selector);
  model.hidden = new Set([...model.labels].filter((label) => label.toLowerCase() === BACKGROUND));
  const range = model.part("[type=range]");
  range.value = Math.round(100 * FAINT);
  range.oninput = () => {
    model.part("output").textContent = `${range.value} %`;
    model.part("canvas").style.opacity = String(range.value / 100);
  };
  range.oninput();
  model.part(".save-mask").onclick = () => saveAs(bytesOf(model.drawn.mask), "image/png", "png", model);
  model.part(".save-regions").onclick = () => {
    const { mask, ...rest } = model.drawn;
    saveAs(JSON.stringify(rest, null, 1), "application/json", "json", model);
  };
}

function saveAs(content, type, ending, model) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  const stem = model.drawn.name.replace(/^.*[\\/]/s, "").replace(/\.[A-Za-z0-9]{1,5}$/, "");
  link.download = `${stem.replace(/[^A-Za-z0-9_-]+/g, "_").slice(0, 60) || "mask"}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// What one reads below a photograph's thumbnail
function wordsOfMask({ classes }) {
  const things = classes.filter(({ label }) => label.toLowerCase() !== BACKGROUND);
  const { label, share } = things[0] ?? classes[0];
  return `${label} ${Math.round(100 * share)} %`;
}

const percent = (share) => (share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);

async function showMask(photograph, model, i) {
  const given = photograph.answers[i];
  const { error = "" } = given ?? {};
  model.part(".unknown").textContent = error && `No mask: ${error}.`;
  model.part(".possible").textContent = given ? "" : "Waiting for the mask …";
  model.part(".shown").hidden = !given || Boolean(error);
  model.part("ol").replaceChildren();
  if (!given || error) return;
  const number = ++model.asked; // another photograph may be chosen while this one is drawn
  const image = model.part(".frame img");
  image.onerror = () => (image.hidden = true); // a format that this browser does not show: the mask alone
  image.hidden = false;
  image.src = photograph.url;
  image.alt = photograph.file.name;
  model.part("ol").replaceChildren(...given.classes.map((each) => legendItem(each, model)));
  const regions = given.region_count === 1 ? "1 region" : `${given.region_count.toLocaleString("en")} regions`;
  model.part("figcaption").textContent = `${given.width.toLocaleString("en")} × ${given.height.toLocaleString("en")} pixels, ${regions}`;
  const mask = await createImageBitmap(new Blob([bytesOf(given.mask)], { type: "image/png" }));
  if (number !== model.asked) return;
  model.drawn = given;
  model.bitmap = mask;
  draw(model);
}

// A class in the legend: its colour, whether it is drawn, its name and its share
function legendItem({ label, colour, share }, model) {
  const item = document.createElement("li");
  const bar = document.createElement("i");
  bar.style.width = `${(100 * share).toFixed(1)}%`;
  const name = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = !model.hidden.has(label);
  box.onchange = () => {
    if (box.checked) model.hidden.delete(label);
    else model.hidden.add(label);
    draw(model);
  };
  const chip = spanOf("", "chip");
  chip.style.background = colour;
  name.append(box, chip, spanOf(label));
  item.append(bar, name, spanOf(percent(share), "number"));
  return item;
}

function draw({ part, drawn, bitmap, hidden }) {
  const canvas = part("canvas");
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingEnabled = false; // a colour between two would be that of a third class
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const gone = new Set(drawn.classes.filter(({ label }) => hidden.has(label)).map(({ colour }) => parseInt(colour.slice(1), 16)));
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  const { data } = pixels;
  for (let at = 0; at < data.length; at += 4) {
    if (gone.has((data[at] << 16) | (data[at + 1] << 8) | data[at + 2])) data[at + 3] = 0;
  }
  context.putImageData(pixels, 0, 0);
  canvas.setAttribute("aria-label", `The classes of ${drawn.name}`);
}
