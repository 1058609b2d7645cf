// The page in a real browser, before a real server with the demo model. See run.sh.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { chromium } from "playwright-core";
import { Between } from "./server.js";

const SERVER = process.env.PAGE_SERVER;
const PICTURES = process.env.PAGE_PICTURES;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

let folder, browser, between, page, requests, complaints;

before(async () => {
  mkdirSync(PICTURES, { recursive: true });
  folder = mkdtempSync(join(tmpdir(), "page-"));
  const options = { executablePath: process.env.PAGE_BROWSER, args: FLAGS, viewport: { width: 1100, height: 760 }, timeout: 60_000 };
  browser = await chromium.launchPersistentContext(folder, options);
  // What the policy forbids is heard by the page itself.
  await browser.addInitScript(() => {
    window.violations = [];
    addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
});

after(async () => {
  await between?.close();
  await browser?.close();
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
});

beforeEach(async () => {
  await page?.close();
  await between?.close();
  between = await new Between(SERVER).listen();
  page = await browser.newPage();
  [requests, complaints] = [[], []];
  page.on("request", (request) => requests.push(request.url()));
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  await page.goto(between.url);
});

const query = () => page.locator("#query");
const value = () => query().inputValue();
const texts = () => page.locator("#suggestions:not([hidden]) [role=option] .words").allTextContents();
const active = async () => {
  const id = await query().getAttribute("aria-activedescendant");
  return id && page.locator(`#${id} .words, #${id}#as-typed`).textContent();
};
const asTyped = () => page.locator("#suggestions:not([hidden]) #as-typed");
const marked = () => page.locator("[role=option]").first().locator("mark").allTextContents();
const expanded = () => query().getAttribute("aria-expanded");
const ghost = () => page.locator("#ghost span").nth(1).textContent();

/** Waits until the list is the answer to what is in the box. */
async function settled() {
  await page.waitForFunction(
    () => {
      const rows = document.querySelectorAll("#suggestions:not([hidden]) [role=option]");
      const done = performance.getEntriesByName("foretype:key-to-paint").at(-1)?.detail.turn === turn;
      return done && rows.length > 0;
    },
    null,
    { timeout: 10_000 },
  );
}

async function type(text) {
  await query().pressSequentially(text);
  await settled();
}

async function direct(input, tolerance = "auto") {
  const body = JSON.stringify({ input, suggestions: 8, tolerance });
  const response = await fetch(new URL("invocations", SERVER), { method: "POST", headers: { "Content-Type": "application/json" }, body });
  return (await response.json()).suggestions.map((suggestion) => suggestion.text + (suggestion.complete ? "" : " …"));
}

test("each key of a query shows suggestions that start with it, and focus stays", async () => {
  for (const key of "wireless char") {
    await query().pressSequentially(key);
    if ((await value()).trim()) await settled();
    const typed = await value();
    for (const text of await texts()) assert.ok(text.startsWith(typed), `${text} for ${typed}`);
  }
  assert.deepEqual(await texts(), await direct("wireless char"));
  const first = page.locator("[role=option] .words").first();
  assert.equal(await first.locator("span").textContent(), "wireless char");
  const weight = (name) => first.locator(name).evaluate((part) => getComputedStyle(part).fontWeight);
  assert.deepEqual([await weight("span"), await weight("b")], ["400", "700"]);
  assert.equal(await page.evaluate(() => document.activeElement.id), "query");
  assert.equal(new Set(between.posts.map((post) => post.session)).size, 1);
  assert.match(between.posts[0].session, /^[0-9a-f]{24}$/);
  await page.waitForFunction(() => /^\d+ suggestions?\.$/.test(document.getElementById("status").textContent));
  assert.ok((await page.locator("#chart rect").count()) > 10);
});

test("keys: arrows, home, end, enter, escape, right", async () => {
  await type("wireless char");
  const rows = await texts();
  assert.equal(await active(), null);
  await page.keyboard.press("ArrowDown");
  assert.equal(await active(), rows[0]);
  assert.equal(await page.locator("[aria-selected=true]").count(), 1);
  await page.keyboard.press("End");
  assert.equal(await active(), rows.at(-1));
  await page.keyboard.press("ArrowDown");
  assert.equal(await active(), null);
  await page.keyboard.press("ArrowUp");
  assert.equal(await active(), rows.at(-1));
  await page.keyboard.press("Home");
  assert.equal(await active(), rows[0]);
  assert.equal(await value(), "wireless char", "choosing isn't taking");
  await page.keyboard.press("Escape");
  assert.deepEqual([await expanded(), await active(), await ghost(), await value()], ["false", null, "", "wireless char"]);
  await page.keyboard.press("ArrowDown");
  assert.deepEqual([await expanded(), await active()], ["true", rows[0]]);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.deepEqual([await value(), await expanded()], [rows[1], "false"]);
  await page.keyboard.press("Escape");
  assert.equal(await value(), "");

  await type("wireless char");
  assert.equal((await value()) + (await ghost()), rows[0]);
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("ArrowRight");
  assert.equal(await value(), "wireless char", "inside the text the caret moves");
  await page.keyboard.press("ArrowRight");
  assert.equal(await value(), rows[0]);

  await query().fill("");
  await type("lithium i");
  const whole = (await texts())[0];
  await page.keyboard.press("End");
  assert.equal(await value(), whole);
});

test("paste, pointer, examples, the switch for grey text", async () => {
  await query().focus();
  await page.evaluate(() => {
    document.execCommand("insertText", false, "TTL:(heat exch");
  });
  await settled();
  assert.deepEqual(await texts(), await direct("TTL:(heat exch"));
  const second = (await texts())[1];
  await page.locator("[role=option]").nth(1).click();
  assert.deepEqual([await value(), await expanded(), await page.evaluate(() => document.activeElement.id)], [second, "false", "query"]);
  await query().fill("");
  await page.getByRole("button", { name: "lithium ion" }).click();
  await settled();
  assert.equal(await value(), "lithium ion");
  assert.notEqual(await ghost(), "");
  await page.locator("#ghostly").uncheck();
  assert.equal(await ghost(), "");
});

test("corrections are marked, and what was typed can be asked for", async () => {
  await type("wirless char");
  assert.deepEqual(await texts(), await direct("wirless char"));
  const first = page.locator("[role=option] .words").first();
  assert.deepEqual([await first.locator("span").textContent(), await marked()], ["wireless char", ["wireless"]]);
  assert.equal(await ghost(), "", "nothing fits behind what was typed");
  await page.waitForFunction(() => /^\d+ suggestions for wireless char\.$/.test(document.getElementById("status").textContent));
  await page.keyboard.press("ArrowRight");
  assert.equal(await value(), "wirless char");

  const posts = between.posts.length;
  await page.keyboard.press("ArrowUp");
  assert.equal(await active(), "Search for exactly “wirless char”");
  assert.equal(await asTyped().getAttribute("aria-selected"), "true");
  await page.keyboard.press("Enter");
  await settled();
  assert.deepEqual([await value(), await active(), await asTyped().count()], ["wirless char", null, 0]);
  assert.deepEqual(await texts(), await direct("wirless char", "off"));
  assert.deepEqual(between.posts.slice(posts).map((post) => post.tolerance), ["off"]);
  assert.equal((await value()) + (await ghost()), (await texts())[0]);

  await type("g");
  assert.equal(between.posts.at(-1).tolerance, "off", "what follows is taken as it stands too");
  await page.keyboard.press("Backspace");
  await page.keyboard.press("Backspace");
  await settled();
  assert.equal(between.posts.at(-1).tolerance, "auto");
  await asTyped().click();
  await settled();
  assert.deepEqual([await value(), between.posts.at(-1).tolerance, await asTyped().count()], ["wirless cha", "off", 0]);

  await query().fill("");
  await type("battrey man");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.match(await value(), /^battery man/);
});

test("another case, width or accents are no mistakes", async () => {
  for (const text of ["Wireless Char", "WIRELESS CHAR", "ｌｉｔｈｉｕｍ", "wíreless char"]) {
    await query().fill("");
    await query().fill(text);
    await settled();
    assert.deepEqual([await marked(), await asTyped().count()], [[], 1], text);
    assert.match((await texts())[0], /^(wireless char|lithium)/);
  }
});

test("corrections that still fit stay while the next answer is awaited", async () => {
  for (const [text, key, rest] of [["wirless char", "g", "ing"], ["WIRELESS CHAR", "G", "ing"]]) {
    between.delay = () => 0;
    await query().fill("");
    await query().fill(text);
    await settled();
    const before = await texts();
    between.delay = () => 1000;
    await query().pressSequentially(key);
    const fitting = before.filter((each) => each.startsWith("wireless charg"));
    assert.ok(fitting.length > 0);
    assert.deepEqual(await texts(), fitting);
    const words = page.locator("[role=option] .words").first();
    assert.deepEqual([await words.locator("span").textContent(), (await words.locator("b").textContent()).slice(0, 3)], ["wireless charg", rest]);
    assert.equal(await asTyped().textContent(), `Search for exactly “${text}${key}”`);
    await query().pressSequentially("#");
    assert.deepEqual(await texts(), [], "what doesn't fit is gone at once");
  }
});

test("an item that stays keeps its element", async () => {
  await type("wireless cha");
  await page.evaluate(() => {
    window.rows = new Map([...document.querySelectorAll("[role=option]")].map((row) => [row.querySelector(".words").textContent, row]));
  });
  await type("r");
  const same = await page.evaluate(() =>
    [...document.querySelectorAll("[role=option]")]
      .map((row) => [window.rows.get(row.querySelector(".words").textContent), row])
      .filter(([old]) => old)
      .map(([old, row]) => old === row));
  assert.ok(same.length > 0 && same.every(Boolean), String(same));
});

test("fast typing before a slow server never paints what is stale", async () => {
  await page.evaluate(() => {
    window.stale = [];
    const look = () => {
      const typed = document.getElementById("query").value;
      for (const row of document.querySelectorAll("#suggestions:not([hidden]) [role=option] .words")) {
        if (!row.textContent.startsWith(typed)) window.stale.push(`${row.textContent} for ${typed}`);
      }
      requestAnimationFrame(look);
    };
    look();
  });
  // Answers overtake each other, and the last one (the 31st) overtakes the one before it.
  between.delay = (place) => [20, 300, 190, 90, 120, 380][place % 6];
  await query().pressSequentially("wireless charging", { delay: 25 });
  for (let erased = 0; erased < 8; erased += 1) await page.keyboard.press("Backspace");
  await query().pressSequentially("sensor", { delay: 15 });
  await settled();
  await page.waitForTimeout(400);
  assert.deepEqual(await page.evaluate(() => window.stale), []);
  assert.deepEqual(await texts(), await direct(await value()));
});

test("no request while a text is composed", async () => {
  await type("wire");
  const asked = between.posts.length;
  const devtools = await browser.newCDPSession(page);
  for (const text of ["l", "le", "les"]) {
    await devtools.send("Input.imeSetComposition", { text, selectionStart: text.length, selectionEnd: text.length });
  }
  await page.waitForTimeout(150);
  assert.equal(between.posts.length, asked);
  await devtools.send("Input.insertText", { text: "less" });
  await settled();
  assert.equal(await value(), "wireless");
  assert.equal(between.posts.at(-1).input, "wireless");
});

test("errors are words, and the page recovers by itself", async () => {
  const problem = page.locator("#problem");
  await type("wireless");
  const port = between.port;
  await between.close();
  await query().pressSequentially(" ");
  await problem.filter({ hasText: "can’t be reached" }).waitFor();
  between = await new Between(SERVER).listen(port);
  await problem.waitFor({ state: "hidden" });
  await settled();

  await browser.setOffline(true);
  await query().pressSequentially("c");
  await problem.filter({ hasText: "You are offline" }).waitFor();
  await browser.setOffline(false);
  await settled();

  const refuse = (status, kind, message) => ({
    status, headers: { "Content-Type": "application/json", "Retry-After": "1" }, body: JSON.stringify({ error: { kind, message } }),
  });
  for (const [status, words] of [[429, "busy"], [503, "isn’t ready (503): the model is being loaded"], [400, "can’t complete this: the model"]]) {
    between.instead = refuse(status, "a_kind", "the model is being loaded");
    await query().pressSequentially("h");
    await problem.filter({ hasText: words }).waitFor();
    assert.equal(await expanded(), "false");
    between.instead = null;
    if (status === 400) await page.keyboard.press("Backspace");
    else await problem.waitFor({ state: "hidden" });
    await page.keyboard.press("Backspace");
    await settled();
  }
});

test("small, and nothing from elsewhere", async () => {
  await type("wireless");
  let bytes = 0;
  for (const path of ["", "page.css", "page.js", "costs.js"]) bytes += (await (await fetch(between.url + path)).arrayBuffer()).byteLength;
  console.log(`page: ${bytes} bytes`);
  assert.ok(bytes < 60_000);
  assert.deepEqual(requests.filter((url) => !url.startsWith(between.url) && !url.startsWith("data:")), []);
  assert.deepEqual(await page.evaluate(() => window.violations), []);
  assert.deepEqual(complaints, []);
});

test("several models can be chosen from", async () => {
  await page.route("**/v1/models", (route) => route.fulfill({ json: { object: "list", data: [{ id: "one" }, { id: "two" }] } }));
  await page.reload();
  await page.locator("#model").selectOption("two");
  assert.equal(await page.evaluate(() => document.activeElement.id), "query");
});

test("axe finds nothing, in light, dark and on a narrow screen", async () => {
  const looks = [
    ["light", { colorScheme: "light" }, { width: 1100, height: 760 }],
    ["dark", { colorScheme: "dark" }, { width: 1100, height: 760 }],
    ["narrow", { colorScheme: "light" }, { width: 360, height: 780 }],
    ["narrow-dark", { colorScheme: "dark" }, { width: 360, height: 780 }],
  ];
  const check = async (name) => {
    // Through the debugger: the page's own policy forbids scripts from elsewhere.
    await page.evaluate(AXE);
    const found = await page.evaluate(() => axe.run());
    assert.deepEqual(found.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html)}`), [], name);
    assert.ok(found.passes.length > 20);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${name} scrolls sideways by ${wide}`);
  };
  for (const [name, media, size] of looks) {
    await page.emulateMedia(media);
    await page.setViewportSize(size);
    await page.reload();
    await page.screenshot({ path: join(PICTURES, `${name}-empty.png`) });
    await check(`${name}, empty`);
    for (const key of "wireless char") await type(key);
    await page.keyboard.press("ArrowDown");
    await page.waitForTimeout(100);
    await page.screenshot({ path: join(PICTURES, `${name}.png`), fullPage: true });
    await check(`${name}, a list`);
    await query().fill("wirless char");
    await settled();
    await page.keyboard.press("ArrowUp");
    await page.screenshot({ path: join(PICTURES, `${name}-corrected.png`), fullPage: true });
    await check(`${name}, corrections`);
    await query().fill("wireless char");
    await settled();
    between.instead = { status: 429, headers: { "Content-Type": "application/json" }, body: "{}" };
    await query().pressSequentially("g");
    await page.locator("#problem").waitFor();
    await page.screenshot({ path: join(PICTURES, `${name}-problem.png`) });
    await check(`${name}, a problem`);
    between.instead = null;
  }
});

