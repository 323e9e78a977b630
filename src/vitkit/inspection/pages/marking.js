// The page of a review: of each photograph its reader chooses whether it is left out, or of another class. The
// choices are kept in this browser, and saved as the list that --data.exclude and --apply read. Nothing is
// changed or deleted here.
// The element "data" has the first line of the list, the name of its file, what follows it, the classes, and
// the part and the label of each photograph.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const figures = [...document.querySelectorAll("figure[data-image]")];
const names = new Set(figures.map((figure) => figure.dataset.image));
const storage = `vitkit review ${data.heading}`;
const labelOf = (name) => data.images[name][1];
const LEAVE_OUT = "leave out"; // a choice; any other is "label", a tab, and the class

// What is chosen, by name: a photograph may be shown under several headings

function choicesOfBefore() {
  try {
    return JSON.parse(localStorage.getItem(storage)) ?? [];
  } catch {
    return []; // no storage, as in a private window
  }
}

const chosen = new Map(choicesOfBefore().filter(([name]) => names.has(name)));

function choose(name, choice) {
  if (choice) chosen.set(name, choice);
  else chosen.delete(name);
  try {
    localStorage.setItem(storage, JSON.stringify([...chosen]));
  } catch {
    // the choices last as long as the page is open
  }
  show();
}

// Below each photograph its choices, and at the foot of the page how many are made

function option(text, value) {
  const each = document.createElement("option");
  each.textContent = text;
  each.value = value;
  return each;
}

for (const figure of figures) {
  const name = figure.dataset.image;
  const select = document.createElement("select");
  select.setAttribute("aria-label", `what to do with ${name}`);
  select.append(option("keep as it is", ""), option("leave out", LEAVE_OUT));
  for (const label of data.classes) {
    if (label !== labelOf(name)) select.append(option(`wrong label: ${label}`, `label\t${label}`));
  }
  select.addEventListener("change", () => choose(name, select.value));
  figure.append(select);
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
if (data.classes.length) {
  const keys = data.classes.slice(0, 9).map((label, k) => `${k + 1}: ${label}`);
  hint.textContent += `; ${keys.join(", ")}`;
}
foot.append(count, save, forget, hint);
document.body.append(foot);

function show() {
  for (const figure of figures) {
    const choice = chosen.get(figure.dataset.image) ?? "";
    figure.classList.toggle("marked", choice === LEAVE_OUT);
    figure.classList.toggle("relabelled", choice !== "" && choice !== LEAVE_OUT);
    figure.querySelector("select").value = choice;
  }
  const out = [...chosen.values()].filter((choice) => choice === LEAVE_OUT).length;
  count.textContent = `${out} to leave out, ${chosen.size - out} of another class, of ${names.size}`;
  save.disabled = forget.disabled = !chosen.size;
}

save.addEventListener("click", () => {
  const lines = [...chosen].sort().map(([name, choice]) => {
    const [decision, other = ""] = choice.split("\t");
    const [part, label] = data.images[name];
    return `${[name, decision, other, label, part].join("\t")}\n`;
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data.heading, "\n", ...lines], { type: "text/plain" }));
  link.download = data.file;
  link.click();
  hint.textContent = `saved ${data.file}; next: ${data.next}`;
});

forget.addEventListener("click", () => {
  for (const name of [...chosen.keys()]) choose(name, "");
});

// Keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !figures.length) return;
  if (document.activeElement.tagName === "SELECT") return; // which has keys of its own
  const at = figures.indexOf(document.activeElement.closest("figure"));
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (step) {
    const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), figures.length - 1);
    figures[next].focus();
    event.preventDefault();
    return;
  }
  if (at < 0) return;
  const name = figures[at].dataset.image;
  const label = data.classes[Number(event.key) - 1];
  if (event.key === "y") choose(name, LEAVE_OUT);
  else if (event.key === "n" || (label !== undefined && label === labelOf(name))) choose(name, "");
  else if (label !== undefined) choose(name, `label\t${label}`);
});

show();
