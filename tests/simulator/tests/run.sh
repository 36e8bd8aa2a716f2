#!/bin/bash
# Builds the simulated driver and runs its tests (under a minute). Arguments go to pytest. PYTHON chooses the interpreter.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
export TENFOLD_SIM_BUILD=${TENFOLD_SIM_BUILD:-$root/build/simulator-tests}
mkdir -p "$TENFOLD_SIM_BUILD"
cd "$root"
exec "$python" -m pytest -q tests/simulator/tests "$@"
