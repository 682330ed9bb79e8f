"""The driver's table of MIG capabilities."""

from gpufleet.codecs.mig_minors import MigCapability, parse_major, parse_mig_minors

TABLE = b"config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu12/gi3/ci1/access 1234\nnoise\n"


def test_table_names_instances_by_minor_number() -> None:
    found = parse_mig_minors(TABLE)
    assert found == {3: MigCapability(0, 0), 4: MigCapability(0, 0, 0), 1234: MigCapability(12, 3, 1)}
    assert [one.name for one in found.values()] == ["0/0", "0/0/0", "12/3/1"]
    assert parse_mig_minors(b"\xff gpu0/gi1/access x\ngpu0/gi1/ci0/access 5 6\n") == {}


def test_major_number_is_that_of_capability_files() -> None:
    devices = b"Character devices:\n195 nvidia\n234 nvidia-caps-imex-channels\n235 nvidia-caps\n\nBlock devices:\n"
    assert parse_major(devices) == 235
    assert parse_major(b"Character devices:\n195 nvidia\n") is None
