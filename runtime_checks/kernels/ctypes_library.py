"""Calls of a kernel's shared object through ctypes. Standard library and NumPy only: hosts without torch use it."""

import ctypes
import math

import numpy

ERRORS = {
    -1: "an argument is null, or the count is negative",
    -2: "the strides of an output let its numbers share their place",
    -3: "an output overlaps another output, or an input",
}


class Array(ctypes.Structure):
    """``NAME_array`` of the header."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.POINTER(ctypes.c_ssize_t)))


class Library:
    """The functions of a shared object, as the manifest ``described`` speaks of them."""

    def __init__(self, path, described):
        self.described = described
        self.functions = {}
        library = ctypes.CDLL(path)
        for method in described["methods"]:
            function = getattr(library, f"{described['name']}_{method}")
            function.restype = ctypes.c_int
            function.argtypes = [ctypes.c_ssize_t, *[ctypes.c_void_p] * 5]
            self.functions[method] = function

    def call(self, method, inputs, parameters):
        """Outputs, and the status of each element. ``inputs`` have one batch dimension, whatever their strides;
        ``parameters`` are arrays by name, of those that are not as they were exported."""
        spec = self.described["methods"][method]
        batched = bool(self.described["batched"])
        count = len(inputs[0]) if batched and inputs else 1
        inputs = [_aligned(value) for value in inputs]
        outputs = []
        # Structures of arrays in, structures of arrays out.
        order = "C" if all(value.flags.c_contiguous for value in inputs) else "F"
        for one in spec["outputs"]:
            shape = (count, *one["shape"]) if batched else tuple(one["shape"])
            outputs.append(numpy.empty(shape, dtype=one["dtype"], order=order))
        status = numpy.zeros(count, dtype=numpy.int32)
        held = [_contiguous(parameters.get(p["name"]), p) for p in self.described["parameters"]]
        pointers = (ctypes.c_void_p * max(len(held), 1))(*[None if h is None else h.ctypes.data for h in held])
        size = self.described["workspace"].get(method, 0)
        workspace = numpy.empty(size + 64, dtype=numpy.uint8) if size else None
        place = None if workspace is None else workspace.ctypes.data + (-workspace.ctypes.data) % 64
        code = self.functions[method](
            count, arrays_of(inputs, batched), arrays_of(outputs, batched), pointers, status.ctypes.data, place
        )
        if code < 0:
            raise ValueError(ERRORS.get(code, f"error {code}"))
        return outputs, status


def flattened_call(library, method, inputs, parameters):
    """With any number of batch dimensions, which broadcast. Raises ``TypeError`` for another dtype, ``ValueError`` for
    shapes that are not the method's."""
    spec = library.described["methods"][method]
    if len(inputs) != len(spec["inputs"]):
        raise TypeError(f"method {method!r} takes {len(spec['inputs'])} inputs, got {len(inputs)}")
    values, leads = [], []
    for given, one in zip(inputs, spec["inputs"], strict=True):
        value = numpy.asarray(given)
        if value.dtype != numpy.dtype(one["dtype"]):
            raise TypeError(f"input {one['name']!r} is of {value.dtype} instead of {one['dtype']}")
        own = tuple(one["shape"])
        lead = value.ndim - len(own)
        if lead < 0 or value.shape[lead:] != own or (lead and not library.described["batched"]):
            wanted = f"[*batch, {', '.join(map(str, own))}]" if library.described["batched"] else list(own)
            raise ValueError(f"input {one['name']!r} is of shape {list(value.shape)} instead of {wanted}")
        values.append((value, own))
        leads.append(value.shape[:lead])
    if not library.described["batched"]:
        return library.call(method, [value for value, _ in values], parameters)
    batch = numpy.broadcast_shapes(*leads) if leads else ()
    flat = [
        value if value.shape == (*batch, *own) and len(batch) == 1 else _flat(value, batch, own)
        for value, own in values
    ]
    outputs, status = library.call(method, flat, parameters)
    own = [tuple(one["shape"]) for one in spec["outputs"]]
    return [o.reshape((*batch, *s)) for o, s in zip(outputs, own, strict=True)], status.reshape(batch)


def _flat(value, batch, own):
    return numpy.broadcast_to(value, (*batch, *own)).reshape((math.prod(batch), *own))


def _aligned(value):
    """Strides are in numbers, which those of a packed structure are not."""
    whole = all(s % value.itemsize == 0 for s in value.strides)
    return value if whole and value.flags.aligned else numpy.ascontiguousarray(value)


def _contiguous(value, spec):
    return None if value is None else numpy.ascontiguousarray(value, dtype=spec["dtype"])


def arrays_of(values, batched):
    """Strides are for those that are not dense: a call looks at each."""
    made = (Array * max(len(values), 1))()
    for i, value in enumerate(values):
        made[i].data = value.ctypes.data
        if not value.flags.c_contiguous:
            steps = [s // value.itemsize for s in value.strides]
            lead = [] if batched else [math.prod(value.shape)]
            made[i].strides = (ctypes.c_ssize_t * (len(steps) + 1))(*lead, *steps)
    return made
