"""Variables of a data set bound to the inputs of a method: names, shapes, dtypes, units, before anything runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exporter.archive.contract import Contract
from exporter.archive.tensor_spec import TensorSpec, fits_shape
from exporter.common.c_text import to_c_identifier
from exporter.common.errors import UsageError, suggest_names
from exporter.common.units import MAX_LENGTH, find_conversion, is_known
from runtime_checks.evaluation.data_set import UNITS, DataSet, Variable

if TYPE_CHECKING:
    import numpy

# The variable of the results that says of each element whether it has numbers.
STATUS = "status"
# Dtypes of contracts that NumPy does not have, as they are stored.
STORED_DTYPES = {"bfloat16": "float32"}


@dataclass(frozen=True)
class BoundInput:
    """An input, and where its numbers come from: a variable of the data set, or ``values`` along one dimension.

    ``dims`` are its dimensions in the data set; the last ``len(spec.shape)`` are its own."""

    spec: TensorSpec
    dims: tuple[str, ...]
    variable: Variable | None = None
    values: numpy.ndarray | None = None

    @property
    def batch_dims(self) -> tuple[str, ...]:
        """Return the dimensions along which elements lie."""
        return self.dims[: len(self.dims) - len(self.spec.shape)]


@dataclass(frozen=True)
class Output:
    """An output as it is stored: the ``method_name`` that the method gives it, its own dimensions and shape, and its
    unit and note, if the contract has them."""

    name: str
    method_name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    unit: str = ""
    note: str = ""

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """Return what a data set says of it."""
        long_name = self.method_name if self.method_name != self.name else ""
        texts = {"long_name": long_name, UNITS: self.unit, "description": self.note}
        return tuple((name, text) for name, text in texts.items() if text)


@dataclass(frozen=True)
class Binding:
    """What a method takes from a data set, and gives.

    Attributes:
        inputs: The inputs, in the method's order.
        parameters: Values of parameters, of their dtypes, each along a dimension of its name.
        sizes: The size of each dimension along which elements lie.
        stored: The sizes of chunks that the inputs are stored in.
        kept: Variables that go to the result as they are: coordinates, and what is asked for.
        outputs: The outputs, in the method's order.
        study_units: Units of what is varied, by name, where the contract says them.
    """

    inputs: tuple[BoundInput, ...]
    parameters: Mapping[str, numpy.ndarray]
    sizes: Mapping[str, int]
    stored: Mapping[str, int]
    kept: tuple[Variable, ...]
    outputs: tuple[Output, ...]
    study_units: Mapping[str, str] = field(default_factory=dict)

    @property
    def unchecked_units(self) -> tuple[str, ...]:
        """List the inputs whose unit the contract says, and the data set does not."""
        return tuple(b.spec.name for b in self.inputs if b.spec.unit and b.variable and not b.variable.list_units())

    @property
    def element_bytes(self) -> int:
        """Return the bytes of the inputs and outputs of an element."""
        import numpy

        shapes = [(i.spec.shape, i.spec.dtype) for i in self.inputs] + [(o.shape, o.dtype) for o in self.outputs]
        sizes = [math.prod(n for n in shape if isinstance(n, int)) for shape, _ in shapes]
        return sum(n * numpy.dtype(dtype).itemsize for n, (_, dtype) in zip(sizes, shapes, strict=True))


def bind(
    contract: Contract,
    method: str,
    data: DataSet | None,
    names: Mapping[str, str],
    studies: Mapping[str, numpy.ndarray],
    keep: Sequence[str] = (),
) -> Binding:
    """Bind the inputs of a method to variables.

    Args:
        contract: The contract of the file.
        method: One of its methods.
        data: The data set; None if all inputs are studied.
        names: The variable of an input, where it has another name.
        studies: Values of an input or a parameter, each of which is combined with all elements.
        keep: Variables that go to the result too.

    Raises:
        UsageError: A name, a shape, a dtype or a unit does not fit; the message says which, and what is expected.
    """
    if method not in contract.methods:
        what = f"the file has no method {method!r}"
        raise UsageError(what, where="--method", expected=suggest_names(method, contract.methods))
    input_names = contract.methods[method].inputs
    if unknown := [name for name in names if name not in input_names]:
        what, where = f"the method has no input {unknown[0]!r}", "--name"
        raise UsageError(what, where=where, expected=suggest_names(unknown[0], input_names))
    dtypes = {p.name: p.dtype for p in contract.parameters}
    parameters = {name: values for name, values in studies.items() if name not in input_names}
    _check_studies(contract, input_names, parameters)
    parameters = {name: _cast_study(name, values, dtypes[name]) for name, values in parameters.items()}
    specs = [dataclasses.replace(contract.input_spec(name), name=name) for name in input_names]
    open_sizes: dict[str, int] = {}
    inputs = tuple(_bind_input(spec, data, names, studies, open_sizes) for spec in specs)
    sizes = _merge_sizes(inputs, parameters, data)
    stored: dict[str, int] = {}
    for bound in inputs:
        for dim, size in bound.variable.stored.items() if bound.variable else ():
            stored[dim] = max(stored.get(dim, 1), size)
    if STATUS in sizes:
        what, mend = f"a dimension of elements is called {STATUS!r}, as a variable of the results is", "rename it"
        raise UsageError(what, where=data.where if data else "", got=STATUS, expected="another name", mend=mend)
    kept = _find_kept(data, sizes, keep) if data is not None else ()
    outputs = _name_outputs(contract, method, sizes, [v.name for v in kept], open_sizes)
    stored = {dim: size for dim, size in stored.items() if dim in sizes}
    units = {p.name: p.unit for p in contract.parameters if p.name in parameters and p.unit}
    units |= {b.dims[0]: b.spec.unit for b in inputs if b.values is not None and b.spec.unit}
    return Binding(inputs, parameters, sizes, stored, kept, outputs, units)


def _check_studies(contract: Contract, inputs: Sequence[str], parameters: Mapping[str, numpy.ndarray]) -> None:
    """Raise ``UsageError`` for what is neither an input nor a parameter of one number."""
    specs = {p.name: p for p in contract.parameters}
    for name in parameters:
        if name not in specs:
            what, where = f"there is no input or parameter {name!r}", "--vary"
            raise UsageError(what, where=where, expected=suggest_names(name, [*inputs, *specs]))
        if math.prod(specs[name].shape) != 1:
            what, mend = f"parameter {name!r} is not one number", "vary one that is, or an input"
            got, expected = f"shape {list(specs[name].shape)}", "shape []"
            raise UsageError(what, where="--vary", got=got, expected=expected, mend=mend)


def _cast_study(name: str, values: numpy.ndarray, dtype: str) -> numpy.ndarray:
    """Return values of a dtype. Raises ``UsageError`` if it does not hold them: two thirds are no integer."""
    cast = values.astype(STORED_DTYPES.get(dtype, dtype))
    # What is rounded to a shorter float is stored as it was used.
    if not dtype.startswith(("float", "bfloat", "complex")) and not (cast == values).all():
        got, expected = ", ".join(f"{v:g}" for v in values[cast != values][:5]), f"numbers of {dtype}"
        raise UsageError(f"{name!r} cannot have these values", where="--vary", got=got, expected=expected)
    return cast


def _bind_input(
    spec: TensorSpec,
    data: DataSet | None,
    names: Mapping[str, str],
    studies: Mapping[str, numpy.ndarray],
    open_sizes: dict[str, int],
) -> BoundInput:
    if spec.dtype in STORED_DTYPES:
        what, mend = f"input {spec.name!r} is of {spec.dtype}, which data sets do not have", "export it with float32"
        raise UsageError(what, got=spec.dtype, expected="a dtype of NumPy", mend=mend)
    if spec.name in studies:
        if spec.shape:
            what, mend = f"input {spec.name!r} is not one number", "give its values in the data set"
            got, expected = f"shape {list(spec.shape)}", "shape []"
            raise UsageError(what, where="--vary", got=got, expected=expected, mend=mend)
        values = _cast_study(spec.name, studies[spec.name], spec.dtype)
        return BoundInput(spec, (name_variable(spec.name),), values=values)
    variable = _find_variable(spec, data, names)
    assert data is not None
    own = len(spec.shape)
    shape = variable.shape[len(variable.shape) - own :]
    if len(variable.shape) < own or not fits_shape(shape, spec.shape, open_sizes):
        what = f"variable {variable.name!r} has the wrong shape for input {spec.name!r}"
        sizes = ", ".join(map(str, spec.shape))
        expected = f"(dimensions of elements, {sizes})" if sizes else "dimensions of elements alone"
        expected += "".join(f", {name} = {size}" for name, size in open_sizes.items())
        mend = "put the dimensions of its own last: dataset.transpose(..., 'component')"
        raise UsageError(what, where=data.where, got=variable.describe(), expected=expected, mend=mend)
    _check_dtype(spec, variable, data.where)
    _check_unit(spec, variable, data.where)
    return BoundInput(spec, variable.dims, variable)


def _find_variable(spec: TensorSpec, data: DataSet | None, names: Mapping[str, str]) -> Variable:
    """Find the variable of an input: of the name that is asked for, of its own, or of its identifier in C."""
    if data is None:
        what, mend = f"input {spec.name!r} has no values", "name a data set, or give its values with --vary"
        raise UsageError(what, expected="a variable of its name", mend=mend)
    wanted = [names[spec.name]] if spec.name in names else [spec.name, to_c_identifier(spec.name)]
    variable = next(filter(None, (data.find_variable(name, spec.shape) for name in wanted)), None)
    if variable is None:
        what = f"the data set has no variable for input {spec.name!r}"
        expected, mend = suggest_names(wanted[0], data.list_names()), f"name it: --name '{spec.name}=VARIABLE'"
        raise UsageError(what, where=data.where, got=spec.describe(), expected=expected, mend=mend)
    return variable


def _check_dtype(spec: TensorSpec, variable: Variable, where: str) -> None:
    """Raise ``UsageError`` for numbers that the input's dtype does not hold, as NumPy's safe casts have it."""
    import numpy

    try:
        fits = numpy.can_cast(numpy.dtype(variable.dtype), numpy.dtype(spec.dtype), "safe")
    except TypeError:
        fits = False
    if not fits:
        what = f"variable {variable.name!r} has the wrong dtype for input {spec.name!r}"
        mend = f"convert it in the data set: .astype({spec.dtype!r})"
        raise UsageError(what, where=where, got=variable.dtype, expected=spec.dtype, mend=mend)


def _check_unit(spec: TensorSpec, variable: Variable, where: str) -> None:
    """Raise ``UsageError`` for numbers in another unit than the input's, where both are said."""
    conversions = {unit: find_conversion(unit, spec.unit) for unit in variable.list_units()} if spec.unit else {}
    unit = next((unit for unit, way in conversions.items() if way is None or not way.is_identity), "")
    if not unit:
        return
    conversion = conversions[unit]
    what = f"variable {variable.name!r} has the wrong unit for input {spec.name!r}"
    mend = "name another variable, or mend its attribute 'units'"
    if conversion is not None:
        mend = f"convert its numbers in the data set, {variable.name!r} {conversion.describe()}, and its 'units'"
    elif not (is_known(unit) and is_known(spec.unit)):
        mend += ": what is not read as a unit fits the same text alone"
    raise UsageError(what, where=where, got=unit[:MAX_LENGTH], expected=spec.unit, mend=mend)


