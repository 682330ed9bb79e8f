"""Checks of a hub or relay on its own host, while it runs and while it is stopped.

`gather.py` collects facts from the state folder, and from the daemon if it responds. `checks.py` judges the facts
without I/O. Nothing is changed. Files are opened only by their owner, as opening can create files beside them. The
embedded store is opened only while no process has it open.
"""

from gpufleet.doctor.hub.checks import examine_hub
from gpufleet.doctor.hub.facts import HubFacts
from gpufleet.doctor.hub.gather import configured_listener, gather_hub, running_listener

__all__ = ["HubFacts", "configured_listener", "examine_hub", "gather_hub", "running_listener"]
