# For cases in the shell: . tests/guest/lib.sh (cases run in the root of the repository).

# The addresses of the PCI devices VENDOR DEVICE, one a line.
pci_devices() {
    local folder
    for folder in /sys/bus/pci/devices/*; do
        if [ "$(cat "$folder/vendor")" = "$1" ] && [ "$(cat "$folder/device")" = "$2" ]; then
            basename "$folder"
        fi
    done
}

# The addresses of the DMA device, of the one with a broken address line, and of the memory device that stands for a GPU.
edu() { pci_devices 0x1234 0x11e8 | head -n 1; }
broken_edu() { pci_devices 0x1234 0x11e8 | tail -n 1; }
memory() { pci_devices 0x1af4 0x1110 | head -n 1; }

# Gives a device to vfio-pci: bind_vfio ADDRESS.
bind_vfio() {
    modprobe -a vfio-pci vfio_iommu_type1 && bind "$1" vfio-pci
}

# Gives a device to a driver, from whichever it has: bind ADDRESS DRIVER.
bind() {
    local device=/sys/bus/pci/devices/$1
    unbind "$1"
    echo "$2" >"$device/driver_override" && echo "$1" >/sys/bus/pci/drivers_probe
    [ "$(basename "$(readlink "$device/driver")")" = "$2" ]
}

# Takes a device from its driver: unbind ADDRESS.
unbind() {
    local device=/sys/bus/pci/devices/$1
    [ ! -e "$device/driver" ] || echo "$1" >"$device/driver/unbind"
    echo >"$device/driver_override"
}

# How many accesses the IOMMU has refused since the boot.
iommu_faults() { dmesg | grep -c 'DMAR:.*fault addr' || true; }

# The first of two values, in a full run the second: in_full SHORT LONG.
in_full() { if [ "$DAQ_GUEST_FULL" = yes ]; then echo "$2"; else echo "$1"; fi; }

# Runs a line of shell on the second guest, in the root of the repository, and prints what it prints; a program that is
# to go on needs its own output and an &: on_peer LINE.
on_peer() {
    printf 'cd %q; %s\nexit\n' "$PWD" "$*" | "$DAQ_GUEST_KERNEL/bin/busybox" nc -w "${PEER_LIMIT:-120}" 10.77.0.2 7000
}

# Waits until the second guest answers.
await_peer() {
    local tries
    for tries in $(seq 60); do
        [ "$(on_peer 'echo here' 2>/dev/null)" != here ] || return 0
        sleep 1
    done
    echo "the second guest does not answer after $tries tries"
    return 1
}

# Where the libraries of RDMA and foreign programs over them are, for this shell and what it starts.
export LD_LIBRARY_PATH=$DAQ_GUEST_KERNEL/usr/lib/x86_64-linux-gnu
export PATH=$PATH:$DAQ_GUEST_KERNEL/usr/bin:$DAQ_GUEST_KERNEL/usr/sbin

# Makes a network interface an RDMA card of software: soft_roce CARD INTERFACE; 0 once it has an address of version 2.
soft_roce() {
    local index tries
    if [ ! -e /etc/libibverbs.d/rxe.driver ]; then
        # The library looks for its drivers in one place alone.
        mkdir -p /etc/libibverbs.d /usr/lib/x86_64-linux-gnu/libibverbs
        cp "$DAQ_GUEST_KERNEL"/etc/libibverbs.d/rxe.driver /etc/libibverbs.d/
        cp "$DAQ_GUEST_KERNEL"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-* /usr/lib/x86_64-linux-gnu/libibverbs/
    fi
    # The checksum of its packets is a module of its own that it does not name.
    modprobe -a crc32_generic ib_uverbs rdma_rxe rdma_ucm || return 1
    rdma link add "$1" type rxe netdev "$2" || return 1
    for tries in $(seq 100); do
        for index in 0 1 2 3; do
            if grep -qs 'RoCE v2' "/sys/class/infiniband/$1/ports/1/gid_attrs/types/$index" &&
                grep -qs '0000:ffff:' "/sys/class/infiniband/$1/ports/1/gids/$index"; then
                return 0
            fi
        done
        sleep 0.1
    done
    echo "$1 has no address after $tries tries"
    return 1
}

# The index of a card's first IPv4 address of version 2: gid_index CARD.
gid_index() {
    local index
    for index in 0 1 2 3; do
        if grep -qs 'RoCE v2' "/sys/class/infiniband/$1/ports/1/gid_attrs/types/$index" &&
            grep -qs '0000:ffff:' "/sys/class/infiniband/$1/ports/1/gids/$index"; then
            echo "$index"
            return
        fi
    done
}
