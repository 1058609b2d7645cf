// What each key cost: the time until its answer was on the page, and the positions that the model computed for it.
"use strict";

const KEYS = 40; // keys in the chart
const MEASURE = "foretype:key-to-paint";
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);

const keys = []; // newest last

/** Measures turn `mine` from the key to the frame after the one that shows its answer. Kept as a performance measure, for tests too. */
function painted(mine, keyAt, { usage, timing }) {
  const serverMs = timing.queue_ms + timing.search_ms;
  const computed = usage.positions_computed;
  const saved = usage.positions_saved;
  requestAnimationFrame(() => {
    // A message comes after the frame has been painted.
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      const end = performance.now();
      if (performance.getEntriesByName(MEASURE).length >= 2000) performance.clearMeasures(MEASURE);
      performance.measure(MEASURE, { start: keyAt, end, detail: { turn: mine, serverMs, computed, saved } });
      record({ paintMs: end - keyAt, serverMs, computed, saved });
    };
    port2.postMessage(0);
  });
}

function record(key) {
  keys.push(key);
  if (keys.length > KEYS) keys.shift();
  at("paint").textContent = milliseconds(key.paintMs);
  at("server").textContent = milliseconds(key.serverMs);
  at("computed").textContent = String(key.computed);
  at("saved").textContent = String(key.saved);
  requestAnimationFrame(draw);
}

function milliseconds(ms) {
  return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
}

/** Two rows of bars, one bar a key: time above, positions below. */
function draw() {
  const [width, middle, bottom, gap] = [320, 70, 150, 8];
  const step = width / KEYS;
  const times = keys.map((key) => key.paintMs);
  const mostMs = Math.max(20, ...times);
  const mostPositions = Math.max(10, ...keys.map((key) => key.computed + key.saved));
  const parts = [shape("line", { x1: 0, x2: width, y1: middle, y2: middle }), shape("line", { x1: 0, x2: width, y1: bottom, y2: bottom })];
  keys.forEach((key, place) => {
    const x = width - step * (keys.length - place) + 1;
    const bar = (className, foot, height) => {
      if (height > 0) parts.push(shape("rect", { class: className, x, y: foot - height, width: step - 2, height }));
    };
    bar("time", middle, (key.paintMs / mostMs) * (middle - gap));
    const unit = (bottom - middle - gap) / mostPositions;
    bar("computed", bottom, key.computed * unit);
    bar("saved", bottom - key.computed * unit, key.saved * unit);
  });
  const chart = at("chart");
  chart.replaceChildren(...parts);
  if (!keys.length) return;
  at("most-time").textContent = `, up to ${milliseconds(mostMs)}`;
  at("most-positions").textContent = `, up to ${mostPositions}`;
  const median = times.toSorted((a, b) => a - b)[times.length >> 1];
  chart.setAttribute(
    "aria-label",
    `The last ${keys.length} keys: ${milliseconds(median)} from key to paint in the middle, ${milliseconds(Math.max(...times))} at most`,
  );
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
