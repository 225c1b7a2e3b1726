"""``python -m exporter`` is the console script ``torchferry``."""

from torchferry.cli.app import main

if __name__ == "__main__":
    main()
