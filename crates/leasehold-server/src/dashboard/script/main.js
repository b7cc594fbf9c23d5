// Pages by the part of the address behind #, keys, colours and the access token.

const PAGES = { locks: locksPage, contention: contentionPage, "waits-for": graphPage, history: historyPage, engine: enginePage };
const NAMES = Object.keys(PAGES);

let current = null;

/** `#/lock/orders%2F42` is the page of a lock, `#/history?end=broken` one with a query. */
function parseHash() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const search = new URLSearchParams(query ?? "");
  if (name === "lock" && rest.length > 0) {
    try {
      return { name: "lock", page: lockPage, args: [decodeURIComponent(rest.join("/"))], search };
    } catch {
      return { name: "locks", page: locksPage, args: [], search };
    }
  }
  return Object.hasOwn(PAGES, name) ? { name, page: PAGES[name], args: [], search } : { name: "locks", page: locksPage, args: [], search };
}

function show(moveFocus) {
  const { name, page, args, search } = parseHash();
  current?.leave();
  const main = $("#main");
  main.replaceChildren();
  current = page;
  page.enter(main, args, search);
  document.title = `${page.title} · leasehold`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === (name === "lock" ? "locks" : name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  if (moveFocus) $("h2", main)?.focus({ preventScroll: true });
}

/** Asks for an access token until the server takes one. */
let asking = null;

function signInAgain() {
  asking ??= signIn().finally(() => { asking = null; });
  return asking;
}

function signIn() {
  const dialog = $("#sign-in");
  const input = $("#access-token");
  const problem = $("#sign-in-problem");
  problem.textContent = accessToken === null ? "" : "The server does not take this token any more.";
  return new Promise((resolve) => {
    dialog.oncancel = (event) => event.preventDefault();
    $("form", dialog).onsubmit = async (event) => {
      event.preventDefault();
      accessToken = input.value.trim();
      try {
        shared.me = await get("v1/whoami");
        input.value = "";
        dialog.close();
        resolve();
        tell("reset");
      } catch (error) {
        problem.textContent = error.kind === "unauthorized" ? "The server does not know this token, or it has expired." : error.message;
        input.select();
      }
    };
    if (!dialog.open) dialog.showModal();
  });
}

async function readMe() {
  for (;;) {
    try {
      shared.me = await get("v1/whoami");
      return;
    } catch (problem) {
      if (problem.kind === "unauthorized") return signInAgain();
      shared.problem = problem;
      showState();
      await pause(1000);
    }
  }
}

const THEMES = [["auto", "◐", "as the system"], ["light", "☀", "light"], ["dark", "☾", "dark"]];

function setTheme(name) {
  const [theme, sign, label] = THEMES.find(([one]) => one === name) ?? THEMES[0];
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = $("#theme");
  button.textContent = sign;
  button.setAttribute("aria-label", `Colours: ${label}`);
  button.title = `Colours: ${label}`;
  return theme;
}

function keepTheme(name) {
  try {
    localStorage.setItem("leasehold-theme", name);
  } catch {
    // A browser that keeps nothing: the choice lasts as long as the page.
  }
}

function keptTheme() {
  try {
    return localStorage.getItem("leasehold-theme");
  } catch {
    return null;
  }
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest?.("input, select, textarea");
  if (typing) {
    if (event.key === "Escape" && current?.onKey?.("Escape")) event.preventDefault();
    else if (event.key === "Escape") typing.blur();
    return;
  }
  const page = NAMES[Number(event.key) - 1];
  if (page !== undefined) location.hash = `#/${page}`;
  else if (event.key === "?") $("#help").showModal();
  else if (!current?.onKey?.(event.key)) return;
  event.preventDefault();
}

let theme = setTheme(keptTheme());
$("#theme").addEventListener("click", () => {
  const at = THEMES.findIndex(([one]) => one === theme);
  theme = setTheme(THEMES[(at + 1) % THEMES.length][0]);
  keepTheme(theme);
});
$("#help-open").addEventListener("click", () => $("#help").showModal());
$("header h1 a").setAttribute("aria-label", "leasehold, all locks");
$(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("#main").focus();
});
addEventListener("keydown", onKey);
addEventListener("hashchange", () => show(true));
bus.addEventListener("event", ({ detail }) => current?.onEvent?.(detail));
bus.addEventListener("reset", () => current?.onReset?.());
bus.addEventListener("state", () => current?.onState?.());

await readMe();
show(false);
repeat(readState, 3000);
followEvents();
