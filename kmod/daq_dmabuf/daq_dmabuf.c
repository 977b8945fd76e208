// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The bus addresses of a dma-buf for a PCI device that has its own driver or none.
 *
 * User space, or a driver without dma-buf support, programs the DMA engine of such a device. This module attaches the
 * device to the dma-buf, pins and maps the memory, and returns the addresses. It never accesses the engine. The only
 * change that it makes to a device is to disable bus mastering when no process is left that could stop the engine.
 *
 * Locks, outermost first: the file's mutex, the lock of the device, the map's mutex, the list's mutex or the
 * reservation of the dma-buf. The exporter calls move_notify with the reservation held, so it may use atomics only.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/iommu.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/pci-p2pdma.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/xarray.h>

#include "daq_dmabuf.h"

#define DAQ_DIRECTIONS	(DAQ_DMABUF_TO_DEVICE | DAQ_DMABUF_FROM_DEVICE)

struct daq_file {
	struct mutex lock;	/* protects the handles; serialises calls */
	struct xarray maps;	/* handle -> struct daq_map */
	u32 next;
};

struct daq_map {
	struct kref ref;	/* one of the file, and one during a teardown from the list */
	struct list_head node;	/* in daq_maps before the attachment exists until after it is detached */
	struct mutex lock;	/* protects attach, pinned, sgt */
	struct pci_dev *pdev;
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attach;	/* NULL: torn down */
	bool pinned;
	struct sg_table *sgt;	/* changed only with the reservation also held */
	enum dma_data_direction dir;
	struct eventfd_ctx *revoke_event;
	atomic_t reason;	/* 0: live */
	bool mask_set;		/* this module changed the device's mask from old_mask; list mutex */
	u64 old_mask;
	struct daq_dmabuf_segment *segments;
	u32 nsegments;
	s32 distance;
};

static LIST_HEAD(daq_maps);
static DEFINE_MUTEX(daq_maps_lock);

static void daq_map_revoke(struct daq_map *map, int reason)
{
	if (atomic_cmpxchg(&map->reason, 0, reason) || !map->revoke_event)
		return;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	eventfd_signal(map->revoke_event);
#else
	eventfd_signal(map->revoke_event, 1);
#endif
}

static void daq_move_notify(struct dma_buf_attachment *attach)
{
	struct daq_map *map = attach->importer_priv;

	/* Pinning may move the memory to a place that the device can access. No caller has its addresses yet. */
	if (map->sgt)
		daq_map_revoke(map, DAQ_DMABUF_MOVED);
}

static const struct dma_buf_attach_ops daq_attach_ops = {
	.allow_peer2peer = true,
#ifdef DAQ_INVALIDATE_MAPPINGS
	.invalidate_mappings = daq_move_notify,
#else
	.move_notify = daq_move_notify,
#endif
};

/* The caller must hold the list's mutex. */
static struct daq_map *daq_map_find(struct pci_dev *pdev)
{
	struct daq_map *map;

	list_for_each_entry(map, &daq_maps, node)
		if (map->pdev == pdev)
			return map;
	return NULL;
}

/*
 * Adds the map to the list. If no driver has done so, sets the DMA mask to the width of the engine's addresses. The mask
 * must not change while a mapping exists, so all maps of a device share one mask. The last map restores the old mask.
 */
static int daq_map_list(struct daq_map *map, u32 address_bits)
{
	struct device *dev = &map->pdev->dev;
	struct daq_map *other;
	int err = 0;

	mutex_lock(&daq_maps_lock);
	other = daq_map_find(map->pdev);
	if (other) {
		map->mask_set = other->mask_set;
		map->old_mask = other->old_mask;
		if (address_bits && dma_get_mask(dev) != DMA_BIT_MASK(address_bits))
			err = -EBUSY;
	} else if (address_bits) {
		map->mask_set = true;
		map->old_mask = dma_get_mask(dev);
		err = dma_set_mask(dev, DMA_BIT_MASK(address_bits));
	}
	if (!err)
		list_add(&map->node, &daq_maps);
	mutex_unlock(&daq_maps_lock);
	return err;
}

