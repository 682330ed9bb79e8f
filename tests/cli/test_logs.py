"""Log formats: JSON lines and human-readable lines."""

import json
import logging
import subprocess
import sys

from gpufleet.cli.logs import HumanFormatter, JsonFormatter

PROGRAM = """
import logging
from gpufleet.cli.logs import set_up_logs
set_up_logs("info")
logging.getLogger("gpufleet.agent").info("own message")
logging.getLogger("httpx2").info("request of a library")
logging.getLogger("httpx2").warning("warning of a library")
"""


def record(level: int, message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("gpufleet.agent", level, __file__, 1, message, args, info)


def test_json_lines_are_objects_with_a_utc_time() -> None:
    line = JsonFormatter().format(record(logging.WARNING, "reader %s:\n%s", "nvml", 'a "quote"'))
    document = json.loads(line)
    assert "\n" not in line
    assert document["message"] == 'reader nvml:\na "quote"'
    assert (document["level"], document["logger"]) == ("warning", "gpufleet.agent")
    assert document["at"].endswith("Z")


def test_error_is_logged_with_its_traceback() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        with_error = record(logging.ERROR, "x", error=error)
    assert "ValueError: why" in json.loads(JsonFormatter().format(with_error))["error"]
    assert HumanFormatter().format(with_error).endswith("ValueError: why")


def test_human_format_shows_the_level_of_warnings() -> None:
    assert HumanFormatter().format(record(logging.INFO, "agent answers")).endswith(" agent answers")
    assert "warning: careful" in HumanFormatter().format(record(logging.WARNING, "careful"))


def test_control_characters_are_removed_for_the_terminal() -> None:
    line = HumanFormatter().format(
        record(logging.WARNING, "refused: %s", "x\r\n12:00:00 all is well\x1b[2J\x9b31m\x07")
    )
    assert line.isprintable()
    assert line.endswith("refused: x12:00:00 all is well[2J31m")


def test_libraries_log_their_warnings_only() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    messages = [json.loads(line)["message"] for line in run.stderr.splitlines()]
    assert messages == ["own message", "warning of a library"]
