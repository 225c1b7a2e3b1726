#!/usr/bin/env bash
# Installs neml2 built against the torch that PYTHON's environment holds, where the installed one is built for another.
#
# neml2's wheel on PyPI is built for torch up to 2.12.1; with another torch its compiled Newton solver fails. The sdist
# lacks two things: cmake/pkgconfig.cmake, which is left out, and the submodule nlohmann_json, whose header stands in
# this repository. The wheel is kept in the cache, one for each pair of torch and Python.
#
# Usage: tools/build_neml2.sh PYTHON          needs g++; downloads the sdist and its build tools from the index of pip
set -euo pipefail
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
version=3.1.0

runs() {
  (cd "$root" && "$python" -c 'import sys; from exporter.frontends.neml2.input_file import check_neml2_abi as runs; sys.exit(not runs())')
}

if runs; then
  exit 0
fi
pair=$("$python" -c 'import sys, torch; print(f"torch{torch.__version__}-py{sys.version_info[0]}{sys.version_info[1]}")')
wheels=${TORCHFERRY_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/torchferry}/neml2/$version-$pair
if ! compgen -G "$wheels/*.whl" > /dev/null; then
  echo "neml2 $version is not built for $pair: building it, which takes some minutes" >&2
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # The tools of the build live in an environment of their own, beside what is built against.
  "$python" -m venv "$work/tools"
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$packages" > "$("$work/tools/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/against.pth"
  pip=("$work/tools/bin/python" -m pip --quiet --disable-pip-version-check)
  "${pip[@]}" install scikit-build-core "cmake>=3.26.1,<4" ninja pybind11 setuptools_scm
  "${pip[@]}" download --no-deps --no-build-isolation --no-binary neml2 "neml2==$version" --dest "$work"
  tar xzf "$work/neml2-$version.tar.gz" -C "$work"
  sed -i '/^include(cmake\/pkgconfig.cmake)/d' "$work/neml2-$version/CMakeLists.txt"
  # torch's headers say which C++ they need: 20 from torch 2.14.
  standard=$(sed -nE 's/.*C\+\+([0-9]+) or later.*/\1/p' "$packages/torch/include/ATen/ATen.h" | sed -n 1p)
  sed -i -E "s/(CXX_STANDARD|CMAKE_CXX_STANDARD) 17/\1 ${standard:-17}/; s/cxx_std_17/cxx_std_${standard:-17}/" \
    "$work/neml2-$version/CMakeLists.txt" "$work/neml2-$version/cmake/Modules/Findtorch.cmake"
  # A prefix of its own, all of whose share/ the build installs.
  json=$work/json/share/cmake/nlohmann_json
  mkdir -p "$json" "$work/json/include"
  cp -r "$root/runtime_checks/native/third_party/nlohmann" "$work/json/include/"
  cat > "$json/nlohmann_jsonConfig.cmake" << 'CMAKE'
add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
set_target_properties(nlohmann_json::nlohmann_json PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../../../include")
CMAKE
  export torch_ROOT="$packages/torch" nmhit_ROOT="$packages/nmhit"
  PATH="$work/tools/bin:$PATH" nlohmann_json_DIR="$json" "${pip[@]}" wheel --no-build-isolation --no-deps \
    --wheel-dir "$work/wheels" --config-settings "cmake.define.nlohmann_json_DIR=$json" "$work/neml2-$version"
  mkdir -p "$(dirname "$wheels")"
  rm -rf "$wheels"
  mv "$work/wheels" "$wheels"
fi
"$python" -m pip --quiet --disable-pip-version-check install --no-deps --force-reinstall "$wheels"/*.whl
if ! runs; then
  echo "neml2 $version was built for $pair, and its Newton solver does not run: $wheels" >&2
  exit 1
fi
