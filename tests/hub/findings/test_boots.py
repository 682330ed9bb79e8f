from gpufleet.hub.findings.boots import AgentBoots
from gpufleet.hub.liveness.senders import SenderReport
from gpufleet.model.machine import Machine, MachineKind
from tests.hub.findings.test_reports import case
from tests.hub.liveness.test_tally import batch_of


def note(boots: AgentBoots, sender: str, *machines: Machine) -> None:
    batch = batch_of(sender, case(), 1)
    batch.machines = list(machines)
    boots.note(SenderReport(batch=batch, received_at=1, known_epoch=True))


def machine(machine_id: str, boot: str | None = "boot", kind: MachineKind = MachineKind.NODE) -> Machine:
    return Machine(name="n", machine_id=machine_id, boot_id=boot, kind=kind)


def counts(boots: AgentBoots, *gone: str) -> dict[str, int]:
    return {sender: count for (_, sender), count in boots.count(lambda who: who[1] not in gone).items()}


def test_agents_with_one_boot_are_counted() -> None:
    boots = AgentBoots()
    for sender, id_, boot in (("a", "m", "1"), ("b", "m", "1"), ("c", "m", "2"), ("d", "n", "1")):
        note(boots, sender, machine(id_, boot), machine("guest", "9", MachineKind.GUEST))
    assert counts(boots) == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert counts(boots, "b") == {"a": 1, "c": 1, "d": 1}
    note(boots, "b", machine("m", "3"))
    assert counts(boots)["a"] == 1


def test_importers_are_no_agents() -> None:
    boots = AgentBoots()
    note(boots, "importer", machine("m", None))
    note(boots, "relay", machine("m", "1"), machine("n", "1"))
    note(boots, "empty")
    assert counts(boots) == {}
