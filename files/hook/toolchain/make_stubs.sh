#!/bin/sh
# make_stubs.sh CC ARCH OUT_FOLDER: link-time stand-ins for glibc 2.17.
#
# OUT_FOLDER/libc.so.6 and libdl.so.2 hold nothing but the symbols of libc-symbols.txt (and the loader's), under the versions that they had
# in glibc 2.17. What links against them runs on every glibc since; what needs more does not link. Headers are the builder's own.
set -eu
cc=$1 arch=$2 out=$3
here=$(dirname "$0")
mkdir -p "$out"

# stub FILE: reads "name version" lines
stub() {
    sort -u "$out/$1.list" >"$out/$1.sorted"
    awk '{ print "void " $1 "(void); void " $1 "(void) {}" }' "$out/$1.sorted" >"$out/$1.c"
    # versions in ascending order, each a node of the script
    sort -k2,2V -k1,1 "$out/$1.sorted" |
        awk '$2 != node { if (node) print "};"; node = $2; print node " {" } { print "  " $1 ";" } END { if (node) print "};" }' >"$out/$1.map"
    $cc -shared -nostdlib -fno-builtin -w -fPIC -o "$out/$1" "$out/$1.c" -Wl,-soname,"$1" -Wl,--version-script="$out/$1.map"
}

version_filter='{ print }'
base=GLIBC_2.2.5
if [ "$arch" != x86_64 ]; then
    version_filter='{ print $1, "GLIBC_2.17" }'
    base=GLIBC_2.17
fi
grep -v '^#' "$here/libc-symbols.txt" | awk "$version_filter" >"$out/libc.so.6.list"
printf 'dlopen %s\ndlsym %s\ndlclose %s\n' $base $base $base >"$out/libdl.so.2.list"
stub libc.so.6
stub libdl.so.2
