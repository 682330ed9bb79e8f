/** Sign-in form. The token is kept in memory only: a reload of the page needs it again. */

import { element, printable } from "./dom.js";

/**
 * Create the page. `signIn` takes a token and throws ApiError; `reason` states why the caller was signed out; `site` is
 * what serves the page.
 */
export function signInPage(signIn, reason, site) {
  const message = element("p", { class: reason ? "error" : "", role: "alert" }, reason ? printable(reason) : "");
  const input = element("input", {
    id: "token",
    name: "token",
    type: "password",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    maxlength: 200,
    "aria-describedby": "token-help",
  });
  const button = element("button", { type: "submit" }, "Sign in");

  async function submit(event) {
    event.preventDefault();
    const token = input.value.trim();
    message.className = "";
    message.textContent = "";
    if (!/^[\x21-\x7e]+$/.test(token)) {
      fail("A token has printable ASCII characters only, and no spaces.");
      return;
    }
    button.disabled = true;
    try {
      await signIn(token);
    } catch (error) {
      fail(error.message);
    } finally {
      button.disabled = false;
    }
  }

  function fail(text) {
    input.value = "";
    message.className = "error";
    message.textContent = printable(text);
    input.focus();
  }

  const form = element(
    "form",
    { class: "signin", on: { submit } },
    element("label", { for: "token" }, `Token of this ${site}`),
    input,
    button,
    element(
      "p",
      { id: "token-help", class: "muted" },
      "The token stays in the memory of this page. Reloading the page or signing out removes it.",
    ),
    message,
  );
  return { title: "Sign in", node: form };
}
