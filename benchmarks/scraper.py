"""A scraper in a process of its own: `python -m benchmarks.scraper URL REQUESTS PAUSE [HEADER VALUE ...]`.

Sends requests over one persistent connection, and prints as JSON the size of the last response
and the milliseconds of each.
"""

import http.client
import json
import sys
import time
from urllib.parse import urlsplit


def scrape(url: str, requests: int, pause: float, headers: dict[str, str]) -> tuple[int, list[float]]:
    """Return the bytes of the last answer, and how long each took."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    size, lasted = 0, []
    for number in range(requests):
        time.sleep(pause * (1 + number % 7 / 7))  # at no fixed place in a round
        began = time.perf_counter()
        connection.request("GET", parts.path, headers=headers)
        answer = connection.getresponse()
        size = len(answer.read())
        lasted.append((time.perf_counter() - began) * 1e3)
        assert answer.status == 200, answer.status
    connection.close()
    return size, lasted


if __name__ == "__main__":
    url, requests, pause, *headers = sys.argv[1:]
    print(json.dumps(scrape(url, int(requests), float(pause), dict(zip(headers[::2], headers[1::2], strict=True)))))
