/** The page of a hub or an agent: sign-in, routes and refreshes. */

import { devicePage, machinePage } from "./agent.js";
import { allocationPage } from "./allocation.js";
import { allocationsPage } from "./allocations.js";
import { Client } from "./api.js";
import { contractPage } from "./contract.js";
import { element, foreign, printable } from "./dom.js";
import { findingPage, findingsPage } from "./findings.js";
import { fleetPage } from "./fleet.js";
import { clockText } from "./format.js";
import { gpuPage } from "./gpu.js";
import { nodePage } from "./node.js";
import { signInPage } from "./signin.js";
import { UpdateStream } from "./updates.js";
import { loadVocabulary, vocabulary } from "./vocabulary.js";

/** URL of the hub or agent: two levels above the files of the page, below any path prefix. */
const HUB = new URL("../../", import.meta.url);

const READERS = ["operator", "admin"];

/** Whether an agent serves the page. Its token, if it has one, is that of an operator of the node. */
const IS_AGENT = document.body.dataset.site === "agent";
const LONGEST_DELAY_MS = 300_000;

/** Minimum interval of refreshes after marks, and the time over which the refreshes of many pages are spread. */
const SOONEST_MS = 4_000;
const SPREAD_MS = 1_000;

/** Period while a page has a stream. What no longer reports gets no mark. */
const STREAMED_PERIOD_MS = 60_000;

const header = document.getElementById("header");
const notice = document.getElementById("notice");
const main = document.getElementById("main");
const status = document.getElementById("status");

/** Signed-in client and its access, or null. */
let session = null;
let stop = () => undefined;

function showHeader() {
  const link = (target, name) =>
    element("a", { href: target, "aria-current": location.hash.startsWith(target) ? "page" : null }, name);
  const readsAll = session !== null && canReadAll(session.access);
  header.replaceChildren(
    element("a", { href: "#/", class: "brand" }, "gpufleet"),
    session === null
      ? ""
      : element(
          "nav",
          { "aria-label": "Pages" },
          IS_AGENT
            ? link("#/node", "Node")
            : [
                readsAll ? link("#/fleet", "Fleet") : null,
                readsAll ? link("#/findings", "Findings") : null,
                link("#/allocations", "Allocations"),
              ],
        ),
    session === null ? "" : element("span", { class: "who" }, ...whoText(session.access)),
    session === null || session.isOpen
      ? ""
      : element("button", { type: "button", on: { click: () => signOut("") } }, "Sign out"),
  );
}

function canReadAll(access) {
  return access.roles.some((role) => READERS.includes(role));
}

function whoText(access) {
  return [foreign(access.tenant ?? access.id), " ", element("small", null, access.roles.join(", "))];
}

function showNotice(text) {
  notice.replaceChildren(text === "" ? "" : element("p", { class: "error" }, printable(text)));
  main.classList.toggle("outdated", text !== "" && session !== null);
}

/** Sign in with a token, or null on a hub without tokens. Throws ApiError. */
async function signIn(token) {
  const client = new Client(HUB, token);
  const access = IS_AGENT ? await agentAccess(client) : await client.get("v1/access");
  session = { client, access, isOpen: token === null };
  route();
}

/** Return the access to an agent, which has no roles. Throws ApiError if it rejects the token. */
async function agentAccess(client) {
  const { node } = await client.get("v1/snapshot");
  return { id: node.name, roles: ["operator"] };
}

/** Remove the token and everything that was loaded with it. */
function signOut(reason) {
  stop();
  session = null;
  status.textContent = "";
  showHeader();
  const page = signInPage(signIn, reason, IS_AGENT ? "agent" : "hub");
  show(page);
}

function show(page) {
  const heading = element("h1", { tabindex: -1 }, page.title);
  document.title = `${page.title} · gpufleet`;
  main.classList.remove("outdated");
  main.replaceChildren(heading, page.node);
  showNotice("");
  heading.focus({ preventScroll: true });
}

