#!/bin/bash
# Lays the simulated driver into the root file system of a node, as a driver package would, with a unit that "loads" it at boot.
#
#   install.sh ROOTFS [--build FOLDER] [--driver VERSION] [--card NAME[,NAME...]] [--cards N] [--model NAME]
#              [--uuid-seed NAME] [--set KEY=VALUE]...
#
# ROOTFS gets the libraries (usr/lib/x86_64-linux-gnu), nvidia-smi and tenfold-sim (usr/bin), the card profiles, what the machine is
# (etc/tenfold-sim/machine.conf) and tenfold-sim.service, which makes /run/nvidia-persistenced/socket and the device nodes before
# containerd and the kubelet start. A second run with the same arguments changes nothing; with another driver it replaces the old one.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
rootfs=${1:?"usage: install.sh ROOTFS [--build FOLDER] [--driver VERSION] [--card NAME] [--cards N] [--model NAME] [--uuid-seed NAME] [--set KEY=VALUE]"}
shift
build=$here/build driver=535.161.08 card=a800-80gb cards=2 model=ideal seed="" settings=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || { echo "install.sh: $1 needs a value" >&2; exit 2; }
  case $1 in
    --build) build=$2 ;;
    --driver) driver=$2 ;;
    --card) card=$2 ;;
    --cards) cards=$2 ;;
    --model) model=$2 ;;
    --uuid-seed) seed=$2 ;;
    --set) settings+=("$2") ;;
    *) echo "install.sh: unknown option '$1'" >&2; exit 2 ;;
  esac
  shift 2
done
[ -d "$rootfs/usr" ] || { echo "install.sh: '$rootfs' is no root file system: it has no usr/" >&2; exit 2; }

make -s -C "$here" BUILD="$build"
# A branch such as 535 becomes the version that the profiles give it; a try-out machine says which, and whether all options are good.
trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
options=(--card "$card" --cards "$cards" --driver "$driver" --model "$model")
[ -z "$seed" ] || options+=(--uuid-seed "$seed")
for setting in "${settings[@]+"${settings[@]}"}"; do options+=(--set "$setting"); done
"$build/tenfold-sim" --state "$trial/state" init "${options[@]}"
driver=$("$build/tenfold-sim" --state "$trial/state" info | sed -n 's/^driver \([^,]*\),.*/\1/p')

library=$rootfs/usr/lib/x86_64-linux-gnu
mkdir -p "$library" "$rootfs/usr/bin" "$rootfs/usr/share/tenfold-sim" "$rootfs/etc/tenfold-sim" \
  "$rootfs/usr/lib/systemd/system" "$rootfs/etc/systemd/system/sysinit.target.wants"
# What is right already keeps its inode and time.
put() { cmp -s "$1" "$2" || install -m "$3" "$1" "$2"; }
point() { [ "$(readlink "$2")" = "$1" ] || ln -sfn "$1" "$2"; }

for name in libcuda libnvidia-ml; do
  for old in "$library/$name".so.[0-9][0-9]*; do
    [ "$old" = "$library/$name.so.$driver" ] || rm -f "$old"
  done
  put "$build/$name.so.1" "$library/$name.so.$driver" 0755
  point "$name.so.$driver" "$library/$name.so.1"
  point "$name.so.1" "$library/$name.so"
done
put "$build/nvidia-smi" "$rootfs/usr/bin/nvidia-smi" 0755
put "$build/tenfold-sim" "$rootfs/usr/bin/tenfold-sim" 0755
if ! diff -rq "$here/profiles" "$rootfs/usr/share/tenfold-sim/profiles" > /dev/null 2>&1; then
  rm -rf "$rootfs/usr/share/tenfold-sim/profiles"
  cp -r "$here/profiles" "$rootfs/usr/share/tenfold-sim/profiles"
fi

{
  echo "# What tenfold-sim.service makes at boot: options of \`tenfold-sim init\`, one a line."
  printf 'card %s\ncards %s\ndriver %s\nmodel %s\ndevice-nodes required\n' "$card" "$cards" "$driver" "$model"
  [ -z "$seed" ] || echo "uuid-seed $seed"
  for setting in "${settings[@]+"${settings[@]}"}"; do echo "set $setting"; done
} > "$trial/machine.conf"
put "$trial/machine.conf" "$rootfs/etc/tenfold-sim/machine.conf" 0644

cat > "$trial/unit" <<'UNIT'
[Unit]
Description=Simulated NVIDIA driver
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target containerd.service docker.service kubelet.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/tenfold-sim boot --config /etc/tenfold-sim/machine.conf

[Install]
WantedBy=sysinit.target
UNIT
put "$trial/unit" "$rootfs/usr/lib/systemd/system/tenfold-sim.service" 0644
point /usr/lib/systemd/system/tenfold-sim.service "$rootfs/etc/systemd/system/sysinit.target.wants/tenfold-sim.service"
# The loader's cache, if the root file system has one; without it the default path is searched, which finds the libraries too.
[ ! -e "$rootfs/etc/ld.so.cache" ] || ldconfig -r "$rootfs" 2>/dev/null || true
