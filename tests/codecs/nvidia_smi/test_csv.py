"""CSV tables of nvidia-smi: headers, units, truncated rows, messages and bounds."""

import pytest

from gpufleet.codecs.nvidia_smi import parse_csv
from gpufleet.codecs.nvidia_smi.csv import MAX_COLUMNS, MAX_VALUES
from gpufleet.codecs.nvidia_smi.records import MAX_LINES
from gpufleet.codecs.nvidia_smi.values import MAX_MESSAGES
from gpufleet.model.errors import WireError, WireLimitError

COLUMNS = ("index", "memory.used", "uuid")


def test_rows_are_named_by_the_header() -> None:
    table = parse_csv(b"index, memory.used [MiB], uuid\n0, 55 MiB, GPU-1\n1, [N/A], GPU-2\n")
    assert table.columns == COLUMNS
    assert table.rows == (
        {"index": "0", "memory.used": "55 MiB", "uuid": "GPU-1"},
        {"index": "1", "memory.used": "[N/A]", "uuid": "GPU-2"},
    )
    assert table.messages == ()


def test_duplicate_column_is_read_once() -> None:
    table = parse_csv(b"uuid, memory.used [MiB], uuid, index\nGPU-1, 55 MiB, GPU-1, 0\n")
    assert table.rows == ({"uuid": "GPU-1", "memory.used": "55 MiB", "index": "0"},)
    assert table.messages == ()


def test_duplicate_columns_that_disagree_are_dropped() -> None:
    table = parse_csv(b"uuid, memory.used [MiB], memory.used [MiB], index\nGPU-1, 55 MiB, 56 MiB, 0\n")
    assert table.rows == ({"uuid": "GPU-1", "index": "0"},)
    assert len(table.messages) == 1
    assert "memory.used" in table.messages[0]


def test_unit_of_the_header_is_added_to_bare_numbers() -> None:
    (row,) = parse_csv(b"index, memory.used [MiB], uuid\n0, 55, GPU-1\n").rows
    assert row == {"index": "0", "memory.used": "55 MiB", "uuid": "GPU-1"}


def test_rows_without_a_header_use_given_columns() -> None:
    assert parse_csv(b"0, 55 MiB, GPU-1\n", COLUMNS).rows[0]["uuid"] == "GPU-1"


def test_error_line_before_rows_is_a_message() -> None:
    lost = "Unable to determine the device handle for GPU0000:65:00.0: GPU is lost.  Reboot the system to recover"
    table = parse_csv(f"{lost}\n0, 55 MiB, GPU-1\n".encode(), COLUMNS)
    assert len(table.rows) == 1
    assert table.messages == (lost,)


@pytest.mark.parametrize("end", [", ", ",", ", \r"])
def test_last_value_can_be_empty(end: str) -> None:
    table = parse_csv(f"index, uuid, serial\n0, GPU-1{end}\n1, GPU-2, 7\n".encode())
    assert [row["serial"] for row in table.rows] == ["", "7"]
    assert table.messages == ()


def test_truncated_row_is_dropped() -> None:
    table = parse_csv(b"0, 55 MiB, GPU-1\n1, 55 M", COLUMNS)
    assert [row["index"] for row in table.rows] == ["0"]
    assert len(table.messages) == 1
    assert table.messages[0].endswith(": 1, 55 M")


def test_value_of_a_truncated_last_line_is_dropped() -> None:
    table = parse_csv(b"index, uuid, memory.used [MiB]\n0, GPU-1, 143771 MiB\n1, GPU-2, 14")
    assert [row.get("memory.used") for row in table.rows] == ["143771 MiB", None]
    assert "memory.used" in table.messages[0]


def test_error_in_an_unterminated_last_line_drops_no_value() -> None:
    table = parse_csv(b"0, 55 MiB, GPU-1\nGPU is lost", COLUMNS)
    assert table.rows[0]["uuid"] == "GPU-1"
    assert table.messages == ("GPU is lost",)


def test_comma_in_the_only_free_text_column_is_kept() -> None:
    content = b"uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-1, 7, sh -c a, b, c, 10 MiB\n"
    (row,) = parse_csv(content).rows
    assert row == {"uuid": "GPU-1", "pid": "7", "process_name": "sh -c a, b, c", "used_gpu_memory": "10 MiB"}


def test_ambiguous_comma_drops_the_row() -> None:
    table = parse_csv(b"gpu_name, pid, process_name\nA, B, 7, x\n")
    assert table.rows == ()
    assert len(table.messages) == 1
    assert table.messages[0].endswith(": A, B, 7, x")


def test_control_characters_are_removed_from_messages() -> None:
    table = parse_csv(b"\x1b[31mdead\x00\r\n0, 1, GPU-1\n", COLUMNS)
    assert table.messages == ("[31mdead",)


def test_missing_header_is_an_error() -> None:
    with pytest.raises(WireError, match="--format=csv") as caught:
        parse_csv(b"0, 55 MiB, GPU-1\n")
    assert caught.value.field == "csv"


def test_too_many_lines_or_values_are_rejected() -> None:
    with pytest.raises(WireLimitError, match="50000") as caught:
        parse_csv(b"a, b\n" + b"1, 2\n" * MAX_LINES)
    assert caught.value.field == "csv"
    columns = tuple(f"a{n}" for n in range(1000))
    row = ", ".join("1" for _ in columns) + "\n"
    with pytest.raises(WireLimitError, match="100000") as caught:
        parse_csv((row * (MAX_VALUES // 1000 + 1)).encode(), columns)
    assert caught.value.field == "csv"


def test_messages_beyond_the_limit_are_counted() -> None:
    table = parse_csv("".join(f"trouble {n}\n" for n in range(100)).encode() + b"0, 1, GPU-1\n", COLUMNS)
    assert len(table.rows) == 1
    assert (table.messages[0], table.messages[-1]) == ("trouble 0", f"and {100 - MAX_MESSAGES} more")


def test_too_many_columns_are_rejected() -> None:
    with pytest.raises(WireLimitError):
        parse_csv(", ".join(f"a{n}" for n in range(MAX_COLUMNS + 1)).encode())
