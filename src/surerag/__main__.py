"""Run the command line as ``python -m surerag``."""

from surerag.cli import main

if __name__ == "__main__":
    main()
