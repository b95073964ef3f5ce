"""``python -m regard``: the command line, for a shell that does not find ``regard``."""

import sys

from regard.cli import main

if __name__ == "__main__":
    sys.exit(main())