static void daq_map_unlist(struct daq_map *map)
{
	mutex_lock(&daq_maps_lock);
	if (!list_empty(&map->node)) {
		list_del_init(&map->node);
		if (map->mask_set && !daq_map_find(map->pdev))
			dma_set_mask(&map->pdev->dev, map->old_mask);
	}
	mutex_unlock(&daq_maps_lock);
}

/*
 * Stops the device's DMA and waits for transactions in flight. The completion of the config read cannot overtake writes
 * that the device sent earlier. The device's own reads are also waited for, although a late completion would not change
 * any memory.
 */
static void daq_device_stop(struct pci_dev *pdev)
{
	u16 command;

	pci_clear_master(pdev);
	pci_read_config_word(pdev, PCI_COMMAND, &command);
	if (!pci_wait_for_pending_transaction(pdev))
		pci_warn(pdev, "transactions are still pending after bus mastering was disabled\n");
}

/*
 * Removes all parts of a mapping that exist, in an order that keeps the device from accessing freed memory. Idempotent.
 */
static void daq_map_undo(struct daq_map *map)
{
	struct dma_resv *resv = map->dmabuf->resv;

	lockdep_assert_held(&map->lock);
	if (map->attach) {
		dma_resv_lock(resv, NULL);
		if (map->sgt)
			dma_buf_unmap_attachment(map->attach, map->sgt, map->dir);
		map->sgt = NULL;
		if (map->pinned)
			dma_buf_unpin(map->attach);
		map->pinned = false;
		dma_resv_unlock(resv);
		dma_buf_detach(map->dmabuf, map->attach);
		map->attach = NULL;
	}
	daq_map_unlist(map);
}

static void daq_map_teardown(struct daq_map *map, bool stop)
{
	mutex_lock(&map->lock);
	if (map->attach && stop) {
		pci_info(map->pdev, "mapping not unmapped before close or unbind: disabling bus mastering\n");
		daq_device_stop(map->pdev);
	}
	daq_map_undo(map);
	mutex_unlock(&map->lock);
}

static void daq_map_free(struct kref *ref)
{
	struct daq_map *map = container_of(ref, struct daq_map, ref);

	if (map->revoke_event)
		eventfd_ctx_put(map->revoke_event);
	if (map->dmabuf)
		dma_buf_put(map->dmabuf);
	pci_dev_put(map->pdev);
	kvfree(map->segments);
	mutex_destroy(&map->lock);
	kfree(map);
}

static void daq_map_put(struct daq_map *map)
{
	kref_put(&map->ref, daq_map_free);
}

/*
 * Checks that the DMA API may map memory for this device. @translated: out: the domain whose page table translates the
 * device's addresses, or NULL. The caller must hold the device's lock, so that no driver is bound or unbound meanwhile.
 */
static int daq_device_check(struct pci_dev *pdev, u32 address_bits, struct iommu_domain **translated)
{
	struct pci_driver *driver = to_pci_driver(pdev->dev.driver);
	struct iommu_domain *domain;

	if (pdev->hdr_type != PCI_HEADER_TYPE_NORMAL)
		return -EINVAL;
	if (!pci_device_is_present(pdev))
		return -ENODEV;
	/* vfio-pci and similar drivers, and stubs that reserve a device for them. */
	if (driver && driver->driver_managed_dma)
		return -EBUSY;
	if (driver && address_bits)
		return -EEXIST;
	domain = iommu_get_domain_for_dev(&pdev->dev);
	*translated = NULL;
	if (!domain || domain->type == IOMMU_DOMAIN_IDENTITY)
		return 0;
	if (!(domain->type & __IOMMU_DOMAIN_DMA_API))
		return -EBUSY;
	*translated = domain;
	return 0;
}

