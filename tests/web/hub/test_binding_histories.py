"""Random histories of names, cards, clocks, clones, pods and allocations.

Each tenant sees its own past, and no other tenant's. No past bill changes.
"""

import datetime as dt
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.config.hub import UsageConfig
from gpufleet.config.prices import PriceConfig
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.inventory import RETURN_GAP_NS
from gpufleet.model.holdings import HolderKind, Holding, Share
from gpufleet.model.machine import Machine
from gpufleet.model.view import Side, View, ViewKind
from tests.fakes.batches import gpu_view
from tests.support.profiles import examples
from tests.web.hub.site import running_site
from tests.web.hub.test_bindings import Fleet
from tests.web.hub.test_guest_allocations import HOSTS, GuestReports, value_of
from tests.web.hub.test_holder_usage import used_throughout
from tests.web.hub.test_workload_allocations import FIRST, NODES, SECOND, Cluster, job, pod

STEPS = 16
STEP = RETURN_GAP_NS + MAX_CLOCK_SKEW_NS
TENANTS = ("acme", "bravo", "charlie")


class Node(msgspec.Struct):
    """A physical machine: its present name, and the card in each slot."""

    machine: Machine
    slots: dict[str, str]
    instance_type: str = ""
    retired: bool = False


class Claim(msgspec.Struct):
    """An allocation as an operator meant it: machine, cards (None for all), and interval in minutes."""

    tenant: str
    node: Node
    cards: frozenset[str] | None
    start: int
    end: int

    def conflicts(self, other: "Claim") -> bool:
        shared = self.cards is None or other.cards is None or bool(self.cards & other.cards)
        overlaps = self.start < other.end and other.start < self.end
        return self.tenant != other.tenant and self.node is other.node and shared and overlaps


