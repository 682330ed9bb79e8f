"""Test profiles: how many examples and rounds a run takes.

`GPUFLEET_TEST_PROFILE` selects the profile: "ci", the default, or "long" (`make test-long`).
"""

import os


def examples(ci: int, long: int) -> int:
    """Return the number of hypothesis examples, or of rounds, for the current test profile."""
    return long if os.environ.get("GPUFLEET_TEST_PROFILE") == "long" else ci
