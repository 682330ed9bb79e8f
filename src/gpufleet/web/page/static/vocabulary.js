/** Vocabulary of the hub: metrics of the catalogue, rules, and sentences for sources, reasons and states. */

import { valueText } from "./format.js";

let loaded = {
  metrics: {},
  themes: [],
  sources: {},
  reasons: {},
  states: {},
  scopes: {},
  severities: {},
  finding_states: {},
  rules: [],
  clock_events: {},
  version: "",
};

/** Load the vocabulary; it is cached with the files of the page. */
export async function loadVocabulary() {
  const answer = await fetch(new URL("vocabulary.json", import.meta.url), { credentials: "omit" });
  if (!answer.ok) throw new Error(`cannot load the vocabulary of the page: HTTP status ${answer.status}`);
  loaded = await answer.json();
}

/** Return the whole vocabulary. */
export function vocabulary() {
  return loaded;
}

/** Format the value of a metric. */
export function metricText(metric, value) {
  return valueText(loaded.metrics[metric]?.unit ?? "", value);
}

/** Return the sentence for a name of `group`, or an empty text. */
export function sentence(group, name) {
  return Object.hasOwn(loaded[group], name ?? "") ? loaded[group][name] : "";
}
