# Functions for cases of kmod/daq_dmabuf: . tests/guest/dmabuf.sh (cases run in the repository root).
. tests/guest/lib.sh
probe=$DAQ_BIN/dmabuf_probe

# Loads the module, and modules that replace a GPU's and a card's driver. Ends the case if one is missing.
for module in daq_dmabuf bar_exporter edu_driver; do
    if [ ! -e "$DAQ_GUEST_MODULES/$module.ko" ]; then
        echo "skip $(basename "$0"): $module.ko was not built"
        exit 0
    fi
    lsmod | grep -q "^$module " || insmod "$DAQ_GUEST_MODULES/$module.ko" || exit 1
done
if [ ! -x "$probe" ]; then
    echo "skip $(basename "$0"): $probe was not built; run cargo build -p daq-guest-programs"
    exit 0
fi

# Prints the translation of edu's DMA: DMA (translated), identity (not translated) or none (no IOMMU).
translation() {
    local type
    type=$(cat "/sys/bus/pci/devices/$(edu)/iommu_group/type" 2>/dev/null) || type=none
    echo "${type%-FQ}"
}

# Fails unless the guest was booted with TRANSLATION: booted_with TRANSLATION.
booted_with() {
    if [ "$(translation)" != "$1" ]; then
        echo "FAIL $(basename "$0"): booted with translation $(translation), not $1"
        exit 0
    fi
}

# Fails if Linux has logged a warning, or if the module cannot be unloaded because it leaks a reference.
no_complaint() {
    local complaint
    # A soft lockup only means that the machine is slow.
    complaint=$(dmesg | grep -E 'BUG: |WARNING: |Oops|KASAN|UBSAN|list_(add|del) corruption|refcount_t' |
        grep -v 'soft lockup' | head -n 1)
    if [ -n "$complaint" ]; then
        echo "FAIL $(basename "$0"): Linux logged an error: $complaint"
    elif ! rmmod daq_dmabuf || ! rmmod bar_exporter || ! rmmod edu_driver; then
        echo "FAIL $(basename "$0"): a module cannot be unloaded"
    else
        echo "ok $(basename "$0"): Linux logged no errors, and all modules were unloaded"
    fi
}
