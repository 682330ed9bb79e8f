"""Light senders: threads that post real batches and record which were acknowledged."""

import http.client
import random
import threading
import time
import urllib.error
import urllib.request

import msgspec

from gpufleet.codecs.batch import CONTENT_TYPE, encode
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, BundleAnswer, pack
from gpufleet.model.machine import Machine
from gpufleet.model.wire.batch import Batch, MachineReport
from tests.fakes.batches import gpu_sample, gpu_view, host_sample

CLUSTER = "local"
ANSWER_SECONDS = 3.0
_ANSWERED = {"accepted", "duplicate"}


class Sender(threading.Thread):
    """Sender that creates a batch, posts it until it is acknowledged or given up, and creates the next.

    Attributes:
        made: number of the newest batch.
        acknowledged, unacknowledged: bodies by number, answered with 200 or given up.
        refused: responses that no fault explains.
    """

    def __init__(self, number: int, port: int, *, seed: int, bundle: int = 1, patience: int | None = None) -> None:
        """Take the port. `bundle` bodies are posted at once. A body is given up after `patience` tries, or never."""
        super().__init__(name=f"light-{number}", daemon=True)
        self.made = 0
        self.acknowledged: dict[int, bytes] = {}
        self.unacknowledged: dict[int, bytes] = {}
        self.refused: list[str] = []
        self.epoch = f"{seed:016x}{number:016x}"
        self._url = f"http://127.0.0.1:{port}/v1/batches"
        self._number = number
        self._random = random.Random(f"{seed} {number}")
        self._bundle = bundle
        self._patience = patience
        self._finishing = threading.Event()
        self._halt = threading.Event()

    def finish(self) -> None:
        """Create no further batches. Continue until existing ones are acknowledged or given up."""
        self._finishing.set()

    def halt(self) -> None:
        """Give up unacknowledged batches."""
        self._finishing.set()
        self._halt.set()

    def run(self) -> None:
        """Post until `finish` or `halt` is called."""
        while not self._finishing.wait(self._random.uniform(0.05, 0.3)):
            backlog = {}
            for _ in range(self._bundle):
                backlog[self.made + 1] = self._body(self.made + 1)
                self.made += 1
            repeat = self._random.random() < 0.05  # as if the response was lost
            bodies = dict(backlog)
            tries = 0
            while backlog:
                tries += 1
                self._post(backlog)
                if backlog and (self._halt.wait(0.1) or tries == self._patience):
                    self.unacknowledged |= backlog
                    break
            if repeat and not backlog:
                self._post(bodies)

    def _post(self, backlog: dict[int, bytes]) -> None:
        """Post the backlog, and remove acknowledged batches from it."""
        sent = dict(backlog)
        bundled = self._bundle > 1
        request = urllib.request.Request(
            self._url,
            data=pack(list(sent.values())) if bundled else next(iter(sent.values())),
            headers={"Content-Type": BUNDLE_CONTENT_TYPE if bundled else CONTENT_TYPE},
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                if error.code != 503:
                    self._refused(sent, backlog, f"{error.code} {error.read()[:300]!r}")
            return
        except (OSError, http.client.HTTPException):
            return
        statuses: list[str] = (
            [one.result or str(one.status) for one in msgspec.json.decode(content, type=BundleAnswer).answers]
            if bundled
            else [msgspec.json.decode(content)["status"]]
        )
        for (seq, body), status in zip(sent.items(), statuses, strict=True):
            if status in _ANSWERED:
                self.acknowledged[seq] = body
                backlog.pop(seq, None)
            elif status != "503":
                self._refused({seq: body}, backlog, f"{status} in a bundle")

    def _refused(self, bodies: dict[int, bytes], backlog: dict[int, bytes], detail: str) -> None:
        """Give up batches that no hub should refuse. They are problems of the run."""
        self.refused.append(f"{self.name}: batches {', '.join(map(str, bodies))}: {detail}")
        self.unacknowledged |= bodies
        for seq in bodies:
            backlog.pop(seq, None)

    def _body(self, seq: int) -> bytes:
        now = time.time_ns()
        machine = Machine(name=self.name, machine_id=f"{self._number + 1:032x}", boot_id=f"boot-{self._number}")
        watts = round(100 + 500 * self._random.random(), 3)
        samples = (
            host_sample(now, load=self._random.random()),
            *(gpu_sample(gpu_view(10 * self._number + n), now + n, gpu_power_watts=watts + n) for n in range(2)),
        )
        return encode(
            Batch(
                cluster=CLUSTER,
                sender=self.name,
                epoch=self.epoch,
                seq=seq,
                sent_at=now,
                reports=(MachineReport(machine=machine, samples=samples),),
            )
        )