class History:
    """A fleet of three machines with two cards each, and what happens to it, one step in 40 minutes.

    A card that returns to a machine was away for longer than the pause after which it counts as reported again.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.random = random.Random(seed)
        self.minute = 0
        self.value = 0.0
        self.measured: list[tuple[float, Node, str, float]] = []
        self.ahead: dict[str, float] = {}
        self.claims: dict[str, Claim] = {}
        self.bills: list[tuple[int, dict[str, Any]]] = []
        self.clones: dict[str, str] = {}
        self.nodes = []
        for number in range(3):
            digits = f"{seed % 16:x}{number}".rjust(32, "a")
            uuid = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"
            machine = Machine(name=f"gpu-{number}", machine_id=digits, system_uuid=uuid)
            slots = {f"0000:0{slot}:00.0": f"GPU-{number}{slot}" for slot in (1, 2)}
            self.nodes.append(Node(machine, slots))

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes if not node.retired]

    async def report(self) -> None:
        """Let every machine report a value of each card that no other report has."""
        self.minute += 1
        bodies = []
        for node in self.alive:
            ahead = self.ahead.get(str(node.machine.machine_id), 0.0)
            powers: dict[View, float] = {}
            for address, card in node.slots.items():
                self.value += 1
                powers[View(kind=ViewKind.GPU, side=Side.HOST, uuid=card, pci_address=address)] = self.value
                self.measured.append((self.minute + ahead, node, card, self.value))
            texts = {view: str(value) for view, value in powers.items()}
            own = {"host_instance_type": node.instance_type} if node.instance_type else {}
            bodies.append(self.fleet.body(node.machine, self.minute, powers, texts, ahead=ahead, texts=own))
            if sender := self.clones.get(str(node.machine.machine_id)):
                bodies.append(self.fleet.body(node.machine, self.minute, powers, texts, sender=sender, ahead=ahead))
        await self.fleet.site.post(*bodies)

    async def set_clock(self) -> None:
        """Set the clock of a machine, by up to 8 minutes: what it measures is of the time that its clock shows."""
        machine = self.random.choice(self.alive).machine
        self.ahead[str(machine.machine_id)] = self.random.choice([-0.2, -0.1, 0.0, 0.1, 0.2])

    async def clone(self) -> None:
        """Start or stop a second agent on a machine."""
        digits = str(self.random.choice(self.alive).machine.machine_id)
        if self.clones.pop(digits, None) is None:
            self.clones[digits] = f"{len(self.bills):032x}"

    async def rename(self) -> None:
        """Retire a machine, and give its name to another one."""
        if len(self.alive) > 1:
            retired, heir = self.random.sample(self.alive, 2)
            await self.fleet.site.request(f"/v1/machines/{await self.fleet.id_of(retired.machine)}", "DELETE")
            retired.retired = True
            heir.machine = msgspec.structs.replace(heir.machine, name=retired.machine.name)

    async def resize(self) -> None:
        """Change the instance type of a machine."""
        self.random.choice(self.alive).instance_type = self.random.choice(["small", "large"])

    async def swap(self) -> None:
        """Exchange two cards, of one machine or of two."""
        (one, first), (other, second) = self.random.sample(
            [(node, address) for node in self.alive for address in node.slots], 2
        )
        one.slots[first], other.slots[second] = other.slots[second], one.slots[first]

    async def add(self) -> None:
        """Put a new card into an empty slot of a machine."""
        slots = self.random.choice(self.alive).slots
        number = len(slots) + 1
        slots[f"0000:0{number}:00.0"] = f"GPU-new-{self.minute}-{number}"

    async def allocate(self) -> None:
        """Store an allocation by the present name of a machine, in whole, by address or by UUID."""
        node = self.random.choice(self.alive)
        start = self.random.randint(1, self.minute + 1)
        end = start + self.random.randint(1, 12)
        listed = self.random.choice([None, *node.slots.items()])
        name = f"n{len(self.claims)}"
        cards = None if listed is None else frozenset({listed[1]})
        claim = Claim(self.random.choice(TENANTS), node, cards, start, end)
        devices = {} if listed is None else {"devices": [self.random.choice(listed)]}
        times = {"valid_from": self.fleet.time(start), "valid_to": self.fleet.time(end)}
        status, _ = await self.fleet.put(name, claim.tenant, node.machine.name, **times, **devices)  # type: ignore[arg-type]
        assert status == (409 if any(map(claim.conflicts, self.claims.values())) else 201)
        if status == 201:
            self.claims[name] = claim

    async def bill(self) -> None:
        """Keep the usage of everything that is over by two minutes."""
        if self.minute > 2:
            self.bills.append((self.minute - 2, await self.usage(self.minute - 2)))

    async def usage(self, end: int) -> dict[str, Any]:
        """Return the usage of each allocation from the beginning to a minute."""
        window = f"start={self.fleet.time(0)}&end={self.fleet.time(end)}&group_by=allocation"
        answer = (await self.fleet.site.request(f"/v1/usage?{window}"))[1]
        return {
            row["group"]["allocation"]: {
                name: round(value, 9) if isinstance(value, float) else value for name, value in row.items()
            }
            for row in answer["rows"]
        }

    async def check_bills(self) -> None:
        for end, billed in self.bills:
            now = await self.usage(end)
            assert {name: now.get(name) for name in billed} == billed, end

    async def check(self) -> None:
        for name, claim in self.claims.items():
            own = {
                value
                for minute, node, card, value in self.measured
                if node is claim.node
                and (claim.cards is None or card in claim.cards)
                and claim.start <= minute < claim.end
            }
            assert await self.fleet.powers(name) == own, name
            assert await self.fleet.messages(name) == {str(value) for value in own}, name


@pytest.mark.parametrize("seed", range(examples(3, 200)))
async def test_no_tenant_sees_the_past_of_another(tmp_path: Path, seed: int) -> None:
    since = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    prices = tuple(
        PriceConfig(model="H200", per_gpu_hour=amount, valid_from=since, instance_type=instance_type)
        for instance_type, amount in ((None, 1.0), ("small", 2.0), ("large", 3.0))
    )
    async with running_site(tmp_path, usage=UsageConfig(currency="EUR", price=prices)) as site:
        history = History(Fleet(site, STEP), seed)
        await history.report()
        for _ in range(STEPS):
            step = history.random.choice(
                [
                    *(history.report, history.rename, history.swap, history.add),
                    *(history.allocate, history.clone, history.set_clock, history.resize),
                ]
            )
            await step()
            if step is not history.allocate:
                await history.report()
                await history.bill()
        await history.check()
        await history.check_bills()


PHASES = 7
"""Phases of a virtual machine's history, each of 16 to 24 minutes: longer than the overlap of a migration."""


