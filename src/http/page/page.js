// The page for people: a combobox with a list of suggestions (W3C APG, list autocomplete with manual selection). Focus stays in the
// input. Every change of the text is a new turn; what belongs to an earlier turn is never painted. costs.js, which comes before this
// script, has `at`, `draw` and `painted`.
"use strict";

const ROWS = 8; // suggestions asked for
const DEADLINE_MS = 2000;
const RETRY_MS = 1000;
const QUIET_MS = 400; // a screen reader hears the count once typing rests
const WORD = /([\p{L}\p{M}\p{N}]+)/u;

const query = at("query");
const list = at("suggestions");
const ghostParts = at("ghost").children;

// One for each tab: the server drops what an earlier key asked for.
const session = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const byName = document.documentElement.dataset.models === "by-name";

const asTyped = newOption("as-typed"); // the last option of a list of corrections

let turn = 0; // one for each change of the text
let asking = null; // aborts the request of this turn
let retry = 0;
let shown = []; // suggestions on the page, best first: {text, probability, complete, edits, meant, typed, row}
let chosen = -1; // index in the list
let exactly = null; // a text that is to be taken as it stands; also while more is typed behind it
let composing = false;
let rowsMade = 0;
let speaking = 0;

function element(name, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  return made;
}

// ---- asking

function address() {
  return byName ? `models/${encodeURIComponent(at("model").value)}/invoke` : "invocations";
}

/** The text has changed: forgets the turn before and asks for this one. `keyAt` is when the key was pressed. */
function changed(keyAt) {
  turn += 1;
  asking?.abort();
  asking = null;
  clearTimeout(retry);
  choose(-1);
  const text = query.value;
  if (exactly !== null && !text.startsWith(exactly)) exactly = null;
  if (!text.trim()) {
    problem("");
    show([]);
    hint("Type something, or start with one of these:");
    return;
  }
  hint("");
  // What still fits stays until the answer is there; what doesn't is gone at once.
  show(shown.map((suggestion) => fitted(suggestion, text)).filter(Boolean));
  ask(turn, text, keyAt);
}

/** A suggestion as one for the text of this turn; null if it doesn't fit. A corrected one fits while its next characters are typed. */
function fitted(suggestion, typed) {
  const { text, meant, edits, typed: before } = suggestion;
  if (text.startsWith(typed)) return { ...suggestion, typed, meant: typed, edits: 0 };
  if (exactly !== null || !edits || !typed.startsWith(before)) return null;
  const added = typed.slice(before.length);
  const next = text.slice(meant.length, meant.length + added.length);
  return folded(next) === folded(added) ? { ...suggestion, typed, meant: meant + next } : null;
}

/** A text without letter case, width and accents. */
function folded(text) {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

async function ask(mine, text, keyAt) {
  const controller = new AbortController();
  asking = controller;
  const tolerance = exactly === null ? "auto" : "off";
  const wanted = { input: text, suggestions: ROWS, deadline_ms: DEADLINE_MS, tolerance, session };
  try {
    const response = await fetch(address(), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(wanted),
      signal: controller.signal,
    });
    const answer = await response.json().catch(() => ({}));
    if (mine !== turn) return;
    if (!response.ok) {
      failed(response, answer, mine, text);
      return;
    }
    if (answer.finish === "superseded") return;
    problem("");
    show(answer.suggestions.map((suggestion) => ({ ...suggestion, typed: text })));
    if (!shown.length) hint(nothing(answer.finish));
    speak(shown.length);
    painted(mine, keyAt, answer);
  } catch (error) {
    if (mine !== turn || error.name === "AbortError") return;
    show([]);
    problem(
      navigator.onLine
        ? "The server can’t be reached. It is asked again every second."
        : "You are offline. Suggestions come back with the connection.",
    );
    again(mine, text, RETRY_MS);
  }
}

function failed(response, answer, mine, text) {
  show([]);
  const reason = answer.error?.message ?? `it answered ${response.status}`;
  const wait = 1000 * Number(response.headers.get("Retry-After")) || RETRY_MS;
  if (response.status === 429) {
    problem("The server is busy: as many requests as it takes are waiting (429). It is asked again in a moment.");
    again(mine, text, wait);
  } else if (response.status === 503) {
    problem(`The model isn’t ready (503): ${reason}. It is asked again in a moment.`);
    again(mine, text, wait);
  } else if (byName && !at("model").value) {
    problem("No model is loaded. POST /models loads one.");
  } else {
    problem(`The server can’t complete this: ${reason}.`);
  }
}

