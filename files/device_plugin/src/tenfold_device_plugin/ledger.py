"""What this node must not forget: who has what on which card, and which slot name was given out for which ids.

Owns the file ``ledger.json`` in the state folder: written whole, flushed to the disk and renamed before anyone hears of the change, with
the version before it kept beside (``ledger.previous.json``). It survives the plugin, the kubelet and the boot, because the kubelet
re-uses old answers to Allocate after all three. Decisions are ``state``'s and ``claim``'s; callers hold ``bookings``' lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ._domain import files
from ._domain.tiers import DEFAULT_MODE
from .errors import LedgerError
from .state import Booking, ContainerShare, Quota, Share, Slot

__all__ = ["Ledger"]

FORMAT = 1
FILE_NAME = "ledger.json"
PREVIOUS_NAME = "ledger.previous.json"


class Ledger:
    """Bookings by pod UID, slots by name, and refusals of pods that must never start (UID -> reason, message).

    Every ``put``/``remove`` is on the disk when it returns, or LedgerError was raised and nothing changed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bookings: dict[str, Booking] = {}
        self.slots: dict[str, Slot] = {}
        self.refusals: dict[str, tuple[str, str]] = {}
        self.recovered_from = ""

    @classmethod
    def load(cls, folder: Path) -> Ledger:
        """The ledger in ``folder``, an empty one where there is none. ``recovered_from`` says which file was damaged, missing or newer.

        One of a newer version of the plugin is kept beside under another name. Keys that we do not know are left out.
        Errors: LedgerError when every version is damaged: slot names would be forgotten, so an operator must look.
        """
        ledger = cls(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"cannot create the state folder '{folder}': {error.strerror}") from error
        notes: list[str] = []
        problems: list[str] = []
        for path in (folder / FILE_NAME, folder / PREVIOUS_NAME):
            try:
                ledger._take(json.loads(path.read_text(encoding="utf-8")))
            except FileNotFoundError:
                notes.append(f"'{path}' is missing")
                continue
            except _NewerFormat as error:
                notes.append(f"'{path}' is of a newer version (format {error}), kept as '{_put_aside(path, str(error))}'")
                continue
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"'{path}' is damaged ({type(error).__name__}: {error})")
                continue
            ledger.recovered_from = "; ".join(notes + problems)
            return ledger
        if problems:
            raise LedgerError(
                "; ".join(problems) + "; drain this node of slice pods, then move the folder away: slot names in it can't be rebuilt"
            )
        if any(folder.glob("*.format-*.json")):
            ledger.recovered_from = "; ".join(notes)
        return ledger

    def slots_of_ids(self, ids: Iterable[str]) -> list[Slot]:
        """Slots given out for exactly these ids, oldest first."""
        wanted = tuple(sorted(ids))
        return [slot for slot in self.slots.values() if slot.ids == wanted]

    def slots_of_pod(self, uid: str) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.owner_uid == uid]

    def put_booking(self, booking: Booking) -> None:
        self._change(bookings={**self.bookings, booking.uid: booking})

    def put_slots(self, slots: Iterable[Slot]) -> None:
        self._change(slots={**self.slots, **{slot.name: slot for slot in slots}})

    def put_refusal(self, uid: str, reason: str, message: str) -> None:
        self._change(refusals={**self.refusals, uid: (reason, message)})

    def remove(self, uids: Iterable[str] = (), slots: Iterable[str] = ()) -> None:
        """Forget pods (bookings and refusals) and slots; unknown names are fine."""
        gone, gone_slots = set(uids), set(slots)
        self._change(
            bookings={uid: booking for uid, booking in self.bookings.items() if uid not in gone},
            refusals={uid: refusal for uid, refusal in self.refusals.items() if uid not in gone},
            slots={name: slot for name, slot in self.slots.items() if name not in gone_slots},
        )

    def _change(
        self,
        bookings: dict[str, Booking] | None = None,
        slots: dict[str, Slot] | None = None,
        refusals: dict[str, tuple[str, str]] | None = None,
    ) -> None:
        bookings = self.bookings if bookings is None else bookings
        slots = self.slots if slots is None else slots
        refusals = self.refusals if refusals is None else refusals
        document = {
            "format": FORMAT,
            "bookings": [_booking_row(booking) for booking in bookings.values()],
            "slots": [asdict(slot) for slot in slots.values()],
            "refusals": {uid: list(refusal) for uid, refusal in refusals.items()},
        }
        self._write(json.dumps(document, sort_keys=True, separators=(",", ":")))
        self.bookings, self.slots, self.refusals = bookings, slots, refusals

    def _write(self, text: str) -> None:
        path = self._folder / FILE_NAME
        try:
            with files.replacing(path, durable=True, move=self._move) as stream:
                stream.write(text.encode())
        except OSError as error:
            raise LedgerError(f"cannot write '{path}': {error.strerror}") from error

    def _move(self, temporary: Path, path: Path) -> None:
        """The file that is replaced is kept under its other name."""
        if path.exists():
            previous = self._folder / f".{PREVIOUS_NAME}.tmp"
            previous.unlink(missing_ok=True)
            os.link(path, previous)
            previous.replace(self._folder / PREVIOUS_NAME)
        temporary.replace(path)

    def _take(self, document: Mapping[str, Any]) -> None:
        """Errors: ValueError, KeyError or TypeError for anything that is not a ledger of this format; _NewerFormat."""
        found = document["format"]
        if isinstance(found, int) and found > FORMAT:
            raise _NewerFormat(found)
        if found != FORMAT:
            raise ValueError(f"format is {found!r}, expected {FORMAT}")
        bookings = {row["uid"]: _booking(row) for row in document["bookings"]}
        slots = {row["name"]: _slot(row) for row in document["slots"]}
        refusals = {uid: (str(reason), str(message)) for uid, (reason, message) in document["refusals"].items()}
        self.bookings, self.slots, self.refusals = bookings, slots, refusals


