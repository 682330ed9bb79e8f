/** Client of the API of a hub or an agent. The token stays in memory and is sent in a header: there are no cookies. */

const TIMEOUT_MS = 60_000;

/** A stream without a byte for this long is broken: the hub sends a comment every 10 s. */
const SILENCE_MS = 30_000;

/** Error response of the hub, or no response (`status` 0). */
export class ApiError extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }

  /** Whether the same request can succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export class Client {
  #root;
  #token;
  #ahead = 0;

  /** Set the URL of the hub, which ends with a slash, and the token; null on a hub without tokens. */
  constructor(root, token) {
    this.#root = root;
    this.#token = token;
  }

  /** Return the present by the hub's clock, in ms. It is exact to about a second. */
  now() {
    return Date.now() + this.#ahead;
  }

  /** Return the JSON document of a path such as `v1/fleet`. Throws ApiError. */
  async get(path, parameters = {}, signal = undefined) {
    return (await this.#request(path, parameters, signal)).json();
  }

  /** Send a request with another method than GET, and a JSON body if given; return the document. Throws ApiError. */
  async send(method, path, body = undefined) {
    return (await this.#request(path, {}, undefined, method, body)).json();
  }

  /** Yield the items of each page of a list that has `items` and `next`. */
  async *pages(path, parameters, signal) {
    let cursor = null;
    do {
      const page = await this.get(path, cursor === null ? parameters : { ...parameters, cursor }, signal);
      yield page.items;
      cursor = page.next;
    } while (cursor !== null);
  }

  /** Return the first page of a plain list, and the cursor of the next page or null, which a header has. */
  async list(path, parameters, signal) {
    const answer = await this.#request(path, parameters, signal);
    return { items: await answer.json(), next: nextCursor(answer.headers.get("link")) };
  }

  /**
   * Yield the name of each server-sent event of a path, and "" for a comment, until the response ends. EventSource
   * cannot send the token. Throws ApiError.
   */
  async *events(path, parameters, signal) {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const both = AbortSignal.any([signal, silence.signal]);
      const answer = await this.#request(path, parameters, both, "GET", undefined, "text/event-stream");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) yield /^event: (.*)$/m.exec(block)?.[1] ?? "";
      }
    } finally {
      clearTimeout(timer);
      silence.abort();
    }
  }

  async #request(path, parameters, signal, method = "GET", body = undefined, accept = "application/json") {
    const url = new URL(path, this.#root);
    for (const [name, value] of Object.entries(parameters)) {
      for (const one of [value].flat()) if (one !== null && one !== undefined) url.searchParams.append(name, one);
    }
    const timeout = accept === "application/json" ? AbortSignal.timeout(TIMEOUT_MS) : new AbortController().signal;
    let answer;
    try {
      answer = await fetch(url, {
        method,
        body: body === undefined ? undefined : JSON.stringify(body),
        headers: {
          accept,
          ...(body === undefined ? {} : { "content-type": "application/json" }),
          ...(this.#token ? { authorization: `Bearer ${this.#token}` } : {}),
        },
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
        signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      const detail = timeout.aborted ? `no response within ${TIMEOUT_MS / 1000} s` : "the server cannot be reached";
      throw new ApiError(0, "unreachable", detail);
    }
    const at = Date.parse(answer.headers.get("date") ?? "");
    if (!Number.isNaN(at)) this.#ahead = at - Date.now();
    if (!answer.ok) throw await errorOf(answer);
    return answer;
  }
}

async function errorOf(answer) {
  try {
    const { error, detail } = await answer.json();
    return new ApiError(answer.status, String(error), String(detail));
  } catch {
    return new ApiError(answer.status, "unknown", `HTTP status ${answer.status}`);
  }
}

/** Return the cursor in a `Link` header, or null. */
export function nextCursor(link) {
  const found = /<([^>]*)>;\s*rel="next"/.exec(link ?? "");
  return found ? new URL(found[1], "http://hub/").searchParams.get("cursor") : null;
}

/** Return the path of a GPU: its id with slashes, each part escaped. */
export function gpuPath(id) {
  return `v1/gpus/${id.split("/").map(encodeURIComponent).join("/")}`;
}
