"""HTTP endpoints of the agent. They serve prepared pages; no request accesses hardware."""

from gpufleet.web.agent.app import AgentApp

__all__ = ["AgentApp"]
