"""Checks of virtual machines: their sources, and their state in the running agent."""

import datetime as dt
from collections.abc import Iterable

from gpufleet.doctor.facts import PASSTHROUGH_DRIVERS, CheckResult, CheckVerdict, NodeFacts
from gpufleet.exporters.display import guest_facts
from gpufleet.model.machine import OK
from gpufleet.model.snapshot import Guest
from gpufleet.model.time import to_datetime

PROVES = "the virtual machine's GPUs are read from inside"

_DRIVER = "install or load NVIDIA's driver in it"
_INSPECT = "see its own kernel log and nvidia-smi"
GUEST_FIXES = {
    "guest_booting": "wait; if it persists, check that it boots and that the queried service starts in it",
    "guest_unreachable": "check that it runs and that its configured address is still correct",
    "guest_refused": "add the output of `gpufleet guest key` to its authorized_keys",
    "identity_mismatch": "if the change of its host key is intended, remove the old key: STATE/agent/host_keys/VM_UUID",
    "not_enabled": "enable an access path: docs/guests.md, `What to put into the image`",
    "incompatible_version": "install DCGM 4.x in it",
    "no_driver": _DRIVER,
    "no_library": _DRIVER,
    "no_supported_gpu": _DRIVER,
    "driver_mismatch": "restart it: its driver was replaced while it was in use",
    "driver_error": _INSPECT,
    "gpu_lost": _INSPECT,
    "reset_required": _INSPECT,
    "timeout": _INSPECT,
    "gpu_count_differs": "compare the devices assigned by the hypervisor with its configured GPU count",
    "not_permitted": "let the agent's user read its key and open its sockets: docs/guests.md",
    "reader_failed": "see its errors: gpufleet why VM --agent URL",
}
"""Guest state to remedy."""

EXCLUDED_FIX = "if it should be read, its user or the operator must permit it: docs/guests.md, `Discovery by KubeVirt`"


def check_libvirt(facts: NodeFacts) -> CheckResult:
    """Check that libvirt is reachable and enabled."""
    name, proves = "libvirt", "virtual machines with GPUs are discovered without configuration"
    error, gpus = facts.libvirt_socket, facts.gpus() or ()
    passed_through = sum(function.driver in PASSTHROUGH_DRIVERS for function in gpus)
    if error is None or facts.libvirt_enabled is None:
        return CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
    if facts.libvirt_enabled:
        if not error:
            return CheckResult(
                name=name, verdict=CheckVerdict.OK, proves=proves, found="its socket accepts connections from this user"
            )
        fix = "start libvirt, or set its read-only socket as `socket` of [libvirt]"
        return CheckResult(name=name, verdict=CheckVerdict.FAILED, proves=proves, found=f"its socket: {error}", fix=fix)
    if error or not passed_through:
        found = "not enabled; " + (
            "no socket of libvirt on this machine" if error else "no GPU is passed through to a guest"
        )
        return CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=found)
    found = f"{passed_through} GPUs are passed through to guests; libvirt runs but is not enabled"
    fix = "set [libvirt] enabled = true, or configure each guest: docs/guests.md"
    return CheckResult(name=name, verdict=CheckVerdict.WARNING, proves=proves, found=found, fix=fix)


def check_guests(facts: NodeFacts) -> Iterable[CheckResult]:
    """Check each virtual machine of the running agent, and the errors in their configuration."""
    name, proves = "guests", "the agent reads every configured virtual machine"
    if facts.guests_described is None:
        yield CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found="not checked")
        return
    if not facts.guests_described:
        found = "no virtual machine is configured for the agent"
        yield CheckResult(name=name, verdict=CheckVerdict.NOT_APPLICABLE, proves=proves, found=found)
        return
    if facts.guests is None:
        fix = "start the agent, or pass its configuration with --config"
        found = f"the agent does not respond: {facts.guests_error}"
        yield CheckResult(name=name, verdict=CheckVerdict.UNKNOWN, proves=proves, found=found, fix=fix)
        return
    wrong = facts.guests_capability.partition("failing: ")[2]
    yield CheckResult(
        name=name,
        verdict=CheckVerdict.FAILED if wrong else CheckVerdict.OK,
        proves=proves,
        found=wrong or f"{len(facts.guests)} virtual machines, {sum(one.state == OK for one in facts.guests)} read",
        fix="fix the named entries; the others are read" if wrong else "",
    )
    now = to_datetime(facts.clock_ns or 0)
    yield from (check_guest(guest, now) for guest in facts.guests)


def check_guest(guest: Guest, now: dt.datetime) -> CheckResult:
    """Check one virtual machine."""
    verdict, fix = CheckVerdict.FAILED, GUEST_FIXES.get(guest.state, GUEST_FIXES["reader_failed"])
    if guest.excluded:
        verdict, fix = CheckVerdict.WARNING, EXCLUDED_FIX
    elif guest.state in (OK, "guest_booting"):
        verdict = CheckVerdict.OK if guest.state == OK else CheckVerdict.WARNING
    return CheckResult(
        name=f"guest {guest.machine.name}",
        verdict=verdict,
        proves=PROVES,
        found="; ".join(guest_facts(guest, now)),
        fix="" if guest.state == OK else fix,
    )
