// The page of `vitkit label`: it shows a question, and says what a person answers. Everything that it knows
// is told by the server; text is always put into the page as text.
"use strict";

const at = (id) => document.getElementById(id);
const WAITS = 2000; // milliseconds between two looks at how far it is
const UNSEEN = 250; // milliseconds in which nobody has looked at a question: an answer is the last one's second click

let question = null; // what is asked now
let classes = []; // their names, in the order in which they came: the keys 1 to 9 are the first nine
let others = new Set(); // photographs of the screen that do not belong to it
let isBusy = false;
let shownSince = 0;

// Who answers: the same person on this browser
let by = localStorage.getItem("vitkit-by");
if (!by) {
  by = `person-${Math.random().toString(36).slice(2, 6)}`;
  localStorage.setItem("vitkit-by", by);
}

// What is said to the server

async function post(what, values = {}) {
  if (isBusy) return null;
  isBusy = true;
  try {
    const body = JSON.stringify({ by, ...values });
    const response = await fetch(what, { method: "POST", body });
    const answer = await response.json();
    if (!response.ok) {
      say(answer.error, true);
      if (response.status === 409 && what === "answer") setTimeout(() => next("ask"), 0);
      return null;
    }
    return answer;
  } catch (error) {
    say("The server does not answer. What you have answered is kept: start the same command again, and open the address that it prints.", true);
    return null;
  } finally {
    isBusy = false;
  }
}

async function next(what, values) {
  const answer = await post(what, values);
  if (!answer) return;
  classes = answer.classes;
  question = answer.question;
  if (answer.said) say(answer.said);
  show();
  look();
}

function say(text, isProblem = false) {
  at("said").textContent = text;
  at("said").classList.toggle("problem", isProblem);
}

function send(values) {
  if (isBusy || !isSeen()) return;
  at("label").value = ""; // what is typed from now on is of the next photograph
  next("answer", { question: question.number, ...values });
}
const give = (label) => send({ decision: "class", label });
const aside = (decision) => {
  if (question && question.how !== "screen") send({ decision });
};
const confirmScreen = () => send({ decision: "class", others: [...others] });

// Whether a person can have looked at what is asked
function isSeen() {
  if (performance.now() - shownSince < UNSEEN) return false;
  const images = question.how === "screen" ? [...at("grid").querySelectorAll("img")] : [at("photograph")];
  if (images.every((image) => image.complete)) return true;
  say("The photograph is still on its way.");
  return false;
}

// A photograph cannot be shown. The server knows, and asks about another; but what is checked can be left out
function failed() {
  if (question && question.how !== "check") next("ask");
}

// What is shown

const address = (name, size) => `photograph?name=${encodeURIComponent(name)}&size=${size}`;

function show() {
  shownSince = performance.now();
  at("one").hidden = !question || question.how === "screen";
  at("screen").hidden = !question || question.how !== "screen";
  at("done").hidden = !!question;
  for (const id of ["unsure", "out", "keep"]) at(id).disabled = at("one").hidden;
  at("rename").disabled = classes.length === 0;
  if (!question) showNothing();
  else if (question.how === "screen") showScreen();
  else showOne();
}

const WHY = {
  random: "Drawn at random, to see how good the model is: it says nothing here.",
  typed: "Its answer teaches the model most.",
};

function showNothing() {
  at("waiting").textContent = "Every photograph has an answer, or somebody else is asked. You can finish.";
}

function showOne() {
  const [photograph] = question.photographs;
  at("photograph").src = address(photograph.name, "large");
  at("photograph").alt = photograph.shown;
  at("name").textContent = photograph.shown;
  const isCheck = question.how === "check";
  at("beside").hidden = !question.beside;
  if (question.beside) {
    const [image, caption] = at("beside").children;
    image.src = address(question.beside, "large");
    image.alt = caption.textContent = question.beside;
  }
  at("asked").textContent = isCheck ? `Labelled ${question.label}` : "What is it?";
  at("why").textContent = isCheck ? question.reason : WHY[question.how];
  at("keep").hidden = !isCheck || !question.label;
  at("label").placeholder = classes.length ? "Type a class, or choose below" : "Type a class, such as cat";
  showClasses();
  if (matchMedia("(hover: hover)").matches) at("label").focus();
}

