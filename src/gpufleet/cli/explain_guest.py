"""What `gpufleet why` says of a virtual machine, and of a device inside one. Pure."""

import datetime as dt

from gpufleet.cli.explain import Explanation, Part, explain_device, explain_readings
from gpufleet.exporters.guest_words import guest_facts
from gpufleet.model.snapshot import Device, Guest, Snapshot


def explain_guest(guest: Guest, now: dt.datetime) -> Explanation:
    """Explain a virtual machine: how it is doing, the ways into it, when it got how far, and its readings."""
    parts = [Part(title="the machine", lines=explain_readings(guest.host.readings, guest.host.dimensions, now))]
    parts += [
        Part(
            title=f"{device.name or device.kind} {device.uuid or device.pci_address or device.key}",
            lines=explain_readings(device.readings, device.dimensions, now),
        )
        for device in guest.devices
    ]
    return Explanation(
        subject=f"virtual machine {guest.machine.name} {guest.vm_uuid}",
        facts=guest_facts(guest, now),
        parts=tuple(parts),
    )


def explain_guest_device(snapshot: Snapshot, guest: Guest, device: Device, now: dt.datetime) -> Explanation:
    """Explain one device inside a virtual machine, and how the agent gets on with that."""
    found = explain_device(snapshot, device, f"UUID, as virtual machine {guest.machine.name} claims it", now)
    return Explanation(subject=found.subject, facts=guest_facts(guest, now), parts=found.parts)
