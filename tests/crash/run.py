"""One run: a fleet under load, faults on a schedule, and the audit at the end."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gpufleet.codecs.batch import decode
from gpufleet.spool import Spool
from tests.crash.audit import ROWS, Ledger, Verdict, audit_log, audit_sequences, audit_values, rows_of, stored_rows
from tests.crash.faults import FAULTS, pause
from tests.crash.load import Sender
from tests.crash.recovery import PATIENCE_SECONDS, Recovery, Times
from tests.crash.schedule import Step, choose, schedule
from tests.crash.site import AGENTS, Site
from tests.crash.transcript import Posted, posted
from tests.support.processes import get_json
from tests.support.waiting import wait_until

CARELESS_TRIES = 3


class Outcome(msgspec.Struct):
    """What a run came to."""

    times: dict[str, list[Times]]
    verdict: Verdict


class Run:
    """One run in a folder."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        """Take where everything is kept, what chance is made of, and who is told of progress."""
        self._seed = seed
        self._say = say
        self.site = Site(folder)
        port = {name: link.port for name, link in self.site.links.items()}
        self.senders = [
            *(Sender(number, port["senders"], seed=seed) for number in range(3)),
            Sender(3, port["senders"], seed=seed, bundle=4),
            Sender(4, port["senders"], seed=seed, patience=CARELESS_TRIES),
            Sender(5, port["direct"], seed=seed),
            Sender(6, port["direct"], seed=seed, bundle=3, patience=CARELESS_TRIES),
        ]
        self._times: defaultdict[str, list[Times]] = defaultdict(list)

    def go(self, *, seconds: float, only: Sequence[str] = (), steps: int | None = None) -> Outcome:
        """Run for so long (and so many faults at most), then audit."""
        try:
            self.site.open()
            self._start()
            deadline = time.monotonic() + seconds
            for step in schedule(choose(list(FAULTS), only), self._seed):
                if time.monotonic() > deadline or (steps is not None and step.number > steps):
                    break
                self._suffer(step)
            return Outcome(dict(self._times), self._audit())
        finally:
            for sender in self.senders:
                sender.halt()
            self.site.close()

    def _start(self) -> None:
        site = self.site
        kind = "disks of their own" if site.is_mounted else "limits of file sizes in place of full disks"
        self._say(f"starting: {len(AGENTS)} agents, {len(self.senders)} light senders, relay, hub; {kind}")
        site.make_store()
        for daemon in site.daemons.values():
            daemon.start()
        for sender in self.senders:
            sender.start()
        self._say(f"all is well after {Recovery(site, self.senders).measure().drained:.1f} s")

    def _suffer(self, step: Step) -> None:
        fault = FAULTS[step.fault]
        pause(step.gap)
        least, most = fault.seconds
        lasts = least + (most - least) * step.share
        with fault.begin(self.site, step.chance):
            pause(lasts / 2)
            if lasts and step.companion is not None:
                self.site.daemons[step.companion].kill()
            pause(lasts / 2)
        recovery = Recovery(self.site, self.senders)
        words = f"{step.number:3d}. {fault.name}" + (f" for {lasts:.1f} s" if lasts else "")
        if lasts and step.companion is not None:
            words += f", {step.companion} killed meanwhile"
        try:
            times = recovery.measure()
        except AssertionError as error:
            raise AssertionError(f"{words}: {error}") from error
        self._times[fault.name].append(times)
        self._say(f"{words}: fresh after {times.fresh:.1f} s, drained after {times.drained:.1f} s")

    def _audit(self) -> Verdict:
        site, verdict = self.site, Verdict()
        self._say("auditing")
        for sender in self.senders:
            sender.finish()
        for sender in self.senders:
            sender.join(timeout=PATIENCE_SECONDS)
            verdict.problems += sender.refused
        for name in AGENTS:
            self._stop(verdict, name)
        wait_until(lambda: site.gauge("relay", "gpufleet_relay_wal_records") == 0, seconds=60, what="an empty relay")
        wait_until(lambda: site.gauge("hub", "gpufleet_hub_wal_records") == 0, seconds=60, what="an empty hub log")
        heard = site.senders() or {}
        names = {one["id"]: one["machine"]["name"] for one in get_json(f"{site.url('hub')}/v1/machines")["items"]}
        for name in ("relay", "hub"):
            if lost := site.gauge(name, f"gpufleet_{name}_wal_lost_batches_total"):
                verdict.problems.append(f"{name}: {lost:.0f} acknowledged batches were lost in its log")
            self._stop(verdict, name)
        if sorted(names.values()) != sorted([*AGENTS, *(sender.name for sender in self.senders)]):
            verdict.problems.append(f"the hub knows the machines {sorted(names.values())}")
        from_agents = posted(site.links["agents"].exchanges)
        ledgers = [*map(_light_ledger, self.senders), *(self._agent_ledger(name, from_agents) for name in AGENTS)]
        audit_sequences(verdict, ledgers, heard)
        self._audit_memory(verdict, heard)
        for name, one in heard.items():
            if conflict := one.get("conflict"):
                verdict.problems.append(f"{name}: taken for two machines: {conflict}")
        acknowledged = [body for sender in self.senders for body in sender.acknowledged.values()]
        attempted = [body for sender in self.senders for body in sender.unacknowledged.values()]
        for one in from_agents:
            (acknowledged if one.status == 200 else attempted).append(one.body)
        columns = site.query(ROWS)
        audit_values(verdict, rows_of(acknowledged), rows_of(attempted), stored_rows(columns, names))
        self._audit_rest(verdict)
        return verdict

    def _stop(self, verdict: Verdict, name: str) -> None:
        daemon = self.site.daemons[name]
        code = daemon.stop()
        if code != 0:
            verdict.problems.append(f"{name}: ended with {code} when asked to stop")
        if left := daemon.left_over():
            verdict.problems.append(f"{name}: processes {left} outlived it")

    def _agent_ledger(self, name: str, seen: Sequence[Posted]) -> Ledger:
        """Read the stopped agent's spool: what it gave out, and what it counts as dropped or still keeps."""
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

    def _audit_memory(self, verdict: Verdict, heard: dict[str, dict[str, list[dict[str, object]]]]) -> None:
        """Of what only an agent's memory held, nothing may be missing unless the agent was killed with it."""
        for name in AGENTS:
            spool = (self.site.disks[name].folder / "agent" / "spool" / "epoch").read_text().strip()
            gaps = [epoch for epoch in heard[name]["epochs"] if epoch["epoch"] != spool and epoch["missing"]]
            if len(gaps) > self.site.daemons[name].killed_in_trouble:
                verdict.problems.append(f"{name}: numbers are missing of {gaps}, and it was not killed meanwhile")

    def _audit_rest(self, verdict: Verdict) -> None:
        for name, daemon in self.site.daemons.items():
            audit_log(verdict, name, daemon.log.read_text())
            for one in daemon.exits:
                if not one.excused:
                    verdict.problems.append(f"{name}: ended by itself with {one.code}")
        for folder in ("hub/hub/quarantine", "relay/hub/refused", *(f"{name}/agent/refused" for name in AGENTS)):
            aside = sorted((self.site.folder / "disks" / folder).glob("*"))
            if aside:
                verdict.problems.append(f"{len(aside)} batches were put aside in {folder}, such as {aside[0].name}")


def _light_ledger(sender: Sender) -> Ledger:
    acknowledged = frozenset(sender.acknowledged)
    return Ledger(sender.name, sender.epoch, sender.made, acknowledged, len(sender.unacknowledged))
