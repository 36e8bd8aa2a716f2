"""The text of a systemd unit. Pure; which unit runs what is said by ``machine``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Unit:
    """A service of a simulated machine.

    start:  argv, quoted for systemd.
    before: commands that must succeed first.
    once:   runs to its end at boot and counts as active afterwards.
    settings: further lines of [Service], as written in systemd.service(5).
    """

    name: str
    description: str
    start: Sequence[str]
    before: Sequence[Sequence[str]] = ()
    after: Sequence[str] = ()
    wants: Sequence[str] = ()
    once: bool = False
    settings: Sequence[str] = field(default_factory=tuple)
    wanted_by: str = "multi-user.target"

    def text(self) -> str:
        # a test that restarts a unit often must not meet systemd's start limit
        lines = ["[Unit]", f"Description={self.description}", "StartLimitIntervalSec=0"]
        lines += [f"After={' '.join(self.after)}"] if self.after else []
        lines += [f"Wants={' '.join(self.wants)}"] if self.wants else []
        lines += ["", "[Service]"]
        lines += ["Type=oneshot", "RemainAfterExit=yes"] if self.once else ["Restart=always", "RestartSec=1s"]
        # systemd's default is 15 % of what the machine's container may have: 307 tasks, which the shims of a dozen starting pods exceed
        lines += ["TasksMax=infinity"]
        lines += [f"ExecStartPre={quoted(argv)}" for argv in self.before]
        lines += [f"ExecStart={quoted(self.start)}", *self.settings]
        lines += ["", "[Install]", f"WantedBy={self.wanted_by}", ""]
        return "\n".join(lines)


def quoted(argv: Sequence[str]) -> str:
    """One command line for Exec*=: shell quoting is valid there, "%" opens a specifier and "$" a variable unless doubled.

    A first argument that is a whole variable ("$KUBELET_EXTRA_ARGS" as its own word) stays one.
    """
    return " ".join(word if _is_variable(word) else shlex.quote(word).replace("%", "%%").replace("$", "$$") for word in argv)


def _is_variable(word: str) -> bool:
    return word.startswith("$") and word[1:].replace("_", "").isalnum() and word[1:].isupper()
