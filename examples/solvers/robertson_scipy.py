"""SciPy's Radau on Robertson's problem, with right-hand side and Jacobian from an archive; no torch in this process.

    python examples/solvers/robertson_scipy.py robertson.pt $(torchferry native path)/lib/libtorchferry.so

The C ABI is called through ctypes. Prints what was found as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

FLOAT64, CPU = 1, 1
# Calls of the right-hand side; some 3,400 are needed.
LIMIT = 20_000


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("device", Device),
    ]


class Model:
    """One archive; arrays are used in place, through their strides."""

    def __init__(self, archive: str, library: str) -> None:
        self._tf = ctypes.CDLL(library)
        self._tf.tf_last_error.restype = ctypes.c_char_p
        self._tf.tf_last_error.argtypes = [ctypes.c_void_p]
        arrays = [ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p]
        self._tf.tf_call_named.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *arrays, *arrays]
        self._model = ctypes.c_void_p()
        self._check(self._tf.tf_load(archive.encode(), b"cpu", None, ctypes.byref(self._model)), None)
        self._check(self._tf.tf_run_cases(self._model, None, None), self._model)

    def __call__(self, method: str, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> None:
        sides = [self._side(inputs), self._side(outputs)]
        self._check(self._tf.tf_call_named(self._model, method.encode(), *sides[0], *sides[1]), self._model)

    def _side(self, arrays: dict[str, np.ndarray]) -> tuple[int, Any, Any]:
        names = (ctypes.c_char_p * len(arrays))(*(name.encode() for name in arrays))
        tensors = (Tensor * len(arrays))()
        for tensor, array in zip(tensors, arrays.values(), strict=True):
            shape = (ctypes.c_int64 * array.ndim)(*array.shape)
            strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
            tensor.data, tensor.dtype, tensor.rank = array.ctypes.data, FLOAT64, array.ndim
            tensor.shape, tensor.strides, tensor.device = shape, strides, Device(CPU, 0)
        return len(arrays), names, tensors

    def _check(self, status: int, model: Any) -> None:
        if status:
            raise RuntimeError(self._tf.tf_last_error(model).decode())


def main(archive: str, library: str) -> None:
    model = Model(archive, library)
    calls = {"rate": 0, "jacobian": 0}

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        calls["rate"] += 1
        if calls["rate"] > LIMIT:
            raise RuntimeError("the integrator does not get on: is the Jacobian right?")
        out = np.empty(3)
        model("forward", {"y": np.ascontiguousarray(y)}, {"rate": out})
        return out

    def jacobian(_: float, y: np.ndarray) -> np.ndarray:
        calls["jacobian"] += 1
        out = np.empty((3, 3))
        model("jacobian", {"y": np.ascontiguousarray(y)}, {"rate/y": out})
        return out

    tolerances = {"rtol": 1e-6, "atol": [1e-10, 1e-16, 1e-8]}
    result = solve_ivp(rate, (0.0, 4e10), [1.0, 0.0, 0.0], method="Radau", jac=jacobian, **tolerances)
    print(
        json.dumps(
            {
                "success": bool(result.success),
                "y": result.y[:, -1].tolist(),
                "steps": len(result.t) - 1,
                "nfev": result.nfev,
                "njev": result.njev,
                "nlu": result.nlu,
                "calls": calls,
                "torch": "torch" in sys.modules,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
