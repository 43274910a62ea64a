#!/bin/sh
# The first process of the virtual machine: mounts what every Linux has, runs
# the agent, switches off. The agent does all else.
export PATH=/usr/sbin:/usr/bin:/lab/files HOME=/root LANG=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts /run /tmp /var/run
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
echo "lab: userland after $(cut -d' ' -f1 /proc/uptime) s, Linux $(uname -r)"
ulimit -l unlimited
ip link set lo up
/lab/agent || echo "lab: the agent failed with status $?"
echo "lab: off after $(cut -d' ' -f1 /proc/uptime) s"
poweroff -f
