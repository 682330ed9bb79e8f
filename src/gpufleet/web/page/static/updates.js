/** Live updates of a page: the hub marks in a stream what has changed, and the page requests it. */

const FIRST_DELAY_MS = 2_000;
const LONGEST_DELAY_MS = 300_000;

/** Stream of marks about the subject of a page. It is opened again after failures, with growing delays. */
export class UpdateStream {
  #client;
  #onChange;
  #onState;
  #isOpen = false;

  /** Set the client, a function that is called after a change, and one that is called when the stream opens or closes. */
  constructor(client, onChange, onState) {
    this.#client = client;
    this.#onChange = onChange;
    this.#onState = onState;
  }

  /** Whether changes are received now. */
  get isOpen() {
    return this.#isOpen;
  }

  /** Follow a subject, {topic, id}, until aborted or refused. */
  async follow(subject, signal) {
    let failures = 0;
    while (!signal.aborted) {
      try {
        for await (const event of this.#client.events("v1/updates", subject, signal)) {
          if (!this.#isOpen) {
            this.#setOpen(true);
            if (failures > 0) this.#onChange(); // marks were missed
            failures = 0;
          }
          if (event !== "") this.#onChange(); // also at the end of the token: the next request is refused
        }
      } catch (error) {
        if (!signal.aborted && error.isTemporary === false) return;
      } finally {
        this.#setOpen(false);
      }
      failures += 1;
      const delay = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** Math.min(failures - 1, 10));
      await pause(delay * (0.5 + Math.random()), signal);
    }
  }

  #setOpen(isOpen) {
    if (isOpen === this.#isOpen) return;
    this.#isOpen = isOpen;
    this.#onState();
  }
}

/** Wait until the time is over or the signal is aborted. */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}
