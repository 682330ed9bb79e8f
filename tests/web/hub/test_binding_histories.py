"""Random histories of names, cards, clones and allocations.

Each tenant sees its own past, and no other tenant's. No past bill changes.
"""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.model.machine import Machine
from gpufleet.model.view import Side, View, ViewKind
from tests.support.profiles import examples
from tests.web.hub.site import running_site
from tests.web.hub.test_bindings import Fleet

STEPS = 16
TENANTS = ("acme", "bravo", "charlie")


class Node(msgspec.Struct):
    """A physical machine: its present name, and the card in each slot."""

    machine: Machine
    slots: dict[str, str]
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
    """A fleet of three machines with two cards each, and what happens to it, one step a minute."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.random = random.Random(seed)
        self.minute = 0
        self.value = 0.0
        self.measured: list[tuple[int, Node, str, float]] = []
        self.claims: dict[str, Claim] = {}
        self.bills: list[tuple[int, dict[str, Any]]] = []
        self.clones: dict[str, str] = {}
        self.left: dict[str, set[str]] = {}
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
            powers: dict[View, float] = {}
            for address, card in node.slots.items():
                self.value += 1
                powers[View(kind=ViewKind.GPU, side=Side.HOST, uuid=card, pci_address=address)] = self.value
                self.measured.append((self.minute, node, card, self.value))
            texts = {view: str(value) for view, value in powers.items()}
            bodies.append(self.fleet.body(node.machine, self.minute, powers, texts))
            if sender := self.clones.get(str(node.machine.machine_id)):
                bodies.append(self.fleet.body(node.machine, self.minute, powers, texts, sender=sender))
        await self.fleet.site.post(*bodies)

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

    async def swap(self) -> None:
        """Exchange two cards, of one machine or of two.

        A card does not return to a machine that it left: docs/limits.md has that case.
        """
        (one, first), (other, second) = self.random.sample(
            [(node, address) for node in self.alive for address in node.slots], 2
        )
        for card, left, came in ((one.slots[first], one, other), (other.slots[second], other, one)):
            if left is not came and str(came.machine.machine_id) in self.left.get(card, ()):
                return
        for card, left in ((one.slots[first], one), (other.slots[second], other)):
            if one is not other:
                self.left.setdefault(card, set()).add(str(left.machine.machine_id))
        one.slots[first], other.slots[second] = other.slots[second], one.slots[first]

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
        return {row["group"]["allocation"]: row for row in answer["rows"]}

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
    async with running_site(tmp_path) as site:
        history = History(Fleet(site), seed)
        await history.report()
        for _ in range(STEPS):
            step = history.random.choice(
                [history.report, history.rename, history.swap, history.allocate, history.clone]
            )
            await step()
            if step is not history.allocate:
                await history.report()
                await history.bill()
        await history.check()
        await history.check_bills()
