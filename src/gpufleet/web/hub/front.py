"""The hub's front page: where everything is. It tells nothing about the fleet, so it needs no token."""

from html import escape

from litestar import Response, get

LINKS = (
    ("/v1/nodes", "every node: its GPUs, how fresh it is, its newest error"),
    ("/v1/gpus", "every GPU, as each side sees it"),
    ("/v1/allocations", "what was given to whom"),
    ("/v1/senders", "who posts batches, how late they are, and what is missing of them"),
    ("/v1/clusters", "clusters, and what they should have"),
    ("/openapi.json", "the whole API"),
    ("/metrics", "what the hub counts of itself, for Prometheus"),
    ("/readyz", "whether it works"),
)
"""Path and words of what is linked."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
}

_ROWS = "\n".join(f'<tr><td><a href="{path}">{path}</a></td><td>{escape(words)}</td></tr>' for path, words in LINKS)

PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>gpufleet hub</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 2rem; color-scheme: light dark }}
td {{ padding-right: 1.5rem; vertical-align: top }}</style>
<h1>gpufleet hub</h1>
<table>
{_ROWS}
</table>
<p>Where the hub asks for tokens, each of these takes one: <code>curl -H "Authorization: Bearer $(cat token)"</code>, or
<code>gpufleet query nodes --token-file FILE</code>.</p>
</html>
"""


@get("/", include_in_schema=False, media_type="text/html")
async def front_page() -> Response[str]:
    """Return the page."""
    return Response(PAGE, headers=HEADERS)
