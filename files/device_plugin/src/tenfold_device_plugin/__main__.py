"""``python3 -m tenfold_device_plugin``."""

import sys

from .main import main

sys.exit(main())
