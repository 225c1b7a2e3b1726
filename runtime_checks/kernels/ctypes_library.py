"""Calls of a kernel's shared object through ctypes. Standard library and NumPy only, for hosts without torch."""

import ctypes
import math

import numpy

ERRORS = {
    -1: "an argument is null, or the count is negative",
    -2: "the strides let numbers of an output share their place, or reach further than memory",
    -3: "an output overlaps another output, or an input",
    -4: "the device has refused memory or work",
}


class Array(ctypes.Structure):
    """The struct ``NAME_array`` of the header."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.POINTER(ctypes.c_ssize_t)))


class Library:
    """The functions of a shared object, as listed in the manifest ``described``."""

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
        """Return the outputs, and the status of each element. ``inputs`` have one batch dimension and any strides;
        ``parameters`` are arrays by name, for those that differ from the exported values."""
        spec = self.described["methods"][method]
        batched = bool(self.described["batched"])
        count = len(inputs[0]) if batched and inputs else 1
        inputs = [_align(value) for value in inputs]
        outputs = []
        # Outputs have the memory order of the inputs.
        order = "C" if all(value.flags.c_contiguous for value in inputs) else "F"
        for output in spec["outputs"]:
            shape = (count, *output["shape"]) if batched else tuple(output["shape"])
            outputs.append(numpy.empty(shape, dtype=output["dtype"], order=order))
        status = numpy.zeros(count, dtype=numpy.int32)
        parameter_values = [_make_contiguous(parameters.get(p["name"]), p) for p in self.described["parameters"]]
        addresses = [None if value is None else value.ctypes.data for value in parameter_values]
        pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        size = self.described["workspace"].get(method, 0)
        workspace = numpy.empty(size + 64, dtype=numpy.uint8) if size else None
        address = None if workspace is None else workspace.ctypes.data + (-workspace.ctypes.data) % 64
        arrays = (make_arrays(inputs, batched), make_arrays(outputs, batched))
        code = self.functions[method](count, *arrays, pointers, status.ctypes.data, address)
        if code < 0:
            raise ValueError(ERRORS.get(code, f"error {code}"))
        return outputs, status


def call_with_batch(library, method, inputs, parameters):
    """Call a method with any number of batch dimensions, which broadcast. Raise ``TypeError`` for another dtype,
    ``ValueError`` for shapes that are not the method's."""
    spec = library.described["methods"][method]
    if len(inputs) != len(spec["inputs"]):
        raise TypeError(f"method {method!r} takes {len(spec['inputs'])} inputs, got {len(inputs)}")
    values, batch_shapes = [], []
    for array, variable in zip(inputs, spec["inputs"], strict=True):
        value = numpy.asarray(array)
        if value.dtype != numpy.dtype(variable["dtype"]):
            raise TypeError(f"input {variable['name']!r} is of {value.dtype} instead of {variable['dtype']}")
        event_shape = tuple(variable["shape"])
        batch_ndim = value.ndim - len(event_shape)
        is_batched = library.described["batched"]
        if batch_ndim < 0 or value.shape[batch_ndim:] != event_shape or (batch_ndim and not is_batched):
            expected = f"[*batch, {', '.join(map(str, event_shape))}]" if is_batched else list(event_shape)
            raise ValueError(f"input {variable['name']!r} is of shape {list(value.shape)} instead of {expected}")
        values.append((value, event_shape))
        batch_shapes.append(value.shape[:batch_ndim])
    if not library.described["batched"]:
        return library.call(method, [value for value, _ in values], parameters)
    batch = numpy.broadcast_shapes(*batch_shapes) if batch_shapes else ()
    flat = [_flatten(value, batch, event_shape) for value, event_shape in values]
    outputs, status = library.call(method, flat, parameters)
    shapes = [tuple(variable["shape"]) for variable in spec["outputs"]]
    return [o.reshape((*batch, *s)) for o, s in zip(outputs, shapes, strict=True)], status.reshape(batch)


def _flatten(value, batch, event_shape):
    if len(batch) == 1 and value.shape == (*batch, *event_shape):
        return value
    return numpy.broadcast_to(value, (*batch, *event_shape)).reshape((math.prod(batch), *event_shape))


def _align(value):
    """Return the value with strides in whole elements, which those of a packed structure are not."""
    has_whole_strides = all(s % value.itemsize == 0 for s in value.strides)
    return value if has_whole_strides and value.flags.aligned else numpy.ascontiguousarray(value)


def _make_contiguous(value, spec):
    return None if value is None else numpy.ascontiguousarray(value, dtype=spec["dtype"])


def make_arrays(values, batched):
    """Build the array structs of a call. Only arrays that are not dense get strides: a call looks at each."""
    arrays = (Array * max(len(values), 1))()
    for i, value in enumerate(values):
        arrays[i].data = value.ctypes.data
        if not value.flags.c_contiguous:
            steps = [s // value.itemsize for s in value.strides]
            leading = [] if batched else [math.prod(value.shape)]
            arrays[i].strides = (ctypes.c_ssize_t * (len(steps) + 1))(*leading, *steps)
    return arrays
