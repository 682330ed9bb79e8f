"""Checks of a node's prerequisites: what each check proves, what it found, and how to fix it.

`gather.py` collects facts from files and from the kernel. `checks/` judges the facts without I/O. If a fact is
missing, its check is `unknown`, never `ok`.
"""

from gpufleet.doctor.checks import examine
from gpufleet.doctor.facts import CheckResult, CheckVerdict, NodeFacts
from gpufleet.doctor.gather import gather_facts

__all__ = ["CheckResult", "CheckVerdict", "NodeFacts", "examine", "gather_facts"]