def _merge_sizes(
    inputs: Sequence[BoundInput],
    parameters: Mapping[str, numpy.ndarray],
    data: DataSet | None,
) -> dict[str, int]:
    """Return the dimensions along which elements lie: what is studied first, then those of the data set."""
    sizes = {name: len(values) for name, values in parameters.items()}
    sizes |= {b.dims[0]: len(b.values) for b in inputs if b.values is not None}
    where = data.where if data is not None else ""
    owners: dict[str, str] = {}
    for bound in inputs:
        for dim in bound.batch_dims if bound.variable else ():
            size = bound.variable.sizes[dim] if bound.variable else 0
            if dim in sizes and dim not in owners:
                what, mend = f"dimension {dim!r} of the data set has the name of what is varied", "rename it"
                raise UsageError(what, where=where, got=dim, expected="names of their own", mend=mend)
            if sizes.setdefault(dim, size) != size:
                what, got = f"dimension {dim!r} has two sizes", f"{size} of {bound.spec.name!r}"
                raise UsageError(what, where=where, got=got, expected=f"{sizes[dim]} of {owners[dim]!r}")
            owners.setdefault(dim, bound.spec.name)
    own = {dim for bound in inputs for dim in bound.dims[len(bound.batch_dims) :]}
    if both := sorted(own & sizes.keys()):
        what, mend = f"dimension {both[0]!r} is one of elements and one of a variable's own", "rename one of them"
        raise UsageError(what, where=where, got=both[0], expected="dimensions of one meaning", mend=mend)
    if any(size == 0 for size in sizes.values()):
        what, empty = "the data set has no elements", next(dim for dim, size in sizes.items() if not size)
        raise UsageError(what, where=where, got=f"dimension {empty!r} of size 0", expected="at least one element")
    return sizes


