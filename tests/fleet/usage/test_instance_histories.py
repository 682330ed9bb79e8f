"""Virtual machines that move between hosts: each has one vGPU at any time, and what is past never changes."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.usage.instances import instance_intervals
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS, Interval
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.support.profiles import examples

STEP = 10 * NANOS
MINUTE = 60 * NANOS
HOSTS = ("a", "b", "c")
MACHINES = tuple(f"c77c546c-c5a2-4093-bc1b-8051983e7a6{number}" for number in range(3))


class Instance:
    """vGPU of a virtual machine, from its start on a host to its end."""

    def __init__(self, host: str, number: int, machine: str, begun: int) -> None:
        uuid = f"0f3a1f6e-0000-11f0-8000-{number:012}"
        self.view = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=uuid, parent=_gpu(host).key)
        self.host, self.machine, self.begun, self.last = host, machine, begun, begun


class Hosts:
    """Hosts that report every 10 s. Each start of a virtual machine creates an instance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.at = 10 * MINUTE
        self.up = set(HOSTS)
        self.last = dict.fromkeys(HOSTS, self.at)
        self.instances: list[Instance] = []
        self.running: dict[str, Instance] = {}

    def start(self, machine: str, *, but: str = "") -> None:
        host = self.random.choice(sorted(self.up - {but}) or sorted(self.up))
        self.running[machine] = Instance(host, len(self.instances), machine, self.at)
        self.instances.append(self.running[machine])

    def change(self) -> None:
        """Start, stop or move a machine, or let a host crash or return."""
        machine = self.random.choice(MACHINES)
        action = self.random.choice(("start", "start", "stop", "restart", "move", "crash", "return"))
        if action == "start" and machine not in self.running:
            self.start(machine)
        elif action in ("stop", "restart", "move") and machine in self.running:
            host = self.running.pop(machine).host
            if action != "stop":
                self.pass_time(self.random.choice((0, 1, 4, 12, 40)))
                self.start(machine, but=host if action == "move" else "")
        elif action == "crash" and len(self.up) > 1:
            host = self.random.choice(sorted(self.up))
            self.up.remove(host)
            self.running = {machine: one for machine, one in self.running.items() if one.host != host}
        elif action == "return":
            self.up = set(HOSTS)

    def pass_time(self, steps: int) -> None:
        """Let the hosts report."""
        self.at += steps * STEP
        self.last |= dict.fromkeys(self.up, self.at)
        for one in self.running.values():
            one.last = self.at
        self.at += STEP

    def judged(self, machine: str) -> list[tuple[Interval, str]]:
        """Return the intervals of a machine in order of time, and the view of each."""
        had = [one for one in self.instances if one.machine == machine]
        texts = [
            StoredText(machine=one.host, view=one.view.key, reader="nvml", at=one.begun, text=machine) for one in had
        ]
        stored = {host: [_sample(_gpu(host), at)] for host, at in self.last.items()}
        for one in self.instances:
            stored[one.host].append(_sample(one.view, one.last))
        found = instance_intervals(machine, texts, stored, self.at)
        return sorted((interval, view) for (_, view), intervals in found.items() for interval in intervals)


def _gpu(host: str) -> View:
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{host}")


def _sample(view: View, at: int) -> StoredSample:
    sample = Sample(
        view=view,
        reader="nvml",
        lane=Lane.FAST,
        measured_at=at,
        values={"gpu_utilization_ratio": 0.5},
        provenance=Provenance.HOST_LOCAL_PROBE,
    )
    return StoredSample(sample=sample, received_at=at)


def before(intervals: list[tuple[Interval, str]], end: int) -> list[tuple[Interval, str]]:
    return [((begin, min(until, end)), view) for (begin, until), view in intervals if begin < end]


@settings(max_examples=examples(150, 10_000), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_machine_has_one_vgpu_at_any_time_and_its_past_is_kept(seed: int) -> None:
    """The tolerance between clocks is over: in it, a crashed host can still have the machine."""
    hosts = Hosts(seed)
    judged: list[tuple[str, int, list[tuple[Interval, str]]]] = []
    for _ in range(14):
        hosts.change()
        hosts.pass_time(hosts.random.choice((3, 6, 40, 70, 150, 240, 400)))
        settled = hosts.at - MAX_CLOCK_SKEW_NS - MINUTE
        for machine in MACHINES:
            found = hosts.judged(machine)
            past = before(found, settled)
            ends = [until for (_, until), _ in past]
            assert [begin for (begin, _), _ in past] == [0, *ends][: len(past)]
            assert not past or ends[-1] == settled
            judged.append((machine, settled, past))
    for machine, settled, past in judged:
        assert before(hosts.judged(machine), settled) == past or not past
