"""Run all benchmarks, or the named ones: `python -m benchmarks [agent exposition codec hub ...]`."""

import subprocess
import sys

NAMES = (
    *("agent", "cluster", "nvml", "guests", "page", "exposition", "dcgm", "codec", "text", "spool", "attribution"),
    *(
        "store",
        "merging",
        "rollup",
        "usage",
        "lists",
        "rules",
        "prometheus",
        "findings",
        "hub",
        "ingest",
        "relay",
        "peers",
        "simulate",
        "million",
        "top",
        "captures",
    ),
)


def main(names: list[str]) -> int:
    """Run each benchmark in a separate process, for separate memory and threads. Return the highest exit code."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark {', '.join(unknown)}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    codes = [
        subprocess.run([sys.executable, "-m", f"benchmarks.bench_{name}"], check=False).returncode
        for name in names or NAMES
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
