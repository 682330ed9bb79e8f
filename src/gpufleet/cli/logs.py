"""Logs of the daemons, on stderr: for a person at a terminal, as JSON lines for everything else."""

import json
import logging
import sys
from datetime import UTC, datetime

from gpufleet.model.text import clean

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class HumanFormatter(logging.Formatter):
    """Time of day, level where it matters, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and a traceback below it if there is one."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # Names of strangers are in there: no lines and no codes of theirs.
        line = f"{at} {level}{clean(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: `at` (RFC 3339, UTC), `level`, `logger`, `message`, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        document = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document)


def set_up_logs(level: str) -> None:
    """Send everything from `level` (a key of `LEVELS`) up to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HumanFormatter() if sys.stderr.isatty() else JsonFormatter())
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    # What uvicorn and asyncio say at info is about themselves.
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(max(LEVELS[level], logging.WARNING))
