# Shell functions for cases. Include them with `. tests/guest/lib.sh`; cases run in the repository root.

# Prints the addresses of the PCI devices VENDOR DEVICE, one per line.
pci_devices() {
    local folder
    for folder in /sys/bus/pci/devices/*; do
        if [ "$(cat "$folder/vendor")" = "$1" ] && [ "$(cat "$folder/device")" = "$2" ]; then
            basename "$folder"
        fi
    done
}

# Each function prints an address: of the DMA device, of the DMA device with a defective address line, and of the memory
# device that represents a GPU.
edu() { pci_devices 0x1234 0x11e8 | head -n 1; }
broken_edu() { pci_devices 0x1234 0x11e8 | tail -n 1; }
memory() { pci_devices 0x1af4 0x1110 | head -n 1; }

# Binds a device to vfio-pci: bind_vfio ADDRESS.
bind_vfio() {
    modprobe -a vfio-pci vfio_iommu_type1 && bind "$1" vfio-pci
}

# Binds a device to a driver, unbinding it from its current one: bind ADDRESS DRIVER.
bind() {
    local device=/sys/bus/pci/devices/$1
    unbind "$1"
    echo "$2" >"$device/driver_override" && echo "$1" >/sys/bus/pci/drivers_probe
    [ "$(basename "$(readlink "$device/driver")")" = "$2" ]
}

# Unbinds a device from its driver: unbind ADDRESS.
unbind() {
    local device=/sys/bus/pci/devices/$1
    [ ! -e "$device/driver" ] || echo "$1" >"$device/driver/unbind"
    echo >"$device/driver_override"
}

# Prints the number of accesses that the IOMMU has blocked since boot.
iommu_faults() { dmesg | grep -c 'DMAR:.*fault addr' || true; }

# Prints the first value, or the second one in a full run: in_full SHORT LONG.
in_full() { if [ "$DAQ_GUEST_FULL" = yes ]; then echo "$2"; else echo "$1"; fi; }

# on_peer LINE: runs a shell line on the second guest, in the repository root, and prints its output. To start a
# background program, redirect its output and add &.
on_peer() {
    printf 'cd %q; %s\nexit\n' "$PWD" "$*" | "$DAQ_GUEST_KERNEL/bin/busybox" nc -w "${PEER_LIMIT:-120}" 10.77.0.2 7000
}

# Waits until the second guest replies.
await_peer() {
    local tries
    for tries in $(seq 60); do
        [ "$(on_peer 'echo here' 2>/dev/null)" != here ] || return 0
        sleep 1
    done
    echo "the second guest does not reply after $tries tries"
    return 1
}

# Sets the paths of the RDMA libraries and third-party RDMA programs, for this shell and its children.
export LD_LIBRARY_PATH=$DAQ_GUEST_KERNEL/usr/lib/x86_64-linux-gnu
export PATH=$PATH:$DAQ_GUEST_KERNEL/usr/bin:$DAQ_GUEST_KERNEL/usr/sbin

# Creates a soft-RoCE NIC on a network interface and waits until it has a RoCE v2 address: soft_roce NIC INTERFACE.
soft_roce() {
    local index tries
    if [ ! -e /etc/libibverbs.d/rxe.driver ]; then
        # The library searches for its drivers only in one directory.
        mkdir -p /etc/libibverbs.d /usr/lib/x86_64-linux-gnu/libibverbs
        cp "$DAQ_GUEST_KERNEL"/etc/libibverbs.d/rxe.driver /etc/libibverbs.d/
        cp "$DAQ_GUEST_KERNEL"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-* /usr/lib/x86_64-linux-gnu/libibverbs/
    fi
    # rdma_rxe needs the CRC module but does not declare this dependency.
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

# Prints the index of a NIC's first IPv4 RoCE v2 address: gid_index NIC.
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