/* Checks that the device can access every page of the segment at the exporter's address. */
static int daq_segment_check(struct device *dev, struct iommu_domain *translated,
			     const struct daq_dmabuf_segment *segment)
{
	u64 last = segment->address + segment->bytes - 1;
	u64 page = segment->address;

	if (last < segment->address || last > dma_get_mask(dev))
		return -EREMOTEIO;
	for (;;) {
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		/* Some exporters return physical addresses, which the IOMMU does not map. */
		if (translated && !iommu_iova_to_phys(translated, page))
			return -EREMOTEIO;
		/* A bounce buffer: the device's writes would not reach the memory itself. */
		if (!translated && dma_need_sync(dev, page))
			return -EREMOTEIO;
		if (last - page < PAGE_SIZE)
			return 0;
		page += PAGE_SIZE;
	}
}

/* Copies the addresses from the exporter's table and joins adjacent ranges. */
static int daq_map_segments(struct daq_map *map, struct iommu_domain *translated)
{
	struct daq_dmabuf_segment *segment = NULL;
	struct scatterlist *sg;
	u64 total = 0;
	u32 i;
	int err;

	map->segments = kvcalloc(map->sgt->nents, sizeof(*map->segments), GFP_KERNEL);
	if (!map->segments)
		return -ENOMEM;
	for_each_sgtable_dma_sg(map->sgt, sg, i) {
		if (!sg_dma_len(sg))
			continue;
		total += sg_dma_len(sg);
		if (segment && segment->address + segment->bytes == sg_dma_address(sg)) {
			segment->bytes += sg_dma_len(sg);
			continue;
		}
		segment = &map->segments[map->nsegments++];
		segment->address = sg_dma_address(sg);
		segment->bytes = sg_dma_len(sg);
	}
	if (!map->nsegments || total < map->dmabuf->size)
		return -EREMOTEIO;
	for (i = 0; i < map->nsegments; i++) {
		err = daq_segment_check(&map->pdev->dev, translated, &map->segments[i]);
		if (err)
			return err;
	}
	return 0;
}

/* Returns the device whose BAR contains a physical address, with a reference; NULL if there is none. */
static struct pci_dev *daq_memory_owner(phys_addr_t address)
{
	struct pci_dev *pdev = NULL;
	int i;

	for_each_pci_dev(pdev) {
		for (i = 0; i < PCI_STD_NUM_BARS; i++) {
			struct resource *bar = &pdev->resource[i];

			if ((bar->flags & IORESOURCE_MEM) && bar->start <= address && address <= bar->end)
				return pdev;
		}
	}
	return NULL;
}

static s32 daq_distance(struct pci_dev *pdev, phys_addr_t memory)
{
	struct device *client = &pdev->dev;
	struct pci_dev *owner;
	int distance;

	if (!IS_ENABLED(CONFIG_PCI_P2PDMA))
		return DAQ_DMABUF_DISTANCE_UNKNOWN;
	owner = daq_memory_owner(memory);
	if (!owner)
		return DAQ_DMABUF_DISTANCE_HOST;
	distance = pci_p2pdma_distance_many(owner, &client, 1, false);
	pci_dev_put(owner);
	return distance < 0 ? DAQ_DMABUF_DISTANCE_REFUSED : distance;
}

/*
 * Attaches, pins and maps. The caller must hold the locks of the device and of the map, and call daq_map_undo() on an
 * error.
 */
static int daq_map_attach(struct daq_map *map, struct iommu_domain *translated)
{
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;
	phys_addr_t memory;
	int err;

	attach = dma_buf_dynamic_attach(map->dmabuf, &map->pdev->dev, &daq_attach_ops, map);
	if (IS_ERR(attach))
		return PTR_ERR(attach);
	map->attach = attach;

	dma_resv_lock(map->dmabuf->resv, NULL);
	err = dma_buf_pin(attach);
	if (err)
		goto unlock;
	map->pinned = true;
	sgt = dma_buf_map_attachment(attach, map->dir);
	if (IS_ERR(sgt)) {
		err = PTR_ERR(sgt);
		goto unlock;
	}
	map->sgt = sgt;
	err = daq_map_segments(map, translated);
	if (err)
		goto unlock;
	memory = map->segments[0].address;
	if (translated)
		memory = iommu_iova_to_phys(translated, memory);
	map->distance = daq_distance(map->pdev, memory);
unlock:
	dma_resv_unlock(map->dmabuf->resv);
	return err;
}

