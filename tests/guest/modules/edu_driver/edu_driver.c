// SPDX-License-Identifier: MIT OR GPL-2.0
/* For tests: a driver for QEMU's edu device that represents the own driver of a card. It only occupies the device. */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/pci.h>

static int edu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int err = pcim_enable_device(pdev);

	if (err)
		return err;
	pci_set_master(pdev);
	return dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
}

/* The driver binds only if driver_override names it, because other tests need the device without a driver. */
static const struct pci_device_id edu_ids[] = {
	{ PCI_DEVICE_DRIVER_OVERRIDE(0x1234, 0x11e8, 1) },
	{ }
};

static struct pci_driver edu_driver = {
	.name = "edu_driver",
	.id_table = edu_ids,
	.probe = edu_probe,
};
module_pci_driver(edu_driver);

MODULE_DESCRIPTION("Holds QEMU's edu device, for tests");
MODULE_LICENSE("Dual MIT/GPL");
