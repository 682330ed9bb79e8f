"""Checks of what a node needs, each with what it proves and how to mend it.

`gather.py` collects facts, from files and from asking the kernel what this process may do; `checks/` judge them
and touch nothing. A fact that could not be had makes its check `unknown`, never `ok`.
"""

from gpufleet.doctor.checks import examine
from gpufleet.doctor.facts import Check, Facts, Verdict
from gpufleet.doctor.gather import gather

__all__ = ["Check", "Facts", "Verdict", "examine", "gather"]
