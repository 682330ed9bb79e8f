"""A page of a Prometheus' `/federate` as a request. Pure."""

from gpufleet.codecs.prometheus_text.page import Page
from gpufleet.codecs.remote_write.records import WriteRequest


def as_request(page: Page) -> WriteRequest:
    """Return the samples of a page that say when they were measured.

    The instant of a federated sample is that of its scrape in the cluster, and not of this hub's question. One without
    could be of any age: it is a problem `no_time`.
    """
    numbers = sorted(page.times)
    problems = {str(problem): count for problem, count in page.problems.items()}
    if len(numbers) < len(page.series):
        problems["no_time"] = len(page.series) - len(numbers)
    return WriteRequest(
        series=[page.series[number] for number in numbers],
        values=[page.values[number] for number in numbers],
        times=[page.times[number] for number in numbers],
        stale=[],
        types={},
        problems=problems,
    )
