// The page of a review: photographs are marked to be left out, the marks are kept in this browser, and saved
// as the list that --data.exclude reads. Nothing is changed or deleted.
// The element "data" has the first line of the list, the name of its file, and what follows it.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const figures = [...document.querySelectorAll("figure[data-image]")];
const names = new Set(figures.map((figure) => figure.dataset.image));
const storage = `vitkit review ${data.heading}`;

// What is marked, by name: a photograph may be shown under several headings

function marksOfBefore() {
  try {
    return JSON.parse(localStorage.getItem(storage)) ?? [];
  } catch {
    return []; // no storage, as in a private window
  }
}

const marked = new Set(marksOfBefore().filter((name) => names.has(name)));

function mark(name, isMarked) {
  if (isMarked) marked.add(name);
  else marked.delete(name);
  try {
    localStorage.setItem(storage, JSON.stringify([...marked]));
  } catch {
    // the marks last as long as the page is open
  }
  show();
}

// Below each photograph a box, and at the foot of the page what is marked

for (const figure of figures) {
  const label = document.createElement("label");
  const box = document.createElement("input");
  box.type = "checkbox";
  box.addEventListener("change", () => mark(figure.dataset.image, box.checked));
  label.append(box, " leave out");
  figure.append(label);
  figure.tabIndex = 0;
}

const foot = document.createElement("footer");
const count = document.createElement("span");
const save = document.createElement("button");
const forget = document.createElement("button");
const hint = document.createElement("small");
save.textContent = "Save the list";
forget.textContent = "Forget all";
hint.textContent = "arrows: next and previous; y: leave out; n: keep";
foot.append(count, save, forget, hint);
document.body.append(foot);

function show() {
  for (const figure of figures) {
    const isMarked = marked.has(figure.dataset.image);
    figure.classList.toggle("marked", isMarked);
    figure.querySelector("input").checked = isMarked;
  }
  count.textContent = `${marked.size} of ${names.size} to leave out`;
  save.disabled = forget.disabled = !marked.size;
}

save.addEventListener("click", () => {
  const lines = [...marked].sort().map((name) => `${name}\tmarked by hand\n`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data.heading, "\n", ...lines], { type: "text/plain" }));
  link.download = data.file;
  link.click();
  hint.textContent = `saved ${data.file}; next: ${data.next}`;
});

forget.addEventListener("click", () => {
  for (const name of [...marked]) mark(name, false);
});

// Keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !figures.length) return;
  const at = figures.indexOf(document.activeElement.closest("figure"));
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step) {
    const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), figures.length - 1);
    figures[next].focus();
    event.preventDefault();
  } else if (at >= 0 && (event.key === "y" || event.key === "n")) {
    mark(figures[at].dataset.image, event.key === "y");
  }
});

show();
