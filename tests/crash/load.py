"""Light senders: threads that post real batches, and keep a ledger of what was acknowledged."""

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
    """One sender: makes a batch, posts it until it is taken or given up, makes the next.

    Attributes:
        made: number of the newest batch.
        acknowledged, unacknowledged: number to body, of what was answered 200 and of what was given up.
        refused: answers that no fault explains.
    """

    def __init__(self, number: int, port: int, *, seed: int, bundle: int = 1, patience: int | None = None) -> None:
        """Take where to post; `bundle` bodies at once; a body is given up after `patience` tries, or never."""
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
        self._stop_asked = threading.Event()
        self._halt = threading.Event()

    def finish(self) -> None:
        """Make no more batches; go on until those that were made are taken or given up."""
        self._stop_asked.set()

    def halt(self) -> None:
        """Give up what is not taken yet."""
        self._stop_asked.set()
        self._halt.set()

    def run(self) -> None:
        """Post until told to finish."""
        while not self._stop_asked.wait(self._random.uniform(0.05, 0.3)):
            waiting = {}
            for _ in range(self._bundle):
                waiting[self.made + 1] = self._body(self.made + 1)
                self.made += 1
            again = self._random.random() < 0.05  # a sender that did not hear the answer posts the same once more
            bodies = dict(waiting)
            tries = 0
            while waiting:
                tries += 1
                self._post(waiting)
                if waiting and (self._halt.wait(0.1) or tries == self._patience):
                    self.unacknowledged |= waiting
                    break
            if again and not waiting:
                self._post(bodies)

    def _post(self, waiting: dict[int, bytes]) -> None:
        """Post what waits, and take out of it what was acknowledged."""
        sent = dict(waiting)
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
                    self._refused(sent, waiting, f"{error.code} {error.read()[:300]!r}")
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
                waiting.pop(seq, None)
            elif status != "503":
                self._refused({seq: body}, waiting, f"{status} in a bundle")

    def _refused(self, bodies: dict[int, bytes], waiting: dict[int, bytes], words: str) -> None:
        """Give up what no hub should refuse; the run ends with it as a problem."""
        self.refused.append(f"{self.name}: batches {', '.join(map(str, bodies))}: {words}")
        self.unacknowledged |= bodies
        for seq in bodies:
            waiting.pop(seq, None)

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
