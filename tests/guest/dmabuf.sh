# For the cases of kmod/daq_dmabuf: . tests/guest/dmabuf.sh (cases run in the root of the repository).
. tests/guest/lib.sh
probe=$DAQ_BIN/dmabuf_probe

# Loads the module, and those that stand in for a GPU's driver and a card's; ends the case where they are missing.
for module in daq_dmabuf bar_exporter edu_driver; do
    if [ ! -e "$DAQ_GUEST_MODULES/$module.ko" ]; then
        echo "skip $(basename "$0"): $module.ko was not built"
        exit 0
    fi
    lsmod | grep -q "^$module " || insmod "$DAQ_GUEST_MODULES/$module.ko" || exit 1
done
if [ ! -x "$probe" ]; then
    echo "skip $(basename "$0"): $probe was not built: cargo build -p daq-guest-programs"
    exit 0
fi

# Whether edu's DMA is translated (DMA), is not (identity), or passes no IOMMU (none).
translation() {
    local type
    type=$(cat "/sys/bus/pci/devices/$(edu)/iommu_group/type" 2>/dev/null) || type=none
    echo "${type%-FQ}"
}

# Fails unless the guest booted with the translation that the case is for: booted_with TRANSLATION.
booted_with() {
    if [ "$(translation)" != "$1" ]; then
        echo "FAIL $(basename "$0"): booted with translation $(translation), not $1"
        exit 0
    fi
}

# Fails if the kernel has complained, or the module cannot be unloaded: what it holds has leaked.
no_complaint() {
    local complaint
    # A soft lockup is a slow machine's.
    complaint=$(dmesg | grep -E 'BUG: |WARNING: |Oops|KASAN|UBSAN|list_(add|del) corruption|refcount_t' |
        grep -v 'soft lockup' | head -n 1)
    if [ -n "$complaint" ]; then
        echo "FAIL $(basename "$0"): the kernel complains: $complaint"
    elif ! rmmod daq_dmabuf || ! rmmod bar_exporter || ! rmmod edu_driver; then
        echo "FAIL $(basename "$0"): a module cannot be unloaded"
    else
        echo "ok $(basename "$0"): no complaint from the kernel, nothing left behind"
    fi
}
