"""The tier catalogue that this node obeys.

Owns fetching and caching. The node's annotation names a revision; each revision is an immutable ConfigMap, so that a file of it on this
node is as good as the API server's, and a node whose API server is away knows its tiers after a reboot.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from ._domain import files
from ._domain.errors import TierError
from ._domain.tiers import Catalogue
from .cluster import Cluster
from .errors import Refused

__all__ = ["Catalogues"]

CONFIG_MAP_PREFIX = "tenfold-tiers-"
KEY = "catalogue.json"
_REVISION = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True)
class Catalogues:
    cluster: Cluster
    namespace: str
    folder: Path

    def get(self, revision: str) -> Catalogue:
        """The catalogue of that revision (hash8, with or without the ConfigMap's prefix), from the cache or the API server.

        Errors: Refused("no_catalogue") when it is nowhere or is not what its name says; ClusterUnavailable.
        """
        revision = revision[len(CONFIG_MAP_PREFIX) :] if revision.startswith(CONFIG_MAP_PREFIX) else revision
        if not _REVISION.fullmatch(revision):
            raise Refused("no_catalogue", f"tiers revision is {revision!r}, expected 8 hex digits")
        cached = self._cached(revision)
        if cached is not None:
            return cached
        name = CONFIG_MAP_PREFIX + revision
        data = self.cluster.config_map(self.namespace, name)
        if data is None or KEY not in data:
            raise Refused("no_catalogue", f"ConfigMap {self.namespace}/{name} with key {KEY!r} does not exist; run site.yml --tags tiers")
        try:
            catalogue = Catalogue.from_json(data[KEY])
        except TierError as error:
            raise Refused("no_catalogue", f"ConfigMap {self.namespace}/{name} holds no valid catalogue: {error}") from error
        if catalogue.hash8 != revision:
            raise Refused("no_catalogue", f"ConfigMap {self.namespace}/{name} holds catalogue {catalogue.hash8!r}: it was changed by hand")
        self._keep(catalogue)
        return catalogue

    def _cached(self, revision: str) -> Catalogue | None:
        """A file that is missing, damaged or misnamed is as none: the API server has the original."""
        try:
            catalogue = Catalogue.from_json(self._path(revision).read_text(encoding="ascii"))
        except (OSError, ValueError, TierError):
            return None
        return catalogue if catalogue.hash8 == revision else None

    def _keep(self, catalogue: Catalogue) -> None:
        with contextlib.suppress(OSError):  # a cache: the next start asks the API server
            files.write(self._path(catalogue.hash8), catalogue.as_json())

    def _path(self, revision: str) -> Path:
        return self.folder / f"{revision}.json"
