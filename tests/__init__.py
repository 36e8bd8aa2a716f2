"""The test bench: everything here may use the product, the product never imports it.

The checkout is the collection tenfold.vgpu, found where Ansible finds it: below ``collections``.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "collections") not in sys.path:
    sys.path.insert(0, str(ROOT / "collections"))