static int daq_map_for_device(struct daq_map *map, const struct daq_dmabuf_map *arg)
{
	struct device *dev = &map->pdev->dev;
	struct iommu_domain *translated;
	struct pci_dev *found;
	int err;

	/*
	 * A device is on its bus before it is added to its IOMMU domain. Code that adds or removes devices holds this lock,
	 * so a device that was found before the lock was taken is completely added now.
	 */
	pci_lock_rescan_remove();
	pci_unlock_rescan_remove();
	device_lock(dev);
	/*
	 * Removal takes a device off its bus first, then takes the device's lock to unbind the driver, and then calls the
	 * notifier. A device that is found while the lock is held is still on its bus, so its removal will find this map.
	 */
	found = pci_get_domain_bus_and_slot(arg->domain, arg->bus, arg->devfn);
	err = found == map->pdev ? 0 : -ENODEV;
	pci_dev_put(found);
	if (!err)
		err = daq_device_check(map->pdev, arg->address_bits, &translated);
	if (err)
		goto unlock;

	mutex_lock(&map->lock);
	err = daq_map_list(map, arg->address_bits);
	if (!err)
		err = daq_map_attach(map, translated);
	if (err)
		daq_map_undo(map);
	mutex_unlock(&map->lock);
unlock:
	device_unlock(dev);
	return err;
}

static struct daq_map *daq_map_new(const struct daq_dmabuf_map *arg)
{
	struct daq_map *map;
	long err;

	if (!arg->flags || (arg->flags & ~DAQ_DIRECTIONS) || arg->address_bits > 64)
		return ERR_PTR(-EINVAL);
	map = kzalloc(sizeof(*map), GFP_KERNEL);
	if (!map)
		return ERR_PTR(-ENOMEM);
	kref_init(&map->ref);
	INIT_LIST_HEAD(&map->node);
	mutex_init(&map->lock);
	if (arg->flags == DAQ_DIRECTIONS)
		map->dir = DMA_BIDIRECTIONAL;
	else
		map->dir = arg->flags == DAQ_DMABUF_TO_DEVICE ? DMA_TO_DEVICE : DMA_FROM_DEVICE;

	map->dmabuf = dma_buf_get(arg->dmabuf_fd);
	if (IS_ERR(map->dmabuf)) {
		err = PTR_ERR(map->dmabuf);
		map->dmabuf = NULL;
		goto put;
	}
	if (arg->revoke_eventfd != -1) {
		map->revoke_event = eventfd_ctx_fdget(arg->revoke_eventfd);
		if (IS_ERR(map->revoke_event)) {
			err = PTR_ERR(map->revoke_event);
			map->revoke_event = NULL;
			goto put;
		}
	}
	map->pdev = pci_get_domain_bus_and_slot(arg->domain, arg->bus, arg->devfn);
	if (!map->pdev) {
		err = -ENODEV;
		goto put;
	}
	err = daq_map_for_device(map, arg);
	if (err)
		goto put;
	/* The addresses are fixed now. Wait until the exporter has moved the data there, before the engine runs. */
	err = dma_resv_wait_timeout(map->dmabuf->resv, DMA_RESV_USAGE_KERNEL, true, MAX_SCHEDULE_TIMEOUT);
	if (err < 0) {
		daq_map_teardown(map, false);
		goto put;
	}
	return map;
put:
	daq_map_put(map);
	return ERR_PTR(err);
}

