"""Names of the methods that a file may have; none may be a name of the model's own."""

from __future__ import annotations

METHOD = "forward_batch"
BLOCKS, TANGENTS, COTANGENTS = "blocks_batch", "tangents_batch", "cotangents_batch"
BY_PARAMETERS = "by_parameters_batch"
JVP, VJP, JACOBIAN = "jvp_batch", "vjp_batch", "jacobian_batch"
ROWS, EVERY = "rows_batch", "every_block_batch"
NEWTON_INFO, SOLVED = "newton_info_batch", "solved_batch"

_PUBLIC = ("forward", "jacobian", "jvp", "vjp", "newton_info")

RESERVED = (
    *_PUBLIC,
    *(f"{name}_slices_batch" for name in _PUBLIC),
    *(METHOD, BLOCKS, TANGENTS, BY_PARAMETERS, COTANGENTS, JVP, VJP, JACOBIAN, ROWS, EVERY),
    *(NEWTON_INFO, SOLVED, f"{JVP}_solved", f"{VJP}_solved"),
    "broadcast_batch",
)
