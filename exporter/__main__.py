"""``python -m exporter`` is the console script ``torchferry``."""

from exporter.cli.app import main

if __name__ == "__main__":
    main()