function showClasses() {
  const likely = new Map(question.guesses.map((guess) => [guess.label, guess.probability]));
  const chosen = choice();
  const typed = at("label").value.trim().toLowerCase();
  const items = [];
  const hasKeys = haveKeys();
  classes.forEach((label, i) => {
    if (typed && !label.toLowerCase().startsWith(typed)) return;
    const button = document.createElement("button");
    const share = likely.get(label);
    const isGuess = share !== undefined && question.how !== "check";
    if (isGuess) {
      const bar = document.createElement("i");
      bar.style.width = `${Math.round(100 * share)}%`;
      button.append(bar);
    }
    const key = hasKeys && i < 9 ? String(i + 1) : "";
    for (const [text, style] of [[key, "key"], [label, ""], [isGuess ? `${Math.round(100 * share)} %` : "", "likely"]]) {
      const span = document.createElement("span");
      span.textContent = text;
      span.className = style;
      button.append(span);
    }
    button.type = "button";
    button.classList.toggle("chosen", label === chosen);
    button.onclick = () => give(label);
    const item = document.createElement("li");
    item.append(button);
    items.push(item);
  });
  // What was typed is the beginning of another class, or a class of its own
  if (chosen && typed && chosen.toLowerCase() !== typed) {
    const button = document.createElement("button");
    const name = at("label").value.trim();
    button.textContent = `${name}: a new class`;
    const key = document.createElement("kbd");
    key.textContent = "Shift Enter";
    button.append(key);
    button.type = "button";
    button.hidden = question.how === "check";
    button.onclick = () => give(name);
    const item = document.createElement("li");
    item.append(button);
    items.push(item);
  }
  at("classes").replaceChildren(...items);
}

// Number keys choose a class, unless classes begin with digits: then a digit is the name of one
const haveKeys = () => !classes.some((label) => /^[0-9]/.test(label));

// The class that Enter gives: what was typed, the one class that begins so, or what the model says
function choice() {
  const typed = at("label").value.trim();
  if (typed) {
    const same = classes.find((label) => label.toLowerCase() === typed.toLowerCase());
    const begin = classes.filter((label) => label.toLowerCase().startsWith(typed.toLowerCase()));
    return same ?? (begin.length === 1 ? begin[0] : typed);
  }
  return question.guesses.length ? question.guesses[0].label : "";
}

function showScreen() {
  others = new Set();
  at("of").textContent = question.label;
  const tiles = question.photographs.map((photograph) => {
    const tile = document.createElement("button");
    const image = document.createElement("img");
    image.onerror = failed;
    image.src = address(photograph.name, "small");
    image.alt = photograph.shown;
    tile.title = photograph.shown;
    tile.type = "button";
    tile.setAttribute("aria-pressed", "false");
    tile.append(image);
    tile.onclick = () => {
      if (!others.delete(photograph.name)) others.add(photograph.name);
      tile.setAttribute("aria-pressed", String(others.has(photograph.name)));
      showConfirm();
    };
    return tile;
  });
  at("grid").replaceChildren(...tiles);
  showConfirm();
  if (matchMedia("(hover: hover)").matches) tiles[0].focus();
}

function showConfirm() {
  const count = question.photographs.length - others.size;
  at("confirm").textContent = count ? `${count} are ${question.label}` : `None is ${question.label}`;
}

// How far it is

async function look() {
  let progress;
  try {
    progress = await (await fetch("progress")).json();
  } catch (error) {
    return;
  }
  const share = progress.photographs ? (100 * progress.labelled) / progress.photographs : 0;
  at("bar").firstElementChild.style.width = `${share}%`;
  at("bar").setAttribute("aria-valuemax", progress.photographs);
  at("bar").setAttribute("aria-valuenow", progress.labelled);
  const number = (value) => value.toLocaleString("en");
  const done = progress.checks ? "decided" : "labelled";
  at("count").textContent = `${number(progress.labelled)} of ${number(progress.photographs)} photographs ${done}`;
  at("rename").hidden = at("linking").hidden = progress.checks;
  at("finishing").querySelector(".main").textContent = progress.checks ? "Write the list" : "Write the model";
  const facts = [];
  const readable = progress.photographs - progress.unreadable.length;
  if (progress.seen < readable) facts.push(`the model has seen ${number(progress.seen)}`);
  if (progress.aside) facts.push(`${number(progress.aside)} ${progress.checks ? "left out" : "set aside"}`);
  if (progress.unreadable.length) facts.push(`${number(progress.unreadable.length)} cannot be read`);
  at("seen").textContent = facts.length ? `· ${facts.join(" · ")}` : "";
  at("quality").textContent = progress.sentences.join(" · ");
  at("problem").textContent = progress.problem;
  at("summary").textContent = progress.classes.map((each) => `${each.label} ${number(each.count)}`).join(", ");
  list("unread", progress.unreadable);
  list("differ", progress.differences);
}