static int daq_copy_in(void *arg, size_t size, void __user *from)
{
	u32 argsz;
	int err;

	if (get_user(argsz, (u32 __user *)from))
		return -EFAULT;
	if (argsz < size)
		return -EINVAL;
	if (argsz > PAGE_SIZE)
		return -E2BIG;
	err = copy_struct_from_user(arg, size, from, argsz);
	if (err)
		return err;
	/* Another thread may have changed argsz between the two reads. */
	*(u32 *)arg = argsz;
	return 0;
}

static int daq_ioctl_map(struct daq_file *file, void __user *user)
{
	struct daq_dmabuf_map arg;
	struct daq_map *map;
	u32 handle;
	int err;

	err = daq_copy_in(&arg, sizeof(arg), user);
	if (err)
		return err;
	map = daq_map_new(&arg);
	if (IS_ERR(map))
		return PTR_ERR(map);
	/* Cyclic, so that a stale handle does not soon identify another mapping. */
	err = xa_alloc_cyclic(&file->maps, &handle, map, XA_LIMIT(1, U16_MAX), &file->next, GFP_KERNEL);
	if (err < 0) {
		err = err == -EBUSY ? -ENOSPC : err;
		goto teardown;
	}
	arg.handle = handle;
	arg.segments = map->nsegments;
	arg.size = map->dmabuf->size;
	if (copy_to_user(user, &arg, sizeof(arg))) {
		xa_erase(&file->maps, handle);
		err = -EFAULT;
		goto teardown;
	}
	return 0;
teardown:
	daq_map_teardown(map, false);
	daq_map_put(map);
	return err;
}

static int daq_ioctl_segments(struct daq_file *file, void __user *user)
{
	struct daq_dmabuf_segments arg;
	struct daq_map *map;
	int err;

	err = daq_copy_in(&arg, sizeof(arg), user);
	if (err)
		return err;
	map = xa_load(&file->maps, arg.handle);
	if (!map)
		return -ENOENT;
	if (atomic_read(&map->reason))
		return -ESTALE;
	if (arg.first > map->nsegments)
		return -EINVAL;
	arg.count = min(arg.count, map->nsegments - arg.first);
	if (copy_to_user(u64_to_user_ptr(arg.to), map->segments + arg.first,
			 arg.count * sizeof(*map->segments)))
		return -EFAULT;
	return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
}

static int daq_ioctl_state(struct daq_file *file, void __user *user)
{
	struct daq_dmabuf_state arg;
	struct daq_map *map;
	int err;

	err = daq_copy_in(&arg, sizeof(arg), user);
	if (err)
		return err;
	map = xa_load(&file->maps, arg.handle);
	if (!map)
		return -ENOENT;
	arg.reason = atomic_read(&map->reason);
	arg.state = arg.reason ? DAQ_DMABUF_REVOKED : DAQ_DMABUF_LIVE;
	arg.p2p_distance = map->distance;
	arg.reserved = 0;
	return copy_to_user(user, &arg, sizeof(arg)) ? -EFAULT : 0;
}

static int daq_ioctl_unmap(struct daq_file *file, void __user *user)
{
	struct daq_dmabuf_unmap arg;
	struct daq_map *map;
	int err;

	err = daq_copy_in(&arg, sizeof(arg), user);
	if (err)
		return err;
	map = xa_erase(&file->maps, arg.handle);
	if (!map)
		return -ENOENT;
	daq_map_teardown(map, false);
	daq_map_put(map);
	return 0;
}

static long daq_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct daq_file *file = filp->private_data;
	void __user *user = (void __user *)arg;
	int err;

	if (mutex_lock_killable(&file->lock))
		return -EINTR;
	switch (cmd) {
	case DAQ_DMABUF_MAP:
		err = daq_ioctl_map(file, user);
		break;
	case DAQ_DMABUF_SEGS:
		err = daq_ioctl_segments(file, user);
		break;
	case DAQ_DMABUF_STATE:
		err = daq_ioctl_state(file, user);
		break;
	case DAQ_DMABUF_UNMAP:
		err = daq_ioctl_unmap(file, user);
		break;
	default:
		err = -ENOTTY;
	}
	mutex_unlock(&file->lock);
	return err;
}

