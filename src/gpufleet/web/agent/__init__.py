"""The agent's HTTP surface: prepared pages, no request ever touches hardware."""

from gpufleet.web.agent.app import AgentApp
from gpufleet.web.agent.server import serve

__all__ = ["AgentApp", "serve"]