function list(id, texts) {
  at(id).hidden = texts.length === 0;
  at(id).querySelector("ul").replaceChildren(...texts.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  }));
}

// Keys and buttons

at("form").onsubmit = (event) => {
  event.preventDefault();
  const label = choice();
  if (label) give(label);
};
at("label").oninput = showClasses;
at("photograph").onerror = failed;
at("confirm").onclick = confirmScreen;
at("undo").onclick = () => next("undo");
const keep = () => give(question.label);
at("keep").onclick = keep;
at("unsure").onclick = () => aside("not sure");
at("out").onclick = () => aside("leave out");

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.altKey) return;
  const isTyping = at("label").value !== "" && document.activeElement === at("label");
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") {
    if (isTyping) return; // the browser takes back letters
    event.preventDefault();
    next("undo");
    return;
  }
  if (event.ctrlKey || event.metaKey || !question) return;
  // A button that has the focus is pressed by Enter and Space as everywhere
  const isPressing = event.key === "Enter" || event.key === " ";
  if (isPressing && document.activeElement.closest("footer, #classes")) return;
  if (event.repeat && (isPressing || (!isTyping && (event.key.length === 1 || event.key === "Delete")))) {
    event.preventDefault(); // a key that is held down answers once
    return;
  }
  if (question.how === "screen") onScreen(event);
  else onOne(event);
});

function onScreen(event) {
  const tiles = [...at("grid").children];
  const place = tiles.indexOf(document.activeElement);
  const across = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across };
  if (event.key === "Enter") {
    event.preventDefault();
    confirmScreen();
  } else if (event.key in steps) {
    event.preventDefault();
    const to = Math.min(tiles.length - 1, Math.max(0, place + steps[event.key]));
    tiles[to].focus();
  }
}

function onOne(event) {
  const isEmpty = at("label").value === "";
  if (event.key === "Enter" && event.shiftKey && question.how !== "check" && at("label").value.trim()) {
    event.preventDefault();
    give(at("label").value.trim());
  } else if (isEmpty && haveKeys() && /^[1-9]$/.test(event.key) && Number(event.key) <= classes.length) {
    event.preventDefault();
    give(classes[Number(event.key) - 1]);
  } else if (isEmpty && event.key === " " && !at("keep").hidden) {
    event.preventDefault();
    keep();
  } else if (isEmpty && event.key === "?") {
    event.preventDefault();
    aside("not sure");
  } else if (isEmpty && event.key === "Delete") {
    event.preventDefault();
    aside("leave out");
  } else if (event.key === "Escape") {
    at("label").value = "";
    showClasses();
  } else if (event.key.length === 1 && document.activeElement !== at("label")) {
    at("label").focus();
  }
}

// Dialogs

at("rename").onclick = () => {
  at("old").replaceChildren(...classes.map((label) => new Option(label, label)));
  at("new").value = "";
  at("renaming").returnValue = ""; // of the last time
  at("renaming").showModal();
};
at("renaming").onclose = () => {
  if (at("renaming").returnValue === "yes" && at("new").value.trim()) {
    next("rename", { old: at("old").value, new: at("new").value });
  }
};
at("finish").onclick = () => {
  at("result").textContent = "";
  at("finishing").showModal();
  look();
};
at("finishing").querySelector("form").onsubmit = async (event) => {
  if (event.submitter.value !== "yes") return;
  event.preventDefault();
  at("result").textContent = "Writing ...";
  const answer = await post("finish", { links: at("links").checked });
  at("result").textContent = answer ? answer.sentences.join("\n") : at("said").textContent;
};

for (const button of document.querySelectorAll("dialog .close")) {
  button.onclick = () => button.closest("dialog").close();
}

next("ask");
setInterval(() => {
  look();
  if (!question) next("ask");
}, WAITS);
