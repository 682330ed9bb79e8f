"""One run: a fleet under load, scheduled faults, and a final audit."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.spool import Spool
from tests.crash.audit import (
    ROWS,
    Ledger,
    Verdict,
    audit_log,
    audit_sequences,
    audit_values,
    count_batches,
    rows_of,
    stored_rows,
)
from tests.crash.faults import FAULTS, pause
from tests.crash.load import Sender
from tests.crash.recovery import PATIENCE_SECONDS, Recovery, Times
from tests.crash.schedule import Step, choose, schedule
from tests.crash.site import AGENTS, Site
from tests.crash.transcript import Posted, posted
from tests.support.processes import get_json
from tests.support.waiting import wait_until

LIMITED_TRIES = 3


class Outcome(msgspec.Struct):
    """Result of a run."""

    times: dict[str, list[Times]]
    verdict: Verdict


class Run:
    """Run of the crash suite in a folder."""

    def __init__(self, folder: Path, seed: int, progress: Callable[[str], None]) -> None:
        """Take the folder, the random seed, and a callback for progress messages."""
        self._seed = seed
        self._progress = progress
        self.site = Site(folder)
        port = {name: link.port for name, link in self.site.links.items()}
        self.senders = [
            *(Sender(number, port["senders"], seed=seed) for number in range(3)),
            Sender(3, port["senders"], seed=seed, bundle=4),
            Sender(4, port["senders"], seed=seed, patience=LIMITED_TRIES),
            Sender(5, port["direct"], seed=seed),
            Sender(6, port["direct"], seed=seed, bundle=3, patience=LIMITED_TRIES),
        ]
        self._times: defaultdict[str, list[Times]] = defaultdict(list)

    def run(self, *, seconds: float, only: Sequence[str] = (), steps: int | None = None) -> Outcome:
        """Run for the given time and at most `steps` faults, then audit."""
        try:
            self.site.open()
            self._start()
            deadline = time.monotonic() + seconds
            for step in schedule(choose(list(FAULTS), only), self._seed):
                if time.monotonic() > deadline or (steps is not None and step.number > steps):
                    break
                self._apply(step)
            return Outcome(dict(self._times), self._audit())
        finally:
            for sender in self.senders:
                sender.halt()
            self.site.close()

    def _start(self) -> None:
        site = self.site
        kind = "separate disks" if site.is_mounted else "file size limits instead of full disks"
        self._progress(f"starting: {len(AGENTS)} agents, {len(self.senders)} light senders, relay, hub; {kind}")
        site.make_store()
        for daemon in site.daemons.values():
            daemon.start()
        for sender in self.senders:
            sender.start()
        self._progress(f"recovered after {Recovery(site, self.senders).measure().drained:.1f} s")

    def _apply(self, step: Step) -> None:
        fault = FAULTS[step.fault]
        pause(step.gap)
        least, most = fault.seconds
        duration = least + (most - least) * step.share
        with fault.begin(self.site, step.chance):
            pause(duration / 2)
            if duration and step.companion is not None:
                self.site.daemons[step.companion].kill()
            pause(duration / 2)
        recovery = Recovery(self.site, self.senders)
        summary = f"{step.number:3d}. {fault.name}" + (f" for {duration:.1f} s" if duration else "")
        if duration and step.companion is not None:
            summary += f", {step.companion} killed during the fault"
        try:
            times = recovery.measure()
        except AssertionError as error:
            raise AssertionError(f"{summary}: {error}") from error
        self._times[fault.name].append(times)
        self._progress(f"{summary}: fresh after {times.fresh:.1f} s, drained after {times.drained:.1f} s")

    def _audit(self) -> Verdict:
        site, verdict = self.site, Verdict()
        self._progress("auditing")
        for sender in self.senders:
            sender.finish()
        for sender in self.senders:
            sender.join(timeout=PATIENCE_SECONDS)
            verdict.problems += sender.refused
        for name in AGENTS:
            self._stop(verdict, name)
        wait_until(lambda: site.gauge("relay", "gpufleet_relay_wal_records") == 0, seconds=60, what="an empty relay")
        wait_until(lambda: site.gauge("hub", "gpufleet_hub_wal_records") == 0, seconds=60, what="an empty hub log")
        senders = site.senders() or {}
        names = {one["id"]: one["machine"]["name"] for one in get_json(f"{site.url('hub')}/v1/machines")["items"]}
        for name in ("relay", "hub"):
            if lost := site.gauge(name, f"gpufleet_{name}_wal_lost_batches_total"):
                verdict.problems.append(f"{name}: {lost:.0f} acknowledged batches were lost in its log")
            self._stop(verdict, name)
        if sorted(names.values()) != sorted([*AGENTS, *(sender.name for sender in self.senders)]):
            verdict.problems.append(f"the hub knows the machines {sorted(names.values())}")
        from_agents = posted(site.links["agents"].exchanges)
        ledgers = [*map(_light_ledger, self.senders), *(self._agent_ledger(name, from_agents) for name in AGENTS)]
        audit_sequences(verdict, ledgers, senders)
        self._audit_memory(verdict, senders)
        for name, one in senders.items():
            if conflict := one.get("conflict"):
                verdict.problems.append(f"{name}: reported as two machines: {conflict}")
        acknowledged = [body for sender in self.senders for body in sender.acknowledged.values()]
        attempted = [body for sender in self.senders for body in sender.unacknowledged.values()]
        for one in from_agents:
            (acknowledged if one.status == 200 else attempted).append(one.body)
        columns = site.query(ROWS)
        stored = stored_rows(columns, names)
        batches = count_batches([*acknowledged, *attempted])
        audit_values(verdict, rows_of(acknowledged), rows_of(attempted), stored, batches)
        self._audit_rest(verdict)
        return verdict

    def _stop(self, verdict: Verdict, name: str) -> None:
        daemon = self.site.daemons[name]
        code = daemon.stop()
        if code != 0:
            verdict.problems.append(f"{name}: exit code {code} at stop")
        if left := daemon.left_over():
            verdict.problems.append(f"{name}: processes {left} outlived it")

    def _agent_ledger(self, name: str, seen: Sequence[Posted]) -> Ledger:
        """Read the stopped agent's spool: assigned numbers, dropped batches and the backlog."""
        spool = Spool.open(self.site.disks[name].folder / "agent" / "spool", max_bytes=1 << 30)
        try:
            acknowledged = set()
            for one in seen:
                batch = decode(one.body)
                if one.status == 200 and batch.sender == name and batch.epoch == spool.epoch:
                    acknowledged.add(batch.seq)
            lost = spool.dropped_total + spool.depth.records
            return Ledger(name, spool.epoch, spool.next_seq - 1, frozenset(acknowledged), lost)
        finally:
            spool.close()

    def _audit_memory(self, verdict: Verdict, senders: dict[str, dict[str, list[dict[str, object]]]]) -> None:
        """Report missing batches of an agent's memory, unless the agent was killed with them."""
        for name in AGENTS:
            spool = (self.site.disks[name].folder / "agent" / "spool" / "epoch").read_text().strip()
            gaps = [epoch for epoch in senders[name]["epochs"] if epoch["epoch"] != spool and epoch["missing"]]
            if len(gaps) > self.site.daemons[name].killed_in_trouble:
                verdict.problems.append(f"{name}: numbers are missing in {gaps}, but it was not killed")

    def _audit_rest(self, verdict: Verdict) -> None:
        for name, daemon in self.site.daemons.items():
            audit_log(verdict, name, daemon.log.read_text())
            for one in daemon.exits:
                if not one.excused:
                    verdict.problems.append(f"{name}: exited by itself with {one.code}")
        for folder in ("hub/hub/quarantine", "relay/hub/refused", *(f"{name}/agent/refused" for name in AGENTS)):
            quarantined = sorted((self.site.folder / "disks" / folder).glob("*"))
            if quarantined:
                verdict.problems.append(f"{len(quarantined)} batches in {folder}, such as {quarantined[0].name}")


def _light_ledger(sender: Sender) -> Ledger:
    acknowledged = frozenset(sender.acknowledged)
    return Ledger(sender.name, sender.epoch, sender.made, acknowledged, len(sender.unacknowledged))
