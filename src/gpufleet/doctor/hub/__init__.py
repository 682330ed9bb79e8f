"""Checks of a hub or relay on its own host, while it runs and while it is stopped.

`gather.py` collects facts: from the files of its state folder, and from the daemon itself where it runs and answers.
`checks/` judge them and touch nothing. Nothing is changed: files are opened only as the user that owns them, so
that no file of another user's comes into being beside them, and the embedded store only while nobody has it.
"""

from gpufleet.doctor.hub.checks import examine_hub
from gpufleet.doctor.hub.facts import HubFacts
from gpufleet.doctor.hub.gather import gather_hub

__all__ = ["HubFacts", "examine_hub", "gather_hub"]
