"""Run every benchmark, or those that are named: `python -m benchmarks [agent exposition codec hub ...]`."""

import subprocess
import sys

NAMES = (
    *("agent", "nvml", "guests", "page", "exposition", "dcgm", "codec", "text", "spool"),
    *("store", "rollup", "lists", "hub", "ingest", "relay", "peers", "simulate", "million"),
)


def main(asked: list[str]) -> int:
    """Run each in a process of its own, so that none finds another's memory or threads; return the worst code."""
    unknown = [name for name in asked if name not in NAMES]
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.bench_{name}"], check=False).returncode
        for name in asked or NAMES
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