@pytest.mark.parametrize("seed", range(examples(3, 200)))
async def test_clones_of_a_virtual_machine_show_nothing_of_each_other(tmp_path: Path, seed: int) -> None:
    """Hosts report a virtual machine every 4 minutes. It migrates, returns, or several hosts have it at once."""
    chance = random.Random(seed)
    async with running_site(tmp_path) as site:
        reports = GuestReports(site, 24 * PHASES + 60)
        handover = chance.randrange(1, 24 * PHASES)
        await reports.allocate("a", "acme", valid_to=reports.time(handover))
        await reports.allocate("b", "bravo", handover)
        own: dict[str, set[float]] = {"a": set(), "b": set()}

        async def bill(end: int) -> dict[str, tuple[float, ...]]:
            hours = ("held_gpu_hours", "used_gpu_hours", "unknown_gpu_hours")
            rows = (await reports.usage(end))["rows"]
            return {row["group"]["allocation"]: tuple(round(row[name], 9) for name in hours) for row in rows}

        bills: list[tuple[int, Any]] = []
        minute = 0
        hosts = [HOSTS[0]]
        for _ in range(PHASES):
            for _ in range(chance.randint(4, 6)):
                reports.report(minute, *hosts)
                own["a" if minute < handover else "b"].update(
                    {value_of(minute, host) for host in hosts} if len(hosts) == 1 else ()
                )
                minute += 4
            await reports.post()
            bills.append((minute - 8, await bill(minute - 8)))
            hosts = chance.sample(HOSTS, chance.choice([0, 1, 1, 1, 2, 3]))
        assert {name: await reports.shown(name) for name in own} == own
        for end, billed in bills:
            assert await bill(end) == billed, end


WORKLOADS = {"a": (pod(FIRST), "acme"), "b": (pod(SECOND), "bravo"), "c": (job("4711"), "charlie")}
"""Allocation to the pod or job that it names, and its tenant."""

DEVICES = [(node, gpu_view(number)) for number, node in enumerate([*NODES, *NODES])]


