"""MIG layouts of GPUs: the profiles of their present MIG devices."""

from collections.abc import Mapping

import numpy as np

from gpufleet.fleet.slot_keys import REPORT_WINDOW_SECONDS
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.facts.projections import SetProjection, read_texts
from gpufleet.stores.clickhouse.samples.newest_rows import NewestPage
from gpufleet.stores.clickhouse.samples.pages import MachineRange

MIG_KEY_PREFIX = f"{ViewKind.MIG}/"
"""Prefix of the view key of a MIG device."""

MIG_PROFILE = "mig_profile"

_PARENTS = f"""
SELECT machine, view, argMax(assumeNotNull(parent), reported_at) AS parent_key FROM views
WHERE {MachineRange.CONDITION} AND startsWith(view, '{MIG_KEY_PREFIX}') AND isNotNull(parent)
GROUP BY machine, view
"""  # noqa: S608 - names are constants; values are bound as parameters


def fetch_mig_layouts(
    handle: Handle, machines: MachineRange, profiles: SetProjection, page: NewestPage, newest: Mapping[str, int]
) -> dict[tuple[str, str], str]:
    """Return (machine, view key) of a GPU to the sorted profiles of its MIG devices.

    A MIG device is present if its profile was received within 20 minutes before the newest report of its machine.

    Args:
        handle: the database handle.
        machines: the machines.
        profiles: projection of info sets to `MIG_PROFILE`.
        page: newest samples of MIG devices.
        newest: machine to the receipt of its newest report.
    """
    parents = machines.query(handle, _PARENTS)
    if not parents.num_rows:
        return {}
    of_device = dict(
        zip(
            zip(parents.column("machine").to_pylist(), parents.column("view").to_pylist(), strict=True),
            parents.column("parent_key").to_pylist(),
            strict=True,
        )
    )
    machine, view = page.machine, page.view
    numbers = read_texts(handle, machines.cluster, profiles, machine, page.info_set)
    contents = profiles.contents(numbers)
    present: dict[tuple[str, str], str] = {}
    for row in np.flatnonzero(numbers).tolist():
        device = machine.texts[machine.rows[row]], view.texts[view.rows[row]]
        profile = contents[int(numbers[row])].get(MIG_PROFILE)
        if profile is not None and page.received_at[row] >= newest[device[0]] - REPORT_WINDOW_SECONDS * NANOS:
            present[device] = profile
    layouts: dict[tuple[str, str], list[str]] = {}
    for device, profile in present.items():
        parent = of_device.get(device)
        if parent is not None:
            layouts.setdefault((device[0], parent), []).append(profile)
    return {gpu: ", ".join(sorted(found)) for gpu, found in layouts.items()}
