/** Pages of findings: the list, and a finding with its timeline and acknowledgement. */

import { element, facts, foreign, printable, replace, section, select, table } from "./dom.js";
import { agoText, secondsText, timeText } from "./format.js";
import { allocationLink, findingLink, gpuLink, nodeLink } from "./labels.js";
import { sentence, vocabulary } from "./vocabulary.js";

const PAGE = 200;
const DAY_MS = 86_400_000;

/** Days for which the closed findings of an allocation are shown. */
const ALLOCATION_DAYS = 7;

/** States to request, and a filter of the findings in the answer, by view. */
const VIEWS = {
  open: [["open", "unknown"], (one) => !one.acknowledged],
  acknowledged: [["acknowledged"], () => true],
  closed: [["closed"], () => true],
};

const DURATIONS = { "1 hour": "1h", "4 hours": "4h", "1 day": "1d", "7 days": "7d" };

/** Create the list, for operators. */
export function findingsPage({ client }) {
  const summary = element("div");
  const controls = element("form", { class: "filters", on: { submit: (event) => event.preventDefault() } });
  const list = element("div");
  const filters = { view: "open", severity: "", cluster: "", rule: "" };
  let clusters = null;
  let shown = PAGE;
  let wanted = 0; // number of changes of the filters

  function change(name, value) {
    filters[name] = value;
    shown = PAGE;
    reload();
  }

  function reload() {
    wanted += 1;
    view.reload(); // ignored during a refresh, which then loads again
  }

  async function load(signal) {
    const [states, isShown] = VIEWS[filters.view];
    const parameters = {
      state: states,
      severity: filters.severity || null,
      cluster: filters.cluster || null,
      rule: filters.rule || null,
      limit: PAGE,
    };
    const items = [];
    let page = null;
    do {
      page = await client.get("v1/findings", { ...parameters, cursor: page?.next ?? null }, signal);
      items.push(...page.items.filter(isShown));
    } while (page.next !== null && items.length < shown);
    const count = `${items.length}${page.next === null ? "" : " or more"}`;
    const lead = element("p", { class: "lead" }, `Findings that are ${filters.view}: ${count}.`);
    replace(summary, lead, evaluationText(page.evaluation));
    replace(
      list,
      items.length === 0 ? element("p", null, "No findings.") : findingTable(items),
      page.next === null
        ? null
        : element(
            "button",
            {
              type: "button",
              "data-key": "more",
              on: {
                click: () => {
                  shown = items.length + PAGE;
                  reload();
                },
              },
            },
            "Show more",
          ),
    );
  }

  function showControls() {
    const choose = (name, label, values) => select(label, name, values, filters[name], (value) => change(name, value));
    replace(
      controls,
      choose("view", "Show", Object.keys(VIEWS)),
      choose("severity", "Severity", ["", ...Object.keys(vocabulary().severities)]),
      choose("cluster", "Cluster", ["", ...clusters]),
      choose("rule", "Rule", ["", ...vocabulary().rules]),
    );
  }

  const view = {
    title: "Findings",
    node: element("div", null, summary, section("Findings", controls, list)),
    period: 15_000,
    subject: () => ({ topic: "findings" }),
    async refresh(signal) {
      if (clusters === null) {
        clusters = (await client.list("v1/clusters", {}, signal)).items.map((one) => one.cluster.id);
        showControls();
      }
      let loaded;
      do {
        loaded = wanted;
        await load(signal);
      } while (loaded !== wanted);
    },
    reload: () => undefined,
  };
  return view;
}

/** Create the text about the evaluation of the rules, marked as an error if it is not current. */
function evaluationText({ age_seconds, is_current, failure, untracked }) {
  const parts = [
    age_seconds === null
      ? `The rules are not evaluated: ${printable(failure)}. States are unknown.`
      : `Rules evaluated ${agoText(age_seconds)}${is_current ? "." : ": newer findings are unknown."}`,
    failure && age_seconds !== null ? `Incomplete: ${printable(failure)}.` : "",
    untracked > 0 ? `${untracked} more subjects exceed the limit on tracked findings.` : "",
  ];
  return element("p", { class: is_current ? "muted" : "error" }, parts.filter(Boolean).join(" "));
}

