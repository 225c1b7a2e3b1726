#!/usr/bin/env bash
# Builds a CalculiX (ccx) that loads the libraries of its users, from Debian's source package: Debian's own program does not.
#
#   tools/build_calculix.sh FOLDER      writes FOLDER/ccx
#
# It needs Debian 12 (bookworm), whose package it is, with gfortran, gcc, make, dpkg-dev, libspooles-dev and libarpack2-dev,
# and takes about a minute on two cores. apt's lists of source packages are its own; those of the system stay as they are.
set -euo pipefail
if [ $# -ne 1 ]; then
  echo "usage: tools/build_calculix.sh FOLDER" >&2
  exit 2
fi
folder=$(mkdir -p "$1" && cd "$1" && pwd)
version=2.20
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/sources"
# The archives of the system, for sources.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
  [ -f "$file" ] || continue
  case $file in
    *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" > "$work/sources/$(basename "$file")" ;;
    *.list) sed -n 's/^deb /deb-src /p' "$file" > "$work/sources/$(basename "$file")" ;;
  esac
done
options=(-o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources")
apt-get "${options[@]}" -qq update
(cd "$work" && apt-get "${options[@]}" -qq source --download-only "calculix-ccx=$version-1" && dpkg-source --extract "calculix-ccx_$version-1.dsc" ccx)
make -C "$work/ccx/ccx_$version/src" -s -j "$(nproc)" CC=gcc FC=gfortran FFLAGS="-w -O2 -fallow-argument-mismatch" \
  CFLAGS="-w -O2 -I/usr/include/spooles -DARCH=Linux -DSPOOLES -DARPACK -DMATRIXSTORAGE -DUSE_MT=1 -DCALCULIX_EXTERNAL_BEHAVIOURS_SUPPORT"
mv "$work/ccx/ccx_$version/src/ccx_$version" "$folder/ccx"