function pageOf(path, context) {
  const [name, id] = path.replace(/^#\/?/, "").split("/");
  const text = id === undefined ? undefined : decode(id);
  if (IS_AGENT) return name === "gpus" && text ? devicePage(context, text) : machinePage(context);
  const readsAll = canReadAll(context.access);
  if (name === "allocations" && text) return allocationPage(context, text);
  if (name === "findings" && text) return findingPage({ ...context, isOperator: readsAll }, text);
  if (name === "allocations" || !readsAll) return allocationsPage(context);
  if (name === "nodes" && text) return nodePage(context, text);
  if (name === "contract" && text) return contractPage(context, text);
  if (name === "gpus" && text) return gpuPage(context, text);
  if (name === "findings") return findingsPage(context);
  return fleetPage(context);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Show the page of the address, and refresh it until the next route. */
function route() {
  if (session === null) return;
  stop();
  showHeader();
  if (session.access.roles.every((role) => role === "sender")) {
    signOut("This token can only send data. Use a token of the role tenant, operator or admin.");
    return;
  }
  const page = pageOf(location.hash, {
    ...session,
    go: (target) => {
      location.hash = target;
    },
  });
  show(page);
  status.textContent = "Loading.";
  stop = keepRefreshing(page);
}

/**
 * Refresh a page while it is visible: after each mark of its stream, and at its period while it has no stream. After a
 * failure the interval doubles, up to five minutes.
 */
function keepRefreshing(page) {
  const controller = new AbortController();
  const { signal } = controller;
  let timer = 0;
  let failures = 0;
  let running = false;
  let changed = false;
  let refreshedAt = null;
  let following = null;
  const stream = new UpdateStream(session.client, onChange, onState);

  async function refresh() {
    clearTimeout(timer);
    if (running || signal.aborted) return;
    if (document.hidden) return;
    running = true;
    changed = false;
    try {
      await page.refresh(signal);
      if (signal.aborted) return;
      failures = 0;
      refreshedAt = Date.now();
      showNotice("");
      status.textContent = `Version ${vocabulary().version}. Refreshed at ${clockText(refreshedAt)}.`;
      follow();
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      onFailure(error);
      if (signal.aborted) return;
    } finally {
      running = false;
    }
    schedule();
  }

  /** Set the time of the next refresh. */
  function schedule() {
    clearTimeout(timer);
    if (running || signal.aborted) return;
    const since = refreshedAt === null ? 0 : Date.now() - refreshedAt;
    if (changed && failures === 0) {
      const soonest = (page.soonest ?? SOONEST_MS) - since;
      timer = setTimeout(refresh, Math.max(0, soonest) + Math.random() * SPREAD_MS);
      return;
    }
    const period = stream.isOpen ? Math.max(page.period, STREAMED_PERIOD_MS) : page.period;
    const delay = Math.min(LONGEST_DELAY_MS, period * 2 ** Math.min(failures, 10));
    timer = setTimeout(refresh, Math.max(0, delay * (0.9 + 0.2 * Math.random()) - (failures === 0 ? since : 0)));
  }

  function onChange() {
    if (changed) return;
    changed = true;
    schedule();
  }

  /** Adapt the next refresh to the stream. If it opens after failed refreshes, the hub is back. */
  function onState() {
    if (stream.isOpen && failures > 0) {
      failures = 0;
      changed = true;
    }
    schedule();
  }

  /** Open the stream of a visible page. */
  function follow() {
    const subject = page.subject?.() ?? null;
    if (following !== null || subject === null || document.hidden) return;
    following = new AbortController();
    void stream.follow(subject, AbortSignal.any([signal, following.signal]));
  }

  function onFailure(error) {
    if (error.status === 401) {
      signOut(`The token is no longer accepted: ${error.message}`);
      return;
    }
    const shown = refreshedAt === null ? "" : ` The values below are those of ${clockText(refreshedAt)}.`;
    showNotice(`${error.message}.${shown}`);
    if (error.isTemporary === false) {
      controller.abort();
      if (refreshedAt === null) {
        page.node.hidden = true; // there is nothing to show
        status.textContent = "";
      }
    } else if (error.isTemporary === undefined) console.error(error);
  }

  const onVisible = () => {
    if (document.hidden) {
      following?.abort(); // a browser opens few connections to a hub
      following = null;
    }
    void refresh();
  };
  document.addEventListener("visibilitychange", onVisible);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisible);
  });
  page.reload = refresh;
  void refresh();
  return () => controller.abort();
}

async function start() {
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#/")) route();
  });
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment is the route
    main.focus();
  });
  showHeader();
  try {
    await loadVocabulary();
    if (document.body.dataset.access === "open") await signIn(null);
    else signOut("");
  } catch (error) {
    showNotice(error.message);
  }
}

void start();