function findingTable(items) {
  const rows = items.map((one) => [
    element("a", { href: findingLink(one.id), "data-key": one.id }, foreign(one.rule)),
    severityText(one),
    subjectOf(one),
    stateOf(one),
    [timeText(one.opened_at), element("small", null, `for ${secondsText(one.duration_seconds)}`)],
    foreign(evidenceText(one.evidence)),
  ]);
  return table("Findings", ["Rule", "Severity", "Subject", "State", "Opened", "Evidence"], rows);
}

function severityText({ severity }) {
  return element("span", { class: `severity-${severity}`, title: sentence("severities", severity) }, severity);
}

function stateOf(one) {
  return [
    element("span", { title: sentence("finding_states", one.state) }, one.state),
    one.hidden_by ? element("small", null, "hidden by ", foreign(one.hidden_by)) : null,
    one.acknowledged ? element("small", null, `acknowledged until ${timeText(one.acknowledgement.until)}`) : null,
    one.silenced_until ? element("small", null, `silenced until ${timeText(one.silenced_until)}`) : null,
  ];
}

function evidenceText(evidence) {
  return Object.entries(evidence)
    .map(([name, value]) => `${name} ${value}`)
    .join(", ");
}

/** Create the subject of a finding by name, with a link to its page if it has one. */
function subjectOf(one) {
  const node = one.node ?? one.machine;
  const link = (target, name) => element("a", { href: target, "data-key": `${one.id} subject` }, foreign(name));
  const cluster = one.cluster === null ? null : element("small", null, foreign(one.cluster));
  if (one.device !== null) {
    const name = one.device.split("/").slice(3).join("/");
    return [link(gpuLink(one.device), name), element("small", null, foreign(node)), cluster];
  }
  if (one.machine !== null) return [link(nodeLink(one.machine), node), cluster];
  if (one.allocation !== null) return [link(allocationLink(one.allocation), one.allocation), cluster];
  return [foreign(one.sender ?? one.cluster ?? "hub"), one.sender === null ? null : cluster];
}

/** Section with the newest findings of an allocation: open findings, and findings closed in the last days. */
export class AllocationFindings {
  #client;
  #list = element("div");

