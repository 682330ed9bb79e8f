"""Virtual machines: who tells of them, and how the running agent gets on with each."""

import datetime as dt
from collections.abc import Iterable

from gpufleet.doctor.facts import HANDED_OVER, Check, Facts, Verdict
from gpufleet.exporters.words import guest_facts
from gpufleet.model.machine import OK
from gpufleet.model.snapshot import Guest
from gpufleet.model.time import to_datetime

PROVES = "the virtual machine's GPUs are read from inside"

_DRIVER = "install or load NVIDIA's driver in it"
_LOOK = "look at its own kernel log and nvidia-smi"
MEND = {
    "guest_booting": "wait; if it stays, see whether it boots, and whether what is asked is started in it",
    "guest_unreachable": "see whether it runs, and whether its address is still what is described",
    "guest_refused": "put what `gpufleet guest key` prints into its authorized_keys",
    "identity_mismatch": "if it was meant to get a new host key, remove the old one: STATE/agent/host_keys/VM_UUID",
    "not_enabled": "open a way into it: docs/guests.md, `What to put into the image`",
    "incompatible_version": "install DCGM 4.x in it",
    "no_driver": _DRIVER,
    "no_library": _DRIVER,
    "no_supported_gpu": _DRIVER,
    "driver_mismatch": "restart it: its driver was replaced while it was in use",
    "driver_error": _LOOK,
    "gpu_lost": _LOOK,
    "reset_required": _LOOK,
    "timeout": _LOOK,
    "gpu_count_differs": "compare what the hypervisor gives it with what it is described to have",
    "not_permitted": "let the agent's user read its key and open its sockets: docs/guests.md",
    "reader_failed": "see what answers there: gpufleet why VM --agent URL",
}
"""State to what to do about it."""


def check_libvirt(facts: Facts) -> Check:
    """Ask whether libvirt can be, and is, asked for virtual machines."""
    name, proves = "libvirt", "virtual machines with GPUs are found without being described"
    error, gpus = facts.libvirt_socket, facts.gpus() or ()
    handed = sum(function.driver in HANDED_OVER for function in gpus)
    if error is None or facts.libvirt_enabled is None:
        return Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
    if facts.libvirt_enabled:
        if not error:
            return Check(name=name, verdict=Verdict.OK, proves=proves, found="its socket may be connected to")
        mend = "start libvirt, or name its read-only socket as `socket` of [libvirt]"
        return Check(name=name, verdict=Verdict.FAILED, proves=proves, found=f"its socket: {error}", mend=mend)
    if error or not handed:
        found = "it is not asked, and " + ("has no socket here" if error else "no GPU is handed to a guest")
        return Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found=found)
    found = f"{handed} GPUs are handed to guests, libvirt runs, and is not asked"
    mend = "[libvirt] enabled = true, or describe each: docs/guests.md"
    return Check(name=name, verdict=Verdict.WARNING, proves=proves, found=found, mend=mend)


def check_guests(facts: Facts) -> Iterable[Check]:
    """Tell how the running agent gets on with each virtual machine, and what is wrong with their descriptions."""
    name, proves = "guests", "the agent reads what is described to it"
    if facts.guests_described is None:
        yield Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found="it was not looked for")
        return
    if not facts.guests_described:
        found = "no virtual machine is described to the agent"
        yield Check(name=name, verdict=Verdict.NOT_APPLICABLE, proves=proves, found=found)
        return
    if facts.guests is None:
        mend = "start the agent, or give this command its configuration with --config"
        found = f"the agent does not tell: {facts.guests_error}"
        yield Check(name=name, verdict=Verdict.UNKNOWN, proves=proves, found=found, mend=mend)
        return
    wrong = facts.guests_capability.partition("failing: ")[2]
    yield Check(
        name=name,
        verdict=Verdict.FAILED if wrong else Verdict.OK,
        proves=proves,
        found=wrong or f"{len(facts.guests)} virtual machines, {sum(one.state == OK for one in facts.guests)} read",
        mend="mend what is named; the others are read" if wrong else "",
    )
    now = to_datetime(facts.clock_ns or 0)
    yield from (check_guest(guest, now) for guest in facts.guests)


def check_guest(guest: Guest, now: dt.datetime) -> Check:
    """Tell what is known of one."""
    verdict = Verdict.FAILED
    if guest.state in (OK, "guest_booting"):
        verdict = Verdict.OK if guest.state == OK else Verdict.WARNING
    return Check(
        name=f"guest {guest.machine.name}",
        verdict=verdict,
        proves=PROVES,
        found="; ".join(guest_facts(guest, now)),
        mend="" if guest.state == OK else MEND.get(guest.state, MEND["reader_failed"]),
    )
