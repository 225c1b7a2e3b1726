"""Packages of compiled code and of programs, loaded without running what a stranger's file holds.

``torch_child.py`` runs it by its path, engines import it. It needs the standard library and torch."""

import ast
import functools
import io
import json
import os
import re
import tempfile
import warnings
import zipfile

# Records of a package that hold the bytes of tensors; those of other names torch unpickles.
TENSORS = re.compile(r"(weight|tensor)_\d+$")
# What a program may call besides the operators of the list that TorchScript has too. torch finds a target by name in
# its whole package, and calls it (torch/_export/serde).
OPERATOR = re.compile(r"torch\.ops\.(aten)\.(\w+)(\.\w+)?", re.ASCII)
TARGETS = re.compile(
    r"torch\.ops\.higher_order\.(cond|while_loop|wrap_with_set_grad_enabled)|math\.(ceil|floor|sqrt|trunc)"
    r"|torch\.sym_(float|int|ite|max|min|not|sqrt|sum)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|abs|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
)
# Expressions of sizes, which sympy evaluates as Python: calls of these, numbers, and names of symbols.
_NAMES = """
    Symbol Integer Float Rational Add Mul Pow Mod Max Min Abs Eq Equality Ne Unequality Lt StrictLessThan Le LessThan Gt
    StrictGreaterThan Ge GreaterThan And Or Not FloorDiv CeilDiv CleanDiv ModularIndexing PythonMod Where Identity
    FloorToInt CeilToInt RoundToInt TruncToInt ToFloat IntTrueDiv FloatTrueDiv PowByNatural FloatPow
"""
FUNCTIONS, POWERS = frozenset(_NAMES.split()), frozenset(("Pow", "PowByNatural", "FloatPow"))
# All other texts and keys: names of values, which torch writes into Python, and arguments of operators.
NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
ARGUMENT = re.compile(r"[\w,.> -]*", re.ASCII)
FREE = frozenset(("custom", "torch_version"))
# Containers of inputs and outputs. torch imports what other types name.
CONTAINERS = frozenset((None, "builtins.tuple", "builtins.list", "builtins.dict"))
# Exponents and the like beyond it take for ever.
LARGEST_NUMBER = 2**63
# Guards, which torch compiles as Python: comparisons of the sizes and strides of inputs.
GUARD_METHODS = frozenset(("size", "stride", "storage_offset", "dim"))
OPERATORS = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context),
)


def load_compiled_calls(archive, methods):
    """Load the compiled methods of a package as callables by name."""
    import torch

    aoti = getattr(torch._C, "_aoti")  # noqa: B009
    try:
        return {m: aoti.AOTIModelPackageLoader(archive, m, False, 1, -1).boxed_run for m in methods}
    except RuntimeError as error:
        # Torch before 2.13 unpacks into /tmp alone, where a confined process does not write.
        if "Failed to create temporary directory" not in str(error) or not is_for_cpu(archive):
            raise
    return {m: load_unpacked_call(aoti, archive, m) for m in methods}


def is_for_cpu(archive):
    """Return whether all code of a package was compiled for the CPU."""
    with zipfile.ZipFile(archive) as file:
        names = [n for n in file.namelist() if n.endswith(".wrapper_metadata.json")]
        return all(json.loads(file.read(n)).get("AOTI_DEVICE_KEY") == "cpu" for n in names)


def load_unpacked_call(aoti, archive, method):
    """Load one compiled method from its record, unpacked among the temporary files, as a callable.

    What was unpacked stays until its folder goes: the process has it open."""
    folder = tempfile.mkdtemp()
    with zipfile.ZipFile(archive) as file:
        (name,) = (n for n in file.namelist() if re.search(rf"/data/aotinductor/{re.escape(method)}/[^/]+\.so$", n))
        path = os.path.join(folder, "method.so")
        with open(path, "wb") as target:
            target.write(file.read(name))
    return aoti.AOTIModelContainerRunnerCpu(path, 1).run


def load_program_calls(archive, methods, operators):
    """Load the programs of a package, which call ``operators`` only, as callables by name."""
    from torch.export.pt2_archive._package import load_pt2

    check_no_pickles(archive)
    check_programs(archive, operators)
    with warnings.catch_warnings():
        # Torch 2.10 says that the file's bytes cannot be written to, and copies them.
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        with open(archive, "rb") as file:
            programs = load_pt2(file).exported_programs
    return {m: functools.partial(call_module, programs[m].module()) for m in methods}


