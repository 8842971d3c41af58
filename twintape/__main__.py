"""`python -m twintape` is the same command as `twintape`."""

import sys

from twintape.cli import main

if __name__ == "__main__":
    sys.exit(main())