  /** Set the client. */
  constructor(client) {
    this.#client = client;
    this.node = section(`Findings of the last ${ALLOCATION_DAYS} days`, this.#list);
  }

  /** Load the findings of an allocation. */
  async refresh({ id, spec }, signal) {
    const since = new Date(this.#client.now() - ALLOCATION_DAYS * DAY_MS).toISOString();
    const parameters = { scope: "allocation", subject: `${spec.target.cluster}/${id}`, since, limit: PAGE };
    const page = await this.#client.get("v1/findings", parameters, signal);
    replace(
      this.#list,
      page.items.length === 0 ? element("p", null, "No findings.") : findingTable(page.items),
      page.next === null ? null : element("p", { class: "muted" }, `Only the newest ${PAGE} findings are shown.`),
      evaluationText(page.evaluation),
    );
  }
}

/** Create the page of a finding by its id. An operator can acknowledge it. */
export function findingPage({ client, isOperator }, id) {
  const path = `v1/findings/${encodeURIComponent(id)}`;
  const parts = { summary: element("div"), evidence: element("div"), timeline: element("div") };
  const acknowledgement = new AcknowledgementForm(client, `${path}/acknowledgement`, (record) => {
    replace(parts.summary, detailOf(record));
  });
  return {
    title: "Finding",
    node: element(
      "div",
      null,
      parts.summary,
      section("Evidence", parts.evidence),
      isOperator ? acknowledgement.node : null,
      section("Timeline", parts.timeline),
    ),
    period: 15_000,
    subject: () => (isOperator ? { topic: "findings" } : null),
    async refresh(signal) {
      const found = await client.get(path, {}, signal);
      replace(parts.summary, detailOf(found), evaluationText(found.evaluation));
      replace(parts.evidence, evidenceTable(found.evidence));
      replace(parts.timeline, timelineTable(found.timeline));
      acknowledgement.show(found);
    },
  };
}

function detailOf(one) {
  const { acknowledgement } = one;
  return [
    element("p", { class: "lead" }, severityText(one), " ", foreign(one.rule), ": ", foreign(one.explanation)),
    facts([
      ["Subject", subjectOf(one)],
      ["State", stateOf(one)],
      ["First step", foreign(one.action)],
      ["Opened", timeText(one.opened_at)],
      ["Closed", one.closed_at ? timeText(one.closed_at) : null],
      ["Duration", secondsText(one.duration_seconds)],
      ["Openings in the last hour", String(one.openings)],
      [
        "Newest acknowledgement",
        acknowledgement === null
          ? null
          : [
              `until ${timeText(acknowledgement.until)}`,
              element("small", null, "by ", foreign(acknowledgement.by)),
              acknowledgement.note ? element("small", null, foreign(acknowledgement.note)) : null,
            ],
      ],
      ["Key of the subject", foreign(one.subject || "hub")],
      ["Id", foreign(one.id)],
    ]),
  ];
}

function evidenceTable(evidence) {
  const rows = Object.entries(evidence).map(([name, value]) => [foreign(name), foreign(value)]);
  return rows.length === 0 ? element("p", null, "No evidence.") : table("Evidence", ["Input", "Value"], rows);
}

function timelineTable(timeline) {
  const rows = timeline.map((one) => [
    timeText(one.at),
    one.kind,
    one.reason,
    severityText(one),
    foreign(evidenceText(one.evidence)),
  ]);
  return table("Timeline", ["Time", "Change", "Reason", "Severity", "Evidence"], rows);
}

/** Form that acknowledges a finding for a time, or ends its acknowledgement. */
class AcknowledgementForm {
  #client;
  #path;
  #onChange;
  #duration = "4h";
  #note = element("input", { type: "text", maxlength: 1024, autocomplete: "off" });
  #message = element("p", { role: "status" });
  #end = element("button", { type: "button", on: { click: () => this.#send("DELETE") } }, "End acknowledgement");
  #submit = element("button", { type: "submit" }, "Acknowledge");

  /** Set the client, the path of the acknowledgement, and a function that receives the changed finding. */
  constructor(client, path, onChange) {
    this.#client = client;
    this.#path = path;
    this.#onChange = onChange;
    const name = Object.keys(DURATIONS).find((one) => DURATIONS[one] === this.#duration);
    const form = element(
      "form",
      {
        class: "filters",
        on: {
          submit: (event) => {
            event.preventDefault();
            void this.#send("PUT", { duration: this.#duration, note: this.#note.value });
          },
        },
      },
      select("For", "duration", Object.keys(DURATIONS), name, (value) => {
        this.#duration = DURATIONS[value];
      }),
      element("label", null, "Note ", this.#note),
      this.#submit,
      this.#end,
    );
    this.node = section("Acknowledgement", form, this.#message);
  }

  /** Enable the buttons that the state of the finding permits. */
  show(found) {
    this.#submit.disabled = found.closed_at !== null;
    this.#end.hidden = !found.acknowledged;
  }

  async #send(method, body = undefined) {
    this.#submit.disabled = this.#end.disabled = true;
    this.#message.textContent = "";
    this.#message.className = "";
    try {
      const record = await this.#client.send(method, this.#path, body);
      this.#onChange(record);
      this.show(record);
      this.#message.textContent = record.acknowledged ? "Acknowledged." : "Not acknowledged.";
    } catch (error) {
      this.#submit.disabled = false;
      this.#message.className = "error";
      this.#message.textContent = printable(error.message);
    } finally {
      this.#end.disabled = false;
    }
  }
}
