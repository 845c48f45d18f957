#!/bin/sh
# Installs the Debian packages that mxlua is built, tested and checked with.
#
#   scripts/install_packages.sh [--check] build|test|slurm|fuzz|lint ...
#
# Installed packages are skipped. If this user may not install packages, the script prints the exact command and exits
# with status 1. --check never installs.
set -eu

packages_build="gcc libc6-dev make pkg-config lua5.4 liblua5.4-dev libopenblas-openmp-dev libyaml-dev mpich libmpich-dev
libhdf5-mpich-dev libjansson-dev libpcre2-dev libutf8proc-dev zlib1g-dev
libzstd-dev"
packages_test="lua-unit"
packages_slurm="slurmctld slurmd slurm-client munge"
packages_fuzz="clang libclang-rt-dev libomp-dev"
packages_lint="clang-format clang-tidy libomp-14-dev lua-check"

check=
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi

if ! command -v dpkg-query >/dev/null; then
    echo "mxlua: this is not Debian; install these packages, or their equivalents:" $packages_build >&2
    exit 0
fi

wanted=
for group in "$@"; do
    case $group in
    build) wanted="$wanted $packages_build" ;;
    test) wanted="$wanted $packages_test" ;;
    slurm) wanted="$wanted $packages_slurm" ;;
    fuzz) wanted="$wanted $packages_fuzz" ;;
    lint) wanted="$wanted $packages_lint" ;;
    *)
        echo "usage: $0 [--check] build|test|slurm|fuzz|lint ..." >&2
        exit 1
        ;;
    esac
done

missing=
for package in $wanted; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=sudo
[ "$(id -u)" != 0 ] || sudo=
command="apt-get update && ${sudo:+$sudo }apt-get install --yes --no-install-recommends$missing"
if [ -n "$check" ] || { [ -n "$sudo" ] && ! sudo -n true 2>/dev/null; }; then
    echo "mxlua: packages are missing. Install them with" >&2
    echo "    ${sudo:+$sudo }$command" >&2
    exit 1
fi

echo "mxlua: installing$missing"
install() {
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends -qq $missing >"$log" 2>&1
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists may be missing (a fresh container) or out of date: fetch them, and try again.
if ! install; then
    $sudo apt-get update -qq >>"$log" 2>&1 || true
    if ! install; then
        tail -n 20 "$log" >&2
        echo "mxlua: the packages could not be installed; the command was" >&2
        echo "    ${sudo:+$sudo }$command" >&2
        exit 1
    fi
fi
