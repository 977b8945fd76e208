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
