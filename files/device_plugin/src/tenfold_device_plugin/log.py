"""Structured log: one JSON object a line on standard error, each a sentence about a pod or card with its identity.

Owns the form. What is said is decided by the caller that gives up or has changed something.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, TextIO

__all__ = ["Once", "configure", "of_pod", "say"]

_LOGGER = logging.getLogger("tenfold")
_IDENTITY = "tenfold_identity"


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update(getattr(record, _IDENTITY, {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str, stream: TextIO = sys.stderr) -> None:
    """Send the product's log lines of ``level`` and above to ``stream``; other libraries' from warning on."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _LOGGER.setLevel(level.upper())


def say(level: int, message: str, *, error: BaseException | None = None, **identity: Any) -> None:
    """Log one sentence; ``identity`` says of which pod, container, card or slot (None values are left out).

    ``error`` adds a traceback, for failures that nobody foresaw.
    """
    extra = {_IDENTITY: {name: value for name, value in identity.items() if value is not None}}
    _LOGGER.log(level, message, extra=extra, exc_info=error)


def of_pod(level: int, words: str, namespace: str, name: str, uid: str, **identity: Any) -> None:
    """Log one sentence of a pod."""
    say(level, f"pod {namespace}/{name}: {words}", namespace=namespace, pod=name, uid=uid or None, **identity)


class Once:
    """Says a failure when it begins, when its words change, and when it is over. For one thread."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def fails(self, topic: str, words: str) -> bool:
        """Whether that is news."""
        if self._said.get(topic) == words:
            return False
        self._said[topic] = words
        say(logging.WARNING, words)
        return True

    def works(self, topic: str) -> None:
        if self._said.pop(topic, ""):
            say(logging.INFO, f"{topic}: works again")