def check_no_pickles(archive):
    """Raise ``ValueError`` for a record that is a pickle, which torch would run; torchferry writes tensors there."""
    import torch

    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            _, _, record = name.partition("/")
            if record.startswith("data/sample_inputs/"):
                torch.load(io.BytesIO(file.read(name)), weights_only=True)
            elif record.startswith(("data/weights/", "data/constants/")):
                if name.endswith("_config.json"):
                    entries = json.loads(file.read(name)).get("config", {}).values()
                    has_pickle = any(e.get("use_pickle") or not TENSORS.match(e["path_name"]) for e in entries)
                else:
                    # Without a configuration torch reads NAME.pt, whole.
                    has_pickle = record.endswith(".pt")
                if has_pickle:
                    raise ValueError(f"record {name} is or names a pickle, which torchferry does not write")


def check_programs(archive, operators):
    """Raise ``ValueError`` for a program that holds Python, or that calls something else than these operators.

    torch evaluates the sizes and the guards of a program as Python, and calls its targets whatever they are."""
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            _, _, record = name.partition("/")
            if record.startswith("models/"):
                check_value(json.loads(file.read(name)), "", f"record {name}", operators)


def check_value(value, key, where, operators):
    """Raise ``ValueError`` for a text inside that torch would evaluate, import or call, and that is not plain."""
    todo = [(key, value)]
    while todo:
        key, value = todo.pop()
        if isinstance(value, dict):
            for name in value:
                require_plain(NAME.fullmatch(name), name, where, "the place of a name")
            todo += value.items()
        elif isinstance(value, list):
            todo += [(key, item) for item in value]
        elif isinstance(value, str):
            check_text(key, value, where, operators)
        if key in ("custom_obj_values", "as_custom_obj") and value:
            require_plain(False, key, where, "which is an object of a class")


def check_text(key, text, where, operators):
    """Raise ``ValueError`` for a text that torchferry would not write there."""
    if key in ("target", "as_operator"):
        named = OPERATOR.fullmatch(text)
        is_listed = named is not None and f"{named[1]}::{named[2]}" in operators
        require_plain(is_listed or TARGETS.fullmatch(text), text, where, "which is no operator that only computes")
    elif key == "expr_str":
        require_plain(is_plain_expression(text, is_plain_size), text, where, "the place of a size")
    elif key == "guards_code":
        require_plain(is_plain_expression(text, is_plain_guard), text, where, "the place of a guard")
    elif key in ("in_spec", "out_spec"):
        for node in iterate_objects(json.loads(text)):
            require_plain(node.get("type") in CONTAINERS, text, where, "which imports a type")
    elif key == "as_string":
        require_plain(ARGUMENT.fullmatch(text), text, where, "the place of an argument")
    elif key not in FREE:
        require_plain(not text or NAME.fullmatch(text.lstrip("-")), text, where, "the place of a name")


def require_plain(is_plain, text, where, place):
    """Raise ``ValueError`` for a text that is not plain."""
    if not is_plain:
        raise ValueError(f"{where} has {text[:80]!r}, {place}: torchferry does not write it")


def iterate_objects(value):
    """Yield every object inside a JSON value."""
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            yield value
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def is_plain_expression(text, is_plain):
    """Return whether a text is one expression of which every part is plain."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(is_plain(node) for node in ast.walk(tree.body))


def is_plain_constant(value):
    """Return whether a constant is a number of usual size, or a name."""
    if isinstance(value, str):
        return NAME.fullmatch(value) is not None
    return isinstance(value, (int, float)) and abs(value) <= LARGEST_NUMBER


def is_plain_size(node):
    """Return whether this part of an expression is a number, a symbol, or a function of sizes."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        # A power in a power may be larger than any machine. Only symbols have keywords.
        inner = {n.id for part in node.args for n in ast.walk(part) if isinstance(n, ast.Name)}
        is_plain_call = name == "Symbol" or not node.keywords
        return name in FUNCTIONS and is_plain_call and not (name in POWERS and inner & POWERS)
    if isinstance(node, ast.Name):
        return node.id in FUNCTIONS or re.fullmatch(r"[suz]+\d+", node.id) is not None
    if isinstance(node, ast.Constant):
        return is_plain_constant(node.value)
    return isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.keyword, *OPERATORS))


def is_plain_guard(node):
    """Return whether this part of a guard is a number, an input, or a size of one."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute)
    if isinstance(node, ast.Attribute):
        return node.attr in GUARD_METHODS
    if isinstance(node, ast.Name):
        return node.id == "L"
    if isinstance(node, ast.Constant):
        return is_plain_constant(node.value)
    return isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Subscript, *OPERATORS))


def call_module(module, inputs):
    """Call a module with a list of inputs."""
    return module(*inputs)
