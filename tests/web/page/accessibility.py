"""Accessibility violations of a page, by axe."""

from importlib import resources

from playwright.sync_api import Page

AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def violations(page: Page) -> list[str]:
    """Return rule and element of each violation that axe finds."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [f"{rule['id']}: {rule['nodes'][0]['html']}" for rule in found["violations"]]
