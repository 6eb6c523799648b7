#!/bin/bash
# First process of the Soft-RoCE guest. The host's root is mounted read-only; an overlay in memory makes it writable
# without touching the host. /ring is a host directory shared with the driver (guest.py): job N is the script /ring/N.sh,
# its output goes to /ring/N.out, its process number to /ring/N.pid and its exit status to /ring/N.rc. The serial line
# carries "N SECONDS NODE" in and "N" out once job N is over; it stays this short because its input path hangs on long
# lines.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8

if [ "$1" != inside ]; then
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    mount -t tmpfs memory /mnt
    mkdir /mnt/upper /mnt/work /mnt/root
    mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root /mnt/root
    cd /mnt/root || exit
    mount --move /proc proc
    mount --move /sys sys
    mount -t devtmpfs dev dev
    mkdir ring
    mount -t hostfs share ring -o "$ring_dir"
    mount --move . /
    exec chroot . "$0" inside
fi

mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount --bind /ring/cpuinfo /proc/cpuinfo # perftest looks for a clock rate, which the guest's own lacks,
mount -t tmpfs bus /proc/bus             # and for a PCI bus, of which it then uses nothing
mkdir /proc/bus/pci
touch /proc/bus/pci/devices
echo 1 > /sys/kernel/rcu_expedited       # name spaces and links come and go without waiting for idle processors
ulimit -l unlimited

job() {
    # -c, not the file: a script's last command then takes the shell's place, and signals meant for it reach it
    script="echo \$\$ > /ring/$1.pid"$'\n'$(< "/ring/$1.sh")
    timeout --kill-after=2 "$2" ${3:+ip netns exec "$3"} bash -c "$script" < /dev/null > "/ring/$1.out" 2>&1
    echo $? > "/ring/$1.rc"
    echo "$1" > /dev/ttyS0
}

stty -F /dev/ttyS0 raw -echo
exec 3< /dev/ttyS0
echo 0 > /dev/ttyS0
while read -r id seconds node <&3; do
    job "$id" "$seconds" "$node" &
done