/** Milliseconds from key to paint, and of them in the server, for each key of some texts. */
async function keysToPaint() {
  await page.goto(SERVER);
  for (const text of ["wireless charging", "lithium ion battery", "TTL:(heat exchanger", "optical fiber sensor", "drilling fluid"]) {
    await query().fill("");
    await query().pressSequentially(text, { delay: 120 });
    await settled();
  }
  return page.evaluate(() =>
    performance.getEntriesByName("foretype:key-to-paint").map(({ duration, detail }) => [duration, detail.serverMs]));
}

test("from key to paint", async () => {
  // A slow page is slow every time; a busy machine isn't.
  for (let attempt = 0; attempt < 4; attempt += 1) {
    const marks = await keysToPaint();
    const at = (part, column) => marks.map((mark) => mark[column]).sort((a, b) => a - b)[Math.ceil(part * marks.length) - 1].toFixed(1);
    console.log(`page: ${marks.length} keys, from key to paint p50 ${at(0.5, 0)} ms, p95 ${at(0.95, 0)} ms; in the server p50 ${at(0.5, 1)} ms, p95 ${at(0.95, 1)} ms`);
    if (marks.length > 60 && Number(at(0.95, 0)) <= Number(process.env.PAGE_P95_MS ?? 250)) return;
  }
  assert.fail("few keys were painted, or late");
});

// `make page-picture`
test("the README's picture", { skip: !process.env.PAGE_PICTURE }, async () => {
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1040, height: 740 });
  await page.goto(SERVER);
  await query().pressSequentially("lithium ion bat", { delay: 60 });
  await page.waitForTimeout(300);
  for (let erased = 0; erased < 15; erased += 1) await page.keyboard.press("Backspace");
  await query().pressSequentially("wireless char", { delay: 60 });
  await settled();
  await page.waitForTimeout(300);
  await page.screenshot({ path: process.env.PAGE_PICTURE });
});
