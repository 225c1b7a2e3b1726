"""The side of torchferry that sees the ``nn.Module``: source, warmup, capture, archive.

Importing this package imports no torch, so that reading a contract stays cheap.
"""

__version__ = "0.1.0"