def _find_kept(data: DataSet, sizes: Mapping[str, int], keep: Sequence[str]) -> tuple[Variable, ...]:
    """Find the coordinates of elements, and the variables that are asked for."""
    kept = {}
    if doubled := next((name for name in keep if name == STATUS or name_variable(name) != name), None):
        what, mend = f"variable {doubled!r} cannot be kept by this name", "rename it in the data set"
        raise UsageError(what, where="--keep", got=doubled, expected="a name of its own, without a slash", mend=mend)
    for name in (*data.list_coordinates(), *keep):
        variable = data.find_variable(name, ())
        if variable is None:
            what, where = f"the data set has no variable {name!r}", "--keep"
            raise UsageError(what, where=where, expected=suggest_names(name, data.list_names()))
        is_numeric = variable.dtype.startswith(("float", "int", "uint", "bool", "complex"))
        # Of a coordinate that is no number, or lies elsewhere, nothing is said: nobody has asked for it.
        is_varied = name in sizes and name not in variable.dims
        if is_numeric and set(variable.dims) <= set(sizes) and not is_varied and name != STATUS:
            kept[name] = variable
        elif name in keep:
            what, where = f"variable {name!r} cannot be kept", "--keep"
            raise UsageError(what, where=where, got=variable.describe(), expected=f"numbers over {', '.join(sizes)}")
    return tuple(kept.values())


def _name_outputs(
    contract: Contract, method: str, sizes: Mapping[str, int], kept: Sequence[str], open_sizes: Mapping[str, int]
) -> tuple[Output, ...]:
    """Name the outputs as stores can: a slash would be a folder there. Open sizes are those of the inputs."""
    spec = contract.methods[method]
    outputs: list[Output] = []
    taken = {STATUS, *sizes, *kept}
    for output, plain in zip(spec.outputs, spec.output_names, strict=True):
        name = name_variable(plain)
        while name in taken or any(other.startswith(f"{name}_") for other in (*sizes, *kept)):
            name += "_out"
        taken.add(name)
        output_spec = contract.output_spec(output)
        shape, dtype = output_spec.resolve_shape(open_sizes), output_spec.dtype
        dims = tuple(f"{name}_{k}" for k in range(len(shape)))
        outputs.append(
            Output(name, plain, dims, shape, STORED_DTYPES.get(dtype, dtype), output_spec.unit, output_spec.note)
        )
    return tuple(outputs)


def name_variable(text: str) -> str:
    """Return the name of a variable in a store, where a slash would be a folder."""
    return text if "/" not in text and text == text.strip() else to_c_identifier(text)
