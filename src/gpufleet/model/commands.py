"""Commands that gpufleet may run on a machine: the only list, in three groups. All of them only read.

Every channel and every runner of commands checks against this list. The script of a guest checks again, on its own.
"""

import enum
import re
from collections.abc import Sequence

from gpufleet.model.text import bounded


class CommandGroup(enum.StrEnum):
    """Group of commands; also the request of the guest script that runs them."""

    RUN = "run"  # readings of GPUs
    PROBE = "probe"  # facts and boot times, for the performance probe
    BENCH = "bench"  # measurements that use a device for seconds


_TARGET = r"/[A-Za-z0-9_./@+,=-]{1,1024}"
_HOST = r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9A-Fa-f:]{2,39}"
_FIO = (
    r"--readonly|--allow_file_create=0|--name=[a-z0-9_]{1,64}|--filename=" + _TARGET + r"|--rw=(read|randread)"
    r"|--bs=[0-9]{1,4}[km]|--ioengine=(psync|libaio)|--iodepth=[0-9]{1,3}|--direct=[01]|--runtime=[0-9]{1,2}"
    r"|--io_size=[0-9]{1,4}m|--thread|--randrepeat=1|--output-format=json"
)
_PROPERTY = r"(Id|ActiveState|[A-Za-z]{1,40}TimestampMonotonic)"
_PERFTEST = r"-F|--report_gbits|-n|-s|[0-9]{1,7}|" + _HOST

_COMMANDS = {
    CommandGroup.RUN: {
        "nvidia-smi": (
            r"-q|-x|-L|--help-query-gpu|--query-(gpu|compute-apps)=[A-Za-z0-9_.,]{1,2048}|--format=csv,noheader"
        ),
        "gpufleet": "snapshot|--format|json",
    },
    CommandGroup.PROBE: {
        "systemctl": rf"show|--property={_PROPERTY}(,{_PROPERTY}){{0,7}}|[a-z][a-z.-]{{0,63}}\.(service|target)",
        "docker": "--version",
        "containerd": "--version",
        "runc": "--version",
        "nvidia-ctk": "--version",
    },
    CommandGroup.BENCH: {
        "stat": "-L|-f|-c|%F|%t|--|" + _TARGET,
        "fio": "--version|" + _FIO,
        "ib_write_bw": "--version|" + _PERFTEST,
        "ib_write_lat": "--version|" + _PERFTEST,
        "nvbandwidth": r"--json|--testcase|[a-z_]{1,64}",
        "bandwidthTest": "--csv",
    },
}
"""Group to program to the pattern of each argument."""

PERMITTED = {
    program: (group, re.compile(arguments, re.ASCII))
    for group, programs in _COMMANDS.items()
    for program, arguments in programs.items()
}
"""Program to its group and the pattern of each argument."""

READ_ONLY = frozenset({"--readonly", "--allow_file_create=0"})
"""Arguments without which fio is refused: it then neither writes nor creates or extends a file."""

_FIO_ONCE = ("--rw=", "--filename=", "--readonly", "--allow_file_create=")
_SNAPSHOT = ("snapshot", "--format", "json")


def command_group(argv: Sequence[str]) -> CommandGroup | None:
    """Return the group of a command, or None if no channel may run it."""
    found = PERMITTED.get(argv[0])
    if found is None or not all(found[1].fullmatch(argument) for argument in argv[1:]):
        return None
    arguments = tuple(argv[1:])
    if argv[0] == "gpufleet" and arguments != _SNAPSHOT:
        return None
    if argv[0] == "systemctl" and (arguments[:1] != ("show",) or not "".join(arguments[1:2]).startswith("--property=")):
        return None  # without the option it prints all properties, which can have secrets
    if argv[0] == "fio" and arguments != ("--version",):
        once = all(sum(argument.startswith(option) for argument in arguments) == 1 for option in _FIO_ONCE)
        if not (once and READ_ONLY.issubset(arguments)):
            return None
    return found[0]


def refusal(argv: Sequence[str]) -> str:
    """Return the error message for a command that is not permitted."""
    return f"{bounded(' '.join(argv), 200)}: gpufleet may not run this command"
