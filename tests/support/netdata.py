"""Real Netdata in its own folder, with a stand-in nvidia-smi behind its collector."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support import peers
from tests.support.processes import free_port, get_json
from tests.support.waiting import wait_until

_CONFIG = """\
[global]
    run as user = {user}
    hostname = host-17
    update every = 1
[directories]
    config = {folder}/etc
    stock config = {root}/usr/lib/netdata/conf.d
    cache = {folder}/cache
    lib = {folder}/lib
    log = {folder}/log
    plugins = {root}/usr/lib/netdata/plugins.d
    web = {folder}/web
[web]
    bind to = 127.0.0.1:{port}
[db]
    mode = ram
[plugins]
    python.d = {gpus}
    proc = yes
    diskspace = no
    apps = no
    charts.d = no
    perf = no
    ebpf = no
    go.d = no
    node.d = no
    cgroups = no
    tc = no
    idlejitter = no
    slabinfo = no
    timex = no
    enable running new plugins = no
[ml]
    enabled = no
[health]
    enabled = no
"""

_STAND_IN = """\
#!/bin/sh
# Prints one document; with -l repeatedly, as the real program does.
case " $* " in
*" -l "*) while cat {document}; do sleep 1; done ;;
*) cat {document} ;;
esac
"""


@contextlib.contextmanager
def netdata(folder: Path, program: Path, document: Path | None) -> Iterator[str]:
    """Run Netdata until the block ends; yield its root URL when its charts are complete.

    Args:
        folder: folder of all its files.
        program: the unpacked program.
        document: output of the stand-in nvidia-smi; None for a host without GPUs.
    """
    root = program.parents[2]
    port = free_port()
    for name in ("etc/python.d", "cache", "lib", "log", "web", "bin"):
        (folder / name).mkdir(parents=True)
    gpus = "no" if document is None else "yes"
    user = os.environ.get("USER") or "root"
    (folder / "netdata.conf").write_text(
        _CONFIG.format(folder=folder, root=root, port=port, gpus=gpus, user="root" if os.getuid() == 0 else user)
    )
    (folder / "etc/python.d.conf").write_text("enabled: yes\ndefault_run: no\nnvidia_smi: yes\n")
    (folder / "etc/python.d/nvidia_smi.conf").write_text("loop_mode: yes\npoll_seconds: 1\n")
    stand_in = folder / "bin/nvidia-smi"
    stand_in.write_text(_STAND_IN.format(document=document and document.resolve()))
    stand_in.chmod(0o755)
    env = {
        **os.environ,
        **peers.environment("netdata"),
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
    }
    with (folder / "out").open("wb") as out:
        running = subprocess.Popen(
            [program, "-D", "-c", folder / "netdata.conf"], env=env, stdout=out, stderr=out, start_new_session=True
        )
    listed = 0 if document is None else document.read_text().count("<gpu id=")
    url = f"http://127.0.0.1:{port}"

    def shows() -> bool:
        with contextlib.suppress(OSError, ValueError):
            charts = get_json(f"{url}/api/v1/allmetrics?format=json")
            wanted = {"system.cpu", "mem.available", *(f"nvidia_smi.gpu{n}_power_state" for n in range(listed))}
            return wanted <= set(charts)
        return False

    try:
        wait_until(shows, what="Netdata to show its charts", seconds=90)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
