"""State folders of hubs with an empty store and registry, copied instead of created.

Creating the tables of an embedded store takes as much processor time as the rest of a hub's start.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from tests.support.processes import Gpufleet, free_port
from tests.support.store_folders import copy_empty_store


def prepare_state(folder: Path) -> Path:
    """Make `folder` the state folder of a hub that has received nothing yet, and return it.

    Do not use it where the first start of a hub is under test.
    """
    shutil.copytree(_template() / "hub", folder / "hub", symlinks=True)
    return folder


@functools.cache
def _template() -> Path:
    """Return the state folder of a hub that ran once in this test process."""
    place = Path(tempfile.mkdtemp(prefix="gpufleet-hub-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    state, port = place / "state", free_port()
    copy_empty_store(state / "hub" / "store")
    with Gpufleet(["hub", "--listen", f"127.0.0.1:{port}", "--state", str(state)], place / "log") as hub:
        hub.wait_for(f"http://127.0.0.1:{port}/readyz", 100)
        assert hub.stop(60) == 0, (place / "log").read_text()
    (state / "hub" / "alive.json").unlink()  # a copy starts without downtime
    return state
