"""Scraper in a separate process: `python -m benchmarks.scraper URL REQUESTS PAUSE [HEADER VALUE ...]`.

It sends requests over one persistent connection, and prints as JSON the size of the last response and the latencies in
milliseconds.
"""

import http.client
import json
import sys
import time
from urllib.parse import urlsplit


def scrape(url: str, requests: int, pause: float, headers: dict[str, str]) -> tuple[int, list[float]]:
    """Return the size of the last response, and all latencies in milliseconds."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    size, latencies = 0, []
    for number in range(requests):
        time.sleep(pause * (1 + number % 7 / 7))  # at varying points of a round
        began = time.perf_counter()
        connection.request("GET", parts.path, headers=headers)
        answer = connection.getresponse()
        size = len(answer.read())
        latencies.append((time.perf_counter() - began) * 1e3)
        assert answer.status == 200, answer.status
    connection.close()
    return size, latencies


if __name__ == "__main__":
    url, requests, pause, *headers = sys.argv[1:]
    print(json.dumps(scrape(url, int(requests), float(pause), dict(zip(headers[::2], headers[1::2], strict=True)))))
