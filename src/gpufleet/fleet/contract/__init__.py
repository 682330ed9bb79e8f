"""Adoption contract: the items of `v1.yaml`, their checks, and the verdict about a cluster. Pure.

`v1.yaml` beside this file is the one source; `contract/v1.yaml` of the repository is a link to it.
"""

from gpufleet.fleet.contract.parser import ContractProblem, parse_contract
from gpufleet.fleet.contract.records import (
    AdoptionContract,
    ContractItem,
)

__all__ = ["AdoptionContract", "ContractItem", "ContractProblem", "parse_contract"]
