#!/bin/sh
# Checks that a release binary needs only glibc's libraries, of version 2.28 or older.
set -e
needed=$(objdump -p "$1" | awk '/NEEDED/{print $2}')
for lib in $needed; do
    case $lib in
    libc.so.6 | libm.so.6 | libgcc_s.so.1 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-x86-64.so.2) ;;
    *) echo "$1 needs $lib" >&2; exit 1 ;;
    esac
done
newest=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
if [ "$(printf '%s\nGLIBC_2.28\n' "$newest" | sort -V | tail -n 1)" != GLIBC_2.28 ]; then
    echo "$1 needs $newest, more than GLIBC_2.28" >&2
    exit 1
fi
echo "$1: $(du -h "$1" | cut -f1), needs" $needed "up to $newest"