function again(mine, text, ms) {
  clearTimeout(retry);
  retry = setTimeout(() => mine === turn && ask(mine, text, performance.now()), ms);
}

function nothing(finish) {
  return finish === "blocked" ? "Nothing is suggested for this." : "No suggestions for this. Try one of these:";
}

/** Words about what went wrong; none takes them away. */
function problem(words) {
  const place = at("problem");
  if (place.textContent !== words) place.textContent = words;
  place.hidden = !words;
  if (words) speak(-1);
}

/** Words and examples where the list would be; none takes them away. */
function hint(words) {
  at("hint").hidden = !words;
  at("hint-words").textContent = words;
}

/** Says how many there are to who can't see it; -1 says nothing. */
function speak(count) {
  clearTimeout(speaking);
  if (count < 0) {
    at("status").textContent = "";
    return;
  }
  const { edits, meant } = shown[0] ?? {};
  const words = (count === 0 ? "No suggestions" : count === 1 ? "1 suggestion" : `${count} suggestions`) + (edits ? ` for ${meant}.` : ".");
  speaking = setTimeout(() => (at("status").textContent = words), QUIET_MS);
}

// ---- the list

/** Shows suggestions. A row that was there keeps its element, so what stays doesn't flicker, and only what moved is moved. */
function show(suggestions) {
  const active = list.children[chosen];
  choose(-1);
  const rows = new Map(shown.map(({ text, row }) => [text, row]));
  const most = suggestions[0]?.probability || 1;
  shown = suggestions.map((suggestion) => {
    const row = rows.get(suggestion.text) ?? newRow();
    rows.delete(suggestion.text);
    fill(row, suggestion, suggestion.probability / most);
    return { ...suggestion, row };
  });
  for (const row of rows.values()) row.remove();
  const wanted = shown.map(({ row }) => row);
  if (shown[0]?.edits) wanted.push(asTyped);
  else asTyped.remove();
  asTyped.textContent = `Search for exactly “${query.value}”`;
  wanted.forEach((row, place) => {
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
  });
  choose([...list.children].indexOf(active));
  open(shown.length > 0);
}

function newOption(id) {
  const option = element("li");
  option.id = id;
  option.setAttribute("role", "option");
  option.setAttribute("aria-selected", "false");
  return option;
}

function newRow() {
  const row = newOption(`suggestion-${(rowsMade += 1)}`);
  const words = element("span", "words");
  words.append(element("span"), element("b"));
  const bar = element("span", "bar");
  bar.setAttribute("aria-hidden", "true");
  bar.append(element("i"));
  row.append(words, bar, element("span", "percent"));
  return row;
}

function fill(row, { text, probability, complete, meant, typed }, share) {
  const [words, bar, percent] = row.children;
  words.firstChild.replaceChildren(...corrected(meant, typed));
  words.lastChild.textContent = text.slice(meant.length) + (complete ? "" : " …");
  bar.firstChild.style.width = `${(100 * share).toFixed(1)}%`;
  percent.textContent = percentage(probability);
}

/** What was meant, with a mark on each word that wasn't typed. Case, width and accents make no other word. */
function corrected(meant, typed) {
  const known = new Set(folded(typed).split(WORD));
  // Every second part is a word.
  return meant.split(WORD).map((part, place) => {
    if (place % 2 === 0 || known.has(folded(part))) return part;
    const mark = element("mark");
    mark.textContent = part;
    return mark;
  });
}

function percentage(probability) {
  const percent = 100 * probability;
  return percent < 0.1 ? "< 0.1 %" : `${percent.toFixed(percent < 10 ? 1 : 0)} %`;
}

function isOpen() {
  return !list.hidden;
}

function open(wanted) {
  list.hidden = !(wanted && shown.length);
  query.setAttribute("aria-expanded", String(isOpen()));
  if (list.hidden) choose(-1);
  else ghost();
}

/** Makes one row the active one; -1 is the input itself. */
function choose(place) {
  list.children[chosen]?.setAttribute("aria-selected", "false");
  chosen = place;
  const row = list.children[place];
  if (row) {
    row.setAttribute("aria-selected", "true");
    query.setAttribute("aria-activedescendant", row.id);
    row.scrollIntoView({ block: "nearest" });
  } else {
    query.removeAttribute("aria-activedescendant");
  }
  ghost();
}

