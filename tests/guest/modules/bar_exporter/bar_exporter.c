// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * For tests: exports a BAR as a dynamic dma-buf, which represents a GPU's memory. Flags make it behave like exporters
 * with defects. The attachments, pins and maps of importers are counted in /sys/module/bar_exporter/parameters.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "bar_exporter.h"

struct bar {
	struct pci_dev *pdev;
	phys_addr_t start;
	size_t bytes;
	u32 flags;
	int pins;	/* reservation */
};

static DEFINE_MUTEX(counts_lock);
static int attachments, pins, maps, buffers;
module_param(attachments, int, 0444);
module_param(pins, int, 0444);
module_param(maps, int, 0444);
module_param(buffers, int, 0444);

static void count(int *what, int change)
{
	mutex_lock(&counts_lock);
	*what += change;
	mutex_unlock(&counts_lock);
}

static int bar_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	if (!attach->peer2peer)
		return -EOPNOTSUPP;
	count(&attachments, 1);
	return 0;
}

static void bar_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attach)
{
	count(&attachments, -1);
}

static int bar_pin(struct dma_buf_attachment *attach)
{
	struct bar *bar = attach->dmabuf->priv;

	dma_resv_assert_held(attach->dmabuf->resv);
	if (bar->flags & BAR_EXPORT_NO_PIN)
		return -EAGAIN;
	/* Like a GPU driver, which moves memory before it pins the memory. */
	if (!bar->pins++)
		dma_buf_move_notify(attach->dmabuf);
	count(&pins, 1);
	return 0;
}

static void bar_unpin(struct dma_buf_attachment *attach)
{
	struct bar *bar = attach->dmabuf->priv;

	dma_resv_assert_held(attach->dmabuf->resv);
	bar->pins--;
	count(&pins, -1);
}

static void bar_unmap(struct dma_buf_attachment *attach, struct sg_table *table, enum dma_data_direction direction)
{
	struct bar *bar = attach->dmabuf->priv;
	struct scatterlist *sg;
	int i;

	dma_resv_assert_held(attach->dmabuf->resv);
	for_each_sgtable_dma_sg(table, sg, i)
		if (sg_dma_len(sg) && !(bar->flags & BAR_EXPORT_BARE))
			dma_unmap_resource(attach->dev, sg_dma_address(sg), sg_dma_len(sg), direction, 0);
	sg_free_table(table);
	kfree(table);
	count(&maps, -1);
}

static struct sg_table *bar_map(struct dma_buf_attachment *attach, enum dma_data_direction direction)
{
	struct bar *bar = attach->dmabuf->priv;
	size_t bytes = bar->bytes - (bar->flags & BAR_EXPORT_SHORT ? PAGE_SIZE : 0);
	size_t piece = bar->flags & BAR_EXPORT_PAGES ? PAGE_SIZE : bytes;
	unsigned int pieces = bytes / piece;
	struct scatterlist *sg;
	struct sg_table *table;
	int i;

	dma_resv_assert_held(attach->dmabuf->resv);
	if (bar->flags & BAR_EXPORT_NO_MAP)
		return ERR_PTR(-ENOBUFS);
	table = kzalloc(sizeof(*table), GFP_KERNEL);
	if (!table)
		return ERR_PTR(-ENOMEM);
	if (sg_alloc_table(table, pieces, GFP_KERNEL)) {
		kfree(table);
		return ERR_PTR(-ENOMEM);
	}
	count(&maps, 1);
	for_each_sgtable_dma_sg(table, sg, i) {
		phys_addr_t at = bar->start + (size_t)(pieces - 1 - i) * piece;
		dma_addr_t address = at;

		if (!(bar->flags & BAR_EXPORT_BARE)) {
			/* Linux logs a warning if a device without an IOMMU cannot reach an address. EDU reaches 28 bits while its driver is bound. */
			bool in_reach = device_iommu_mapped(attach->dev) || at + piece - 1 <= dma_get_mask(attach->dev);

			address = in_reach ? dma_map_resource(attach->dev, at, piece, direction, 0) : DMA_MAPPING_ERROR;
			if (dma_mapping_error(attach->dev, address)) {
				/* This unmaps only the pieces that were mapped, because the others have no length. */
				bar_unmap(attach, table, direction);
				return ERR_PTR(-EIO);
			}
		}
		sg_set_page(sg, NULL, piece, 0);
		sg_dma_address(sg) = address;
		sg_dma_len(sg) = piece;
	}
	return table;
}

static void bar_release(struct dma_buf *dmabuf)
{
	struct bar *bar = dmabuf->priv;

	pci_dev_put(bar->pdev);
	kfree(bar);
	count(&buffers, -1);
}

static const struct dma_buf_ops bar_ops = {
	.attach = bar_attach,
	.detach = bar_detach,
	.pin = bar_pin,
	.unpin = bar_unpin,
	.map_dma_buf = bar_map,
	.unmap_dma_buf = bar_unmap,
	.release = bar_release,
};

static long bar_export(struct bar_export __user *user)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct bar_export arg;
	struct dma_buf *dmabuf;
	struct bar *bar;
	int fd;

	if (copy_from_user(&arg, user, sizeof(arg)))
		return -EFAULT;
	if (arg.bar >= PCI_STD_NUM_BARS)
		return -EINVAL;
	bar = kzalloc(sizeof(*bar), GFP_KERNEL);
	if (!bar)
		return -ENOMEM;
	bar->pdev = pci_get_domain_bus_and_slot(arg.domain, arg.bus, arg.devfn);
	if (!bar->pdev || !pci_resource_len(bar->pdev, arg.bar)) {
		pci_dev_put(bar->pdev);
		kfree(bar);
		return -ENODEV;
	}
	bar->start = pci_resource_start(bar->pdev, arg.bar);
	bar->bytes = min_t(u64, pci_resource_len(bar->pdev, arg.bar), BAR_EXPORT_BYTES);
	bar->flags = arg.flags;
	info.ops = &bar_ops;
	info.size = bar->bytes;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = bar;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		pci_dev_put(bar->pdev);
		kfree(bar);
		return PTR_ERR(dmabuf);
	}
	count(&buffers, 1);
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}

static long bar_move(int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	if (dmabuf->ops != &bar_ops) {
		dma_buf_put(dmabuf);
		return -EINVAL;
	}
	dma_resv_lock(dmabuf->resv, NULL);
	dma_buf_move_notify(dmabuf);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_put(dmabuf);
	return 0;
}

static long bar_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	switch (cmd) {
	case BAR_EXPORT:
		return bar_export((struct bar_export __user *)arg);
	case BAR_MOVE:
		return bar_move(arg);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations bar_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = bar_ioctl,
};

static struct miscdevice bar_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "bar_exporter",
	.fops = &bar_fops,
	.mode = 0600,
};
module_misc_device(bar_misc);

MODULE_DESCRIPTION("Exports a BAR as a dma-buf, for tests");
MODULE_LICENSE("Dual MIT/GPL");
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif
