"""Logging of the daemons to stderr: plain text on a terminal, otherwise JSON lines."""

import json
import logging
import sys
from datetime import UTC, datetime

from gpufleet.model.text import clean

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class HumanFormatter(logging.Formatter):
    """Formatter for terminals: time, level unless it is info, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, followed by the traceback if there is one."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # Messages can contain names from other machines: remove newlines and control characters.
        line = f"{at} {level}{clean(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Formatter for JSON lines: `at` (RFC 3339, UTC), `level`, `logger`, `message`, and `error` with the traceback."""

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
    """Log to stderr from `level`, a key of `LEVELS`. The info messages of libraries are internal and left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HumanFormatter() if sys.stderr.isatty() else JsonFormatter())
    logging.basicConfig(level=max(LEVELS[level], logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("gpufleet").setLevel(LEVELS[level])
