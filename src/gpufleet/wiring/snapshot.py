"""A single snapshot of this machine without an agent."""

import socket

import msgspec

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.collect.single_pass import read_once
from gpufleet.agent.collect.state import AgentState
from gpufleet.agent.collect.unresolved import unresolved_devices
from gpufleet.config.agent import AgentConfig
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot
from gpufleet.ports.clock import Clock
from gpufleet.runtime import SystemClock
from gpufleet.wiring.holders import make_holders
from gpufleet.wiring.readers import RATE_READERS, capabilities, has_binding, make_readers


async def snapshot_once(config: AgentConfig) -> Snapshot:
    """Read everything once according to the configuration and assemble a snapshot."""
    clock: Clock = SystemClock()
    state = await read_once(
        make_readers(config.readers, clock),
        intervals=intervals(config),
        twice=RATE_READERS,
        clock=clock,
        machine=Machine(name=config.node or socket.gethostname()),
        name=config.node,
    )
    details = {
        **capabilities(config.readers, binding=has_binding()),
        "push": "disabled: single snapshot",
    }
    holders = make_holders(config, clock, saves=False)
    if holders is None:
        return _assemble(state, clock, details)
    try:
        await holders.round(_assemble(state, clock, details).devices)
        await holders.settle(state.machine.k8s_node_name or "")
    finally:
        await holders.close()
    state.holders = holders.devices
    snapshot = _assemble(state, clock, details | holders.capabilities)
    return msgspec.structs.replace(snapshot, unresolved=unresolved_devices(holders))


def _assemble(state: AgentState, clock: Clock, capabilities: dict[str, str]) -> Snapshot:
    return assemble(state, now=clock.monotonic(), now_ns=clock.now_ns(), capabilities=capabilities)


def intervals(config: AgentConfig) -> dict[Lane, float]:
    """Return the seconds between passes of each lane."""
    return {
        Lane.FAST: config.lanes.fast,
        Lane.SLOW: config.lanes.slow,
        Lane.STATIC: config.lanes.static,
        Lane.EVENT: config.lanes.event,
    }
