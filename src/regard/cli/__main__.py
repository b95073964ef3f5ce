"""``python -m regard.cli``, which is also what torchrun takes: ``torchrun … -m regard.cli train NAME``."""

import sys

from regard.cli import main

if __name__ == "__main__":
    sys.exit(main())
