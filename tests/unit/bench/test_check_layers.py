"""The checker of layers says no: to each fault, planted alone in a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_layers

CLEAN = {
    "files/hook/src/abi/hooks.def": 'CUDA_HOOK(cuWork, "cuWork", 2000, launch, (void))\nNVML_HOOK(cuTwin, view, (void))\n',
    "files/hook/src/driver/driver.h": "int tf_driver(void);\n",
    "files/hook/src/driver/driver.c": '#include "driver/driver.h"\n\nint tf_driver(void)\n{\n    return 1;\n}\n',
    "files/hook/src/slice/page.c": '#include "driver/driver.h"\n\nlong tf_page[2];\n\nint tf_read(void) { return tf_driver(); }\n',
    "files/hook/src/hooks/launch.c": "LAUNCH(cuWork)\nint tf_launched;\n",
    "files/hook/src/hooks/twin.c": "int cuTwin(void)\n{\n    return table->cuWork;\n}\n",
    "tools/one.py": "from . import two\n",
    "tools/two.py": "import json\n",
    "plugins/module_utils/tenfold/cards.py": "import json\n",
}
FAULTS = {
    "an include upwards": ("files/hook/src/driver/driver.h", '#include "slice/page.h"', "driver/driver: includes or uses slice/page"),
    "a header of its own folder": (
        "files/hook/src/slice/page.h",
        '#include "../hooks/launch.h"',
        "slice/page: includes or uses hooks/launch",
    ),
    "a call upwards by a declaration of one's own": (
        "files/hook/src/driver/driver.c",
        "extern int tf_read(void);\nstatic int peek(void) { return tf_read(); }",
        "driver/driver: includes or uses slice/page",
    ),
    "a variable of a higher folder": (
        "files/hook/src/driver/driver.c",
        "static long first(void) { extern long tf_page[]; return tf_page[0]; }",
        "driver/driver: includes or uses slice/page",
    ),
    "a circle within a folder": (
        "files/hook/src/slice/page.c",
        '#include "slots.h"\nint tf_use(void)\n{\n    return tf_slot();\n}\n',
        "circle: slice/page -> slice/slots -> slice/page",
    ),
    "a call of what is exported": (
        "files/hook/src/hooks/launch.c",
        "static int again(void) { return cuTwin() + table->cuTwin; }",
        "hooks/launch: includes or uses exported/cuTwin",
    ),
    "a folder that is not known": ("files/hook/src/attic/old.c", '#include "driver/driver.h"', "attic/old: includes or uses driver/driver"),
    "a circle of modules": ("tools/two.py", "from tools.one import main", "circle: tools/one.py -> tools/two.py -> tools/one.py"),
    "a circle for the types alone": (
        "tools/two.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import one",
        "circle: tools/one.py -> tools/two.py -> tools/one.py",
    ),
    "a circle through a function": (
        "tools/two.py",
        "def late():\n    from .one import main",
        "circle: tools/one.py -> tools/two.py -> tools/one.py",
    ),
    "a package that the domain may not know": ("plugins/module_utils/tenfold/cards.py", "import yaml", "cards.py:2: imports 'yaml'"),
}
BESIDE = {  # the other half of a circle, which alone is no fault
    "files/hook/src/slice/slots.c": '#include "slice/page.h"\n\nint tf_slot(void) { return tf_read(); }\n',
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + text, encoding="utf-8")


def test_a_tree_without_a_fault_passes(tmp_path: Path) -> None:
    write(tmp_path, {**CLEAN, **BESIDE})
    assert check_layers.problems(tmp_path) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    name, text, message = FAULTS[fault]
    write(tmp_path, {**CLEAN, **BESIDE})
    write(tmp_path, {name: text + "\n"})
    assert message in "\n".join(check_layers.problems(tmp_path))
