"""The files that torchferry writes: contract, cases, records, and the containers that hold them."""