# Written only where a tier uses them: plugins of the first version refuse a ledger with keys that they do not know.
_OPTIONAL = {"mode": DEFAULT_MODE, "priority": 0}


def _booking_row(booking: Booking) -> dict[str, Any]:
    row = asdict(booking)
    if booking.quota is None:
        del row["quota"]
    for container in row["containers"]:
        container["shares"] = [
            {key: value for key, value in share.items() if value != _OPTIONAL.get(key, NotImplemented)} for share in container["shares"]
        ]
    return row


def _booking(row: Mapping[str, Any]) -> Booking:
    found = row.get("quota")
    quota = Quota(**{**_known(Quota, found), "before": _shares(found["before"]), "wanted": _shares(found["wanted"])}) if found else None
    return Booking(**{**_known(Booking, row), "containers": _shares(row["containers"]), "quota": quota})


def _shares(rows: Iterable[Mapping[str, Any]]) -> tuple[ContainerShare, ...]:
    return tuple(ContainerShare(row["name"], tuple(Share(**_known(Share, share)) for share in row["shares"])) for row in rows)


def _slot(row: Mapping[str, Any]) -> Slot:
    return Slot(**{**_known(Slot, row), "ids": tuple(row["ids"])})


def _known(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a newer plugin has written beside: losing that is better than losing the slot."""
    return {field.name: row[field.name] for field in fields(kind) if field.name in row}


class _NewerFormat(Exception):
    """The file is a newer plugin's."""


def _put_aside(path: Path, found: str) -> Path:
    """Errors: LedgerError."""
    aside = path.with_name(f"{path.stem}.format-{found}.json")
    try:
        return path.replace(aside)
    except OSError as error:
        raise LedgerError(f"cannot move '{path}' of a newer version to '{aside}': {error.strerror}") from error
