"""Reference machines: kernel files and an nvidia-smi stand-in, and the snapshot that an agent reads from them."""

from pathlib import Path
from typing import Any

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.collect.single_pass import read_once
from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot
from gpufleet.readers.host import HostReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from tests.fakes.clock import FakeClock
from tests.fakes.nvidia_smi.standin import FakeNvidiaSmi, scenario_of_capture, xml
from tests.support.trees import plant

TREES = Path(__file__).parents[1] / "readers" / "host" / "fixtures"
INTERVALS = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}

H200 = "capture-h200__590.48.01.txt"
H200_BUSES = ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB")
"""PCI buses of the GPUs in `bare_metal.tree`."""

NO_SUPPORTED_GPU = "Failed to initialize NVML: No supported GPUs were found\nUnable to determine the number of GPUs\n"


def uuid(number: int) -> str:
    return f"GPU-20000000-0000-0000-0000-{number:012d}"


def h200s(buses: tuple[str, ...], group: str = "load") -> dict[str, Any]:
    """Return a scenario of H200s at these buses.

    The table is captured from an H200, with one row per GPU. The XML is captured from eight H100 on the previous
    driver branch, with names and addresses replaced.
    """
    scenario = scenario_of_capture(H200, group)
    (row,) = scenario["rows"]
    rows = [
        {
            **row,
            "index": str(number),
            "count": str(len(buses)),
            "uuid": uuid(number),
            "pci.bus_id": f"00000000:{bus}:00.0",
            "power.draw": f"{600 + number}.50 W",
        }
        for number, bus in enumerate(buses)
    ]
    head, *gpus = xml("xml-h100.xml").split("\t<gpu id=")
    log = head.replace("580.105.08", "590.48.01").replace("<attached_gpus>8", f"<attached_gpus>{len(buses)}")
    for number, bus in enumerate(buses):
        old = gpus[number][1:17]
        text = "\t<gpu id=" + gpus[number].partition("</gpu>")[0] + "</gpu>\n"
        text = text.replace(old, f"00000000:{bus}:00.0").replace("H100 80GB HBM3", "H200")
        log += text.replace(f"GPU-{number:08d}-0000-0000-0000-{number:012d}", uuid(number))
    return {**scenario, "rows": rows, "log": log + "</nvidia_smi_log>\n"}


class ReferenceMachine:
    """Machine with its file tree and nvidia-smi stand-in in a folder."""

    def __init__(self, folder: Path, tree: str, **scenario: Any) -> None:
        self.root = folder / "root"
        self.root.mkdir()
        plant(tree, self.root)
        self.smi = FakeNvidiaSmi(folder, **scenario)

    async def snapshot(self) -> Snapshot:
        """Read everything once like `gpufleet snapshot`, and assemble it."""
        clock = FakeClock()
        channel = LocalExec(environment={"PATH": str(self.smi.bin)}, grace_seconds=0.2)
        state = await read_once(
            [
                (HostReader(LocalFiles(self.root), clock), 60.0),
                (NvidiaSmiReader(channel, clock, timeout_seconds=60), 300.0),
            ],
            intervals=INTERVALS,
            twice=frozenset(),
            clock=clock,
            machine=Machine(name="unread"),
        )
        return assemble(state, now=clock.monotonic(), now_ns=clock.now_ns(), capabilities={})


def tree(name: str) -> str:
    return (TREES / f"{name}.tree").read_text(encoding="utf-8")


def without_display_controllers(text: str) -> str:
    """Return a tree without a GPU on the PCI bus and without the NVIDIA driver."""
    removed = ("/0000:06:00.0", "/0000:00:01.0", "/sys/module/nvidia")
    return "\n".join(line for line in text.splitlines() if line.startswith("|") or not any(w in line for w in removed))
