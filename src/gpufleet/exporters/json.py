"""The snapshot as a JSON document."""

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.snapshot import Snapshot


class JsonExporter:
    """Renders the document that `codecs.snapshot_json` decodes."""

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the document, followed by a line feed."""
        return encode_snapshot(snapshot) + b"\n"
