"""What the tests of a running router share."""

from __future__ import annotations

import sys
from pathlib import Path

# With importlib mode the test folders are no packages: their shared modules are found by path.
sys.path.insert(0, str(Path(__file__).parent))