/** What Right and End would add. */
function ahead() {
  const suggestion = shown[Math.max(chosen, 0)];
  const typed = query.value;
  const wanted = at("ghostly").checked && isOpen() && !composing;
  return wanted && suggestion?.text.startsWith(typed) ? suggestion.text.slice(typed.length) : "";
}

function ghost() {
  // A text longer than the box scrolls, and then nothing can stand behind it.
  const fits = query.scrollWidth <= query.clientWidth;
  ghostParts[0].textContent = query.value;
  ghostParts[1].textContent = fits ? ahead() : "";
}

function take(text) {
  query.value = text;
  query.setSelectionRange(text.length, text.length);
  query.scrollLeft = query.scrollWidth;
}

// ---- keys

const move = {
  ArrowDown: (count) => (chosen + 1 < count ? chosen + 1 : -1),
  ArrowUp: (count) => (chosen < 0 ? count - 1 : chosen - 1),
};
const ends = { Home: () => 0, End: (count) => count - 1 };

query.addEventListener("keydown", (event) => {
  if (event.isComposing || composing || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const key = event.key;
  if (key in move) {
    if (!shown.length) {
      if (!query.value.trim()) return;
      changed(event.timeStamp);
    } else if (event.altKey) {
      open(key === "ArrowDown");
    } else if (isOpen()) {
      choose(move[key](list.children.length));
    } else {
      open(true);
      choose(move[key](list.children.length));
    }
  } else if (key in ends && isOpen() && chosen >= 0) {
    choose(ends[key](list.children.length));
  } else if (key === "ArrowRight" || key === "End") {
    const end = query.value.length;
    const added = ahead();
    if (query.selectionStart !== end || query.selectionEnd !== end || !added) return;
    take(query.value + added);
    changed(event.timeStamp);
  } else if (key === "Enter") {
    if (isOpen() && chosen >= 0) pick(list.children[chosen], event.timeStamp);
    else open(false);
  } else if (key === "Escape") {
    if (isOpen()) {
      open(false);
    } else {
      take("");
      changed(event.timeStamp);
    }
  } else {
    return;
  }
  event.preventDefault();
});

/** An option of the list is chosen. */
function pick(option, keyAt) {
  const suggestion = shown.find(({ row }) => row === option);
  if (suggestion) {
    finish(suggestion.text);
  } else if (option === asTyped) {
    exactly = query.value;
    changed(keyAt);
  }
}

/** A suggestion is chosen: its text is the query, and the list is done. */
function finish(text) {
  take(text);
  turn += 1;
  asking?.abort();
  show([]);
  at("status").textContent = `${text} is in the search box.`;
}

query.addEventListener("input", (event) => {
  if (event.isComposing || composing) ghost();
  else changed(event.timeStamp);
});
query.addEventListener("compositionstart", () => {
  composing = true;
  turn += 1;
  asking?.abort();
  clearTimeout(retry);
  open(false);
});
query.addEventListener("compositionend", (event) => {
  composing = false;
  changed(event.timeStamp);
});
query.addEventListener("blur", () => open(false));
query.addEventListener("click", () => open(true));

// The pointer doesn't take the focus from the input.
list.addEventListener("pointerdown", (event) => event.preventDefault());
list.addEventListener("mousedown", (event) => event.preventDefault());
list.addEventListener("click", (event) => {
  pick(event.target.closest("li"), event.timeStamp);
});
at("hint").addEventListener("click", (event) => {
  if (event.target.localName !== "button") return;
  query.focus();
  take(event.target.textContent);
  changed(event.timeStamp);
});
at("ghostly").addEventListener("change", ghost);
addEventListener("resize", ghost);
addEventListener("online", () => query.value && changed(performance.now()));

// ---- models

async function models() {
  const response = await fetch("v1/models").catch(() => null);
  if (!response?.ok) return;
  const names = (await response.json()).data.map((model) => model.id);
  const picker = at("model");
  picker.replaceChildren(...names.map((name) => new Option(name, name)));
  at("model-field").hidden = names.length < 2;
  if (byName && !names.length) problem("No model is loaded. POST /models loads one.");
}

at("model").addEventListener("change", () => {
  show([]);
  changed(performance.now());
  query.focus();
});
draw();
models();
