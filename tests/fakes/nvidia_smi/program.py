"""Fake `nvidia-smi` that prints the outputs of its scenario.

It runs as a separate process with the standard library only. Tests start it hundreds of times, so it imports only
what a call needs.
"""

import json
import os
import sys
import time


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    with open(os.path.join(here, "scenario.json")) as file:  # noqa: PTH118, PTH123
        scenario = json.load(file)
    with open(os.path.join(here, "calls.log"), "a") as log:  # noqa: PTH118, PTH123
        log.write(" ".join(sys.argv[1:]) + "\n")
    key = kind(sys.argv[1] if len(sys.argv) > 1 else "")
    fault = scenario["faults"].get(key) or scenario["faults"].get("*")
    if fault is not None:
        return act(fault)
    if key == "table":
        return print_table(scenario, sys.argv[1].partition("=")[2].split(","))
    sys.stdout.write(next_output(here, scenario[key + "s"]) if key + "s" in scenario else scenario.get(key, ""))
    return 0


def next_output(here: str, outputs: list[str]) -> str:
    """Return the output of this `-L` call: each output once, then the last one repeatedly."""
    with open(os.path.join(here, "calls.log")) as log:  # noqa: PTH118, PTH123
        calls = log.read().splitlines().count("-L")
    return outputs[min(calls, len(outputs)) - 1]


def kind(first: str) -> str:
    names = {"--help-query-gpu": "help", "-q": "log", "-L": "list"}
    if first.startswith("--query-gpu="):
        return "table"
    return "apps" if first.startswith("--query-compute-apps=") else names.get(first, "other")


def act(fault: dict[str, object]) -> int:
    if fault.get("child"):
        import subprocess

        subprocess.Popen([sys.executable, "-c", f"import time; print('{fault['child']}'); time.sleep(600)"])
    if fault.get("ignore_sigterm"):
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write(str(fault.get("stdout", "")))
    sys.stderr.write(str(fault.get("stderr", "")))
    sys.stdout.flush()
    while fault.get("endless"):
        sys.stdout.write("x" * 65536)
    if fault.get("hang"):
        time.sleep(600)
    return int(str(fault.get("code", 0)))


def print_table(scenario: dict[str, object], fields: list[str]) -> int:
    rows: list[dict[str, str]] = scenario["rows"]  # type: ignore[assignment]
    sys.stdout.write(str(scenario.get("before", "")))
    for field in fields:
        if not all(field in row for row in rows):
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    for row in rows:
        print(", ".join(row[field] for field in fields))
    return int(str(scenario.get("code", 0)))


if __name__ == "__main__":
    sys.exit(main())
