/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* For tests: exports a BAR as a dma-buf, which represents a GPU's memory. */
#ifndef BAR_EXPORTER_H
#define BAR_EXPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define BAR_EXPORT_BYTES	(1U << 20)	/* of a BAR; less if it is smaller */

#define BAR_EXPORT_BARE		(1U << 0)	/* physical addresses without an IOMMU mapping */
#define BAR_EXPORT_PAGES	(1U << 1)	/* page by page, the last page first */
#define BAR_EXPORT_NO_PIN	(1U << 2)	/* refuses to be pinned: EAGAIN */
#define BAR_EXPORT_SHORT	(1U << 3)	/* maps a page less than it has */
#define BAR_EXPORT_NO_MAP	(1U << 4)	/* refuses to be mapped: ENOBUFS */

struct bar_export {
	__u32 domain;
	__u8 bus;
	__u8 devfn;
	__u16 bar;
	__u32 flags;
	__u32 reserved;
};

#define BAR_EXPORT	_IO(0xDB, 0)	/* struct bar_export; returns the dma-buf's descriptor */
#define BAR_MOVE	_IO(0xDB, 1)	/* the dma-buf's descriptor; notifies its importers that the memory moves */

#endif
