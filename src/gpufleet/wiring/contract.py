"""Loading of the adoption contract: the file of the package, or another one."""

from importlib.resources import files
from pathlib import Path

from gpufleet.config.load import ConfigProblemsError
from gpufleet.fleet.contract import AdoptionContract, ContractProblem, parse_contract
from gpufleet.fleet.contract.document import MAX_BYTES
from gpufleet.model.errors import ConfigError

CONTRACT_NAME = "contract/v1.yaml"
"""Name of the package's contract in messages: its path in the repository."""


def load_contract(file: Path | None = None) -> AdoptionContract:
    """Return the contract of the package, or of a file.

    Raises:
        ConfigProblemsError: with every problem of the contract.
        ConfigError: if the file cannot be read.
    """
    contract, problems = read_contract(file)
    if contract is None:
        raise ConfigProblemsError(tuple([_error(file, one) for one in problems]))
    return contract


def read_contract(file: Path | None = None) -> tuple[AdoptionContract | None, tuple[ContractProblem, ...]]:
    """Return the contract of the package, or of a file; None and its problems if it is invalid.

    Raises:
        ConfigError: if the file cannot be read.
    """
    return parse_contract(_content(file))


def _content(file: Path | None) -> bytes:
    if file is None:
        return files("gpufleet.fleet.contract").joinpath("v1.yaml").read_bytes()
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(str(file), "", f"cannot be read: {error.strerror}") from error


def _error(file: Path | None, problem: ContractProblem) -> ConfigError:
    key = f"{problem.item}: {problem.field}" if problem.item and problem.field else problem.item or problem.field
    return ConfigError(f"{file or CONTRACT_NAME}:{problem.line}", key, problem.reason)