static int daq_open(struct inode *inode, struct file *filp)
{
	struct daq_file *file;

	/* A process that can program an engine with bus addresses can write to any memory. */
	if (!capable(CAP_SYS_RAWIO))
		return -EPERM;
	file = kzalloc(sizeof(*file), GFP_KERNEL);
	if (!file)
		return -ENOMEM;
	mutex_init(&file->lock);
	xa_init_flags(&file->maps, XA_FLAGS_ALLOC1);
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}

/* Mappings that still exist were not unmapped: their process died, and the engine may be running. */
static int daq_release(struct inode *inode, struct file *filp)
{
	struct daq_file *file = filp->private_data;
	struct daq_map *map;
	unsigned long handle;

	xa_for_each(&file->maps, handle, map) {
		daq_map_teardown(map, true);
		daq_map_put(map);
	}
	xa_destroy(&file->maps);
	mutex_destroy(&file->lock);
	kfree(file);
	return 0;
}

static const struct file_operations daq_fops = {
	.owner = THIS_MODULE,
	.open = daq_open,
	.release = daq_release,
	.unlocked_ioctl = daq_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static void daq_device_revoke(struct pci_dev *pdev, int reason)
{
	struct daq_map *map;

	mutex_lock(&daq_maps_lock);
	list_for_each_entry(map, &daq_maps, node)
		if (map->pdev == pdev)
			daq_map_revoke(map, reason);
	mutex_unlock(&daq_maps_lock);
}

static void daq_device_teardown(struct pci_dev *pdev, int reason)
{
	struct daq_map *map;

	for (;;) {
		mutex_lock(&daq_maps_lock);
		map = daq_map_find(pdev);
		if (map)
			kref_get(&map->ref);
		mutex_unlock(&daq_maps_lock);
		if (!map)
			return;
		daq_map_revoke(map, reason);
		daq_map_teardown(map, true);
		daq_map_put(map);
	}
}

/* Removes the mappings of a device whose driver changes, or that is removed. */
static int daq_bus_notify(struct notifier_block *block, unsigned long action, void *data)
{
	struct pci_dev *pdev = to_pci_dev(data);

	switch (action) {
	case BUS_NOTIFY_UNBIND_DRIVER:
		/* The driver is still bound and can stop its engine. */
		daq_device_revoke(pdev, DAQ_DMABUF_REBOUND);
		break;
	case BUS_NOTIFY_UNBOUND_DRIVER:
	case BUS_NOTIFY_BIND_DRIVER:
		daq_device_teardown(pdev, DAQ_DMABUF_REBOUND);
		break;
	case BUS_NOTIFY_DEL_DEVICE:
	case BUS_NOTIFY_REMOVED_DEVICE:
		daq_device_teardown(pdev, DAQ_DMABUF_REMOVED);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block daq_bus_block = {
	.notifier_call = daq_bus_notify,
	/* Must run before the IOMMU's notifier, which removes the device from its domain. */
	.priority = 1,
};

static struct miscdevice daq_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "daq_dmabuf",
	.fops = &daq_fops,
	.mode = 0600,
};

static int __init daq_init(void)
{
	int err;

	err = bus_register_notifier(&pci_bus_type, &daq_bus_block);
	if (err)
		return err;
	err = misc_register(&daq_misc);
	if (err)
		bus_unregister_notifier(&pci_bus_type, &daq_bus_block);
	return err;
}

static void __exit daq_exit(void)
{
	misc_deregister(&daq_misc);
	bus_unregister_notifier(&pci_bus_type, &daq_bus_block);
}

module_init(daq_init);
module_exit(daq_exit);

MODULE_DESCRIPTION("Bus addresses of a dma-buf for a PCI device that has its own driver or none");
MODULE_AUTHOR("daq");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1.0");
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif
