"""The agent's HTTP surface: prepared pages, no request ever touches hardware."""

from gpufleet.web.agent.app import AgentApp

__all__ = ["AgentApp"]
