"""`gpufleet version`: prints the versions of product, catalogue and formats."""

import platform

from gpufleet import __version__
from gpufleet.cli.options import Json


def version(json: Json = False) -> None:
    """Print the version."""
    from gpufleet.model.catalogue import CATALOGUE_VERSION
    from gpufleet.model.snapshot import SNAPSHOT_SCHEMA
    from gpufleet.model.wire.batch import WIRE_VERSION

    if json:
        import msgspec

        facts = {
            "version": __version__,
            "catalogue": CATALOGUE_VERSION,
            "snapshot": SNAPSHOT_SCHEMA,
            "wire": WIRE_VERSION,
            "python": platform.python_version(),
        }
        print(msgspec.json.encode(facts).decode())
    else:
        print(f"gpufleet {__version__}")
