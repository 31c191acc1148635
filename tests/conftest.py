"""What holds for every test: which examples property tests choose, and that compiled modules are kept.

`make test` takes the same examples each time, so that what passes here passes elsewhere. `make properties` draws new
ones; what it finds becomes an ``@example`` or a test of its own.
"""

import os
import sys

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("new", derandomize=False, print_blob=True)
settings.load_profile("same")

# Hundreds of tests start programs; each would compile the whole package, which takes longer than most of them do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
