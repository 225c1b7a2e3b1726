"""The native library of torchferry: bin/, lib/, include/ and share/ are in this folder; torchferry finds them."""