class HolderHistory:
    """Pods and a job that move between four GPUs of two nodes, alone or time-sliced, half a minute before a report."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.minute = 0
        self.open: list[dict[str, Holding]] = [{} for _ in DEVICES]
        self.past: list[tuple[float, float, int, frozenset[str]]] = []
        self.begun = [0.0 for _ in DEVICES]
        self.measured: dict[str, set[float]] = {name: set() for name in WORKLOADS}
        self.bills: list[tuple[int, Any]] = []

    async def step(self) -> None:
        """Change the holders of a GPU, and let both nodes report."""
        self.minute += 1
        changed = self.random.randrange(len(DEVICES))
        names = self.random.sample(sorted(WORKLOADS), self.random.choice([0, 1, 1, 1, 2, 3]))
        ended = self._change(changed, frozenset(names), self.minute - 0.5)
        for node in NODES:
            values = {}
            holdings = []
            for number, (of, view) in enumerate(DEVICES):
                if of is node:
                    values[view] = float(self.minute * len(DEVICES) + number)
                    holdings += [*self.open[number].values(), *(ended if number == changed else ())]
                    for name in self.open[number]:
                        self.measured[name].add(values[view])
            await self.cluster.report(self.minute, values, holdings, node)

    def _change(self, number: int, names: frozenset[str], at: float) -> list[Holding]:
        """Replace the holders of a GPU. Return the holdings that ended."""
        self.past.append((self.begun[number], at, number, frozenset(self.open[number])))
        self.begun[number] = at
        ended = [msgspec.structs.replace(one, until=self.cluster.at(at)) for one in self.open[number].values()]
        share: dict[str, Any] = {"share": Share.TIMESLICE, "replicas": 1} if len(names) > 1 else {}
        view = DEVICES[number][1]
        self.open[number] = {name: self.cluster.held(view, WORKLOADS[name][0], at, **share) for name in sorted(names)}
        return ended

    def expected(self, end: int) -> dict[str, tuple[float, float]]:
        """Return the minutes that each allocation has held, and used, until a minute."""
        lasting = [(self.begun[n], float(end), n, frozenset(self.open[n])) for n in range(len(DEVICES))]
        sums = {name: [0.0, 0.0] for name in WORKLOADS}
        for begin, until, _, names in (*self.past, *lasting):
            for name in names:
                length = max(0.0, min(until, end) - begin)
                sums[name][0] += length / len(names)
                sums[name][1] += length if len(names) == 1 else 0.0
        return {name: (round(held, 6), round(used, 6)) for name, (held, used) in sums.items() if held}

    async def usage(self, by: str, end: int) -> Any:
        window = f"start={self.cluster.time(0)}&end={self.cluster.time(end)}"
        return (await self.cluster.site.request(f"/v1/usage?group_by={by}&{window}"))[1]

    async def billed(self, end: int) -> dict[str, tuple[float, float]]:
        """Return the held and used minutes by allocation."""
        return {
            row["group"]["allocation"]: (round(row["held_gpu_hours"] * 60, 6), round(row["used_gpu_hours"] * 60, 6))
            for row in (await self.usage("allocation", end))["rows"]
        }


@pytest.mark.parametrize("seed", range(examples(3, 200)))
async def test_pods_and_jobs_have_what_they_held(tmp_path: Path, seed: int) -> None:
    async with running_site(tmp_path) as site:
        site.store.device_usage = used_throughout  # type: ignore[method-assign]
        history = HolderHistory(Cluster(site), seed)
        for name, (holder, tenant) in WORKLOADS.items():
            target = {"pod_uid": holder.id} if holder.kind is HolderKind.POD else {"job_id": holder.id}
            kind = "kubernetes_pod" if holder.kind is HolderKind.POD else "slurm_job"
            assert await history.cluster.put(name, tenant, kind, **target) == 201
        for _ in range(STEPS):
            await history.step()
            if history.minute > 2:
                history.bills.append((history.minute - 2, await history.billed(history.minute - 2)))
        assert await history.billed(history.minute) == history.expected(history.minute)
        for end, billed in history.bills:
            assert await history.billed(end) == billed, end
        assert {name: await history.cluster.shown(name) for name in WORKLOADS} == history.measured
        by_holder = await history.usage("pod,job", history.minute)
        of_holders = {
            row["group"]["job"] or row["group"]["pod"]: round(row["held_gpu_hours"] * 60, 6)
            for row in by_holder["rows"]
            if row["holder_absent"] is None
        }
        assert sorted(of_holders.values()) == sorted(held for held, _ in history.expected(history.minute).values())
        total = sum(row["held_gpu_hours"] for row in by_holder["rows"])
        assert total == pytest.approx(by_holder["total"]["held_gpu_hours"])


class MigHistory:
    """A GPU that is divided again and again, is not divided at times, and is lost at times. A pod has each part."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.minute = 0
        self.present: dict[View, tuple[str, int, int]] = {}
        self.past: list[tuple[str, int, int, int]] = []
        self.bills: list[tuple[int, Any]] = []

    async def step(self) -> None:
        """Divide the GPU, end its parts, lose it or change nothing, and report.

        The UUID of a MIG device is that of its place, whatever its size is.
        """
        self.minute += 1
        change = self.random.choice(["divide", "end", "lose", "nothing"])
        ended = []
        if change in ("divide", "end"):
            ended = [self._held(view, self.minute) for view in self.present]
            self.past += [(*one, self.minute) for one in self.present.values()]
            self.present = {}
        if change == "divide":
            for slices in self.random.choice([(7,), (3, 4), (1, 2, 3)]):
                uid = f"{self.minute:08}-0000-4000-8000-{len(self.present):012}"
                uuid = f"MIG-{len(self.present)}"
                view = View(kind=ViewKind.MIG, side=Side.HOST, uuid=uuid, parent=DEVICES[0][1].key)
                self.present[view] = uid, slices, self.minute
                assert await self.cluster.put(uid, "acme", pod_uid=uid) == 201
        sizes: dict[View, int | Absent] = {view: slices for view, (_, slices, _) in self.present.items()}
        if change == "lose":
            sizes = dict.fromkeys(sizes, Absent(Reason.GPU_LOST))
        sizes[DEVICES[0][1]] = 7 if self.present and change != "lose" else Absent(Reason.NO_DATA)
        held = [self._held(view) for view in self.present]
        await self.cluster.report_mig(self.minute, sizes, [*ended, *held])

    def _held(self, view: View, until: int | None = None) -> Holding:
        uid, _, begin = self.present[view]
        return self.cluster.held(view, pod(uid), begin, until)

    def expected(self, end: int) -> dict[str, float]:
        """Return the minutes of the GPU that each allocation has had until a minute."""
        present = [(*one, end) for one in self.present.values()]
        spans = [(name, size * (min(until, end) - begin) / 7) for name, size, begin, until in (*self.past, *present)]
        return {name: round(minutes, 6) for name, minutes in spans if minutes > 0}

    async def billed(self, end: int) -> dict[str, float]:
        window = f"start={self.cluster.time(0)}&end={self.cluster.time(end)}"
        rows = (await self.cluster.site.request(f"/v1/usage?group_by=allocation&{window}"))[1]["rows"]
        return {row["group"]["allocation"]: round(row["held_gpu_hours"] * 60, 6) for row in rows}


@pytest.mark.parametrize("seed", range(examples(3, 200)))
async def test_mig_devices_keep_their_shares(tmp_path: Path, seed: int) -> None:
    async with running_site(tmp_path) as site:
        history = MigHistory(Cluster(site), seed)
        for _ in range(STEPS):
            await history.step()
            assert await history.billed(history.minute) == history.expected(history.minute)
            history.bills.append((history.minute, await history.billed(history.minute)))
        for end, billed in history.bills:
            assert await history.billed(end) == billed, end
