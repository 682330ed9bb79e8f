"""A hub under load: its process, its own metrics, and the processor time of its threads."""

import http.client
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, resident_mib, thread_seconds
from tests.support.processes import Gpufleet, free_port

START_SECONDS = 300.0

THREADS = {"loop": "loop", "hub-writer": "writer", "hub-reader": "answers", "hub-roller": "rollups"}
"""Labels by thread name. Other threads belong to the store engine or sync the log."""

ENGINE = "engine, syncs"


class MillionHub:
    """Hub process with a persistent folder."""

    def __init__(self, folder: Path, clusters: Sequence[str]) -> None:
        self.folder = folder / "state"
        self.port = free_port()
        config = folder / "hub.toml"
        config.write_text(
            f'listen = "127.0.0.1:{self.port}"\nstate = "{self.folder}"\nclusters = {json.dumps(list(clusters))}\n'
        )
        self._arguments = ["hub", "--config", str(config)]
        self._log = folder / "hub.log"
        self._process: Gpufleet | None = None

    @property
    def pid(self) -> int:
        """Process id of the running hub."""
        assert self._process is not None
        return self._process.process.pid

    def start(self) -> float:
        """Start the hub. Return the seconds until it was ready."""
        began = time.monotonic()
        self._process = Gpufleet(self._arguments, self._log)
        self._process.wait_for(f"http://127.0.0.1:{self.port}/readyz", START_SECONDS)
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop the hub like a service manager."""
        assert self._process is not None
        code = self._process.stop(seconds=600)
        assert code == 0, f"the hub ended with {code}: {self._log}"

    def kill(self) -> None:
        """Kill the hub in any state."""
        if self._process is not None:
            self._process.kill()

    def request(self, path: str) -> tuple[float, bytes]:
        """Return latency in milliseconds and body of a GET over a new connection."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, f"{path}: {answer.status}: {content[:300]!r}"
        return (time.perf_counter() - began) * 1e3, content

    def first_answer(self, path: str) -> float:
        """Return the seconds until the hub answers a GET after a start; before that, it answers 503 `starting`."""
        began = time.monotonic()
        while True:
            try:
                self.request(path)
            except AssertionError as error:
                if "starting" not in str(error):
                    raise
                time.sleep(0.1)
                continue
            return time.monotonic() - began

    def put(self, path: str, document: Any) -> None:
        """PUT a document."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("PUT", path, json.dumps(document), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status < 300, f"{path}: {answer.status}: {answer.read()[:300]!r}"
        connection.close()

    def gauges(self) -> dict[str, float]:
        """Return the hub's metrics without labels, by name."""
        page = self.request("/metrics")[1].decode()
        lines = (line.split(" ") for line in page.splitlines() if not line.startswith("#") and "{" not in line)
        return {parts[0].removeprefix("gpufleet_hub_"): float(parts[1]) for parts in lines}

    def used(self) -> dict[str, float]:
        """Return processor seconds so far, of the whole process as `all` and of its threads by label."""
        used = dict.fromkeys((*THREADS.values(), ENGINE), 0.0)
        for name, seconds in thread_seconds(self.pid):
            used[THREADS.get(name, ENGINE)] += seconds
        used["all"] = cpu_seconds(self.pid)
        used[ENGINE] = used["all"] - sum(used[name] for name in THREADS.values())  # ended threads included
        return used

    def resident(self) -> float:
        """Return the resident memory in MiB."""
        return resident_mib(self.pid)
