"""Arrays with the strides of the caller's tensors; standard library and NumPy, run by its path by scripts beside it."""


def restore_strides(value, strides):
    """Return the value with the strides, in elements, that the caller's tensor had."""
    import numpy

    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True)) if value.size else 0
    memory = numpy.zeros(max(extent, 1), value.dtype)
    steps = [s * value.itemsize for s in strides]
    view = numpy.lib.stride_tricks.as_strided(memory, value.shape, steps)
    if value.size:
        # An expanded dimension is one element.
        once = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
        view[once] = value[once]
    return view
