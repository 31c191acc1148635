"""``python -m xprof_py``: the same command as ``xprof-py``."""

import sys

from xprof_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
