/* SPDX-License-Identifier: MIT OR (GPL-2.0 WITH Linux-syscall-note) */
/*
 * daq_dmabuf: the bus addresses of a dma-buf, as one PCI device sees them.
 *
 * Every argument begins with argsz, the size of the argument as the caller knows it. What a caller knows beyond
 * this version must be zero (else E2BIG); less than the first version is EINVAL.
 */
#ifndef DAQ_DMABUF_H
#define DAQ_DMABUF_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DAQ_DMABUF_IOC		0xDA

/* Directions of struct daq_dmabuf_map.flags; at least one. */
#define DAQ_DMABUF_TO_DEVICE	(1U << 0)	/* the device reads the memory */
#define DAQ_DMABUF_FROM_DEVICE	(1U << 1)	/* the device writes the memory */

/**
 * struct daq_dmabuf_map - pin a dma-buf and map it for a device
 * @argsz: size of this structure
 * @flags: DAQ_DMABUF_TO_DEVICE, DAQ_DMABUF_FROM_DEVICE
 * @dmabuf_fd: the dma-buf; the mapping keeps it alive, the descriptor may be closed
 * @revoke_eventfd: signalled once when the mapping is revoked; -1: none
 * @domain: PCI domain of the device
 * @bus: PCI bus
 * @devfn: device << 3 | function
 * @address_bits: how many address bits the engine drives, 1 to 64, for a device that no driver is bound to; 0: as
 *	its driver said, and 32 where it never had one
 * @handle: out: what the other calls take; never 0
 * @segments: out: how many pieces of consecutive bus addresses there are
 * @size: out: bytes of the dma-buf
 *
 * EBADF, EINVAL: no descriptor, no dma-buf, no eventfd; no or unknown flags; a bridge; bits out of range.
 * ENODEV: no such device, or it does not answer.
 * EBUSY: its DMA belongs to user space (vfio-pci, an unmanaged IOMMU domain) or to a driver that manages it alone,
 *	or it is mapped already with other address_bits.
 * EEXIST: address_bits given although a driver is bound.
 * EREMOTEIO: the exporter gave addresses that the device cannot use.
 * ENOSPC: no more handles. Else what the exporter says.
 */
struct daq_dmabuf_map {
	__u32 argsz;
	__u32 flags;
	__s32 dmabuf_fd;
	__s32 revoke_eventfd;
	__u32 domain;
	__u8 bus;
	__u8 devfn;
	__u16 address_bits;
	__u32 handle;
	__u32 segments;
	__u64 size;
};

/* Consecutive bus addresses. */
struct daq_dmabuf_segment {
	__u64 address;
	__u64 bytes;
};

/**
 * struct daq_dmabuf_segments - read the bus addresses of a mapping
 * @argsz: size of this structure
 * @handle: of the mapping
 * @first: index of the first segment wanted
 * @count: in: room at @to, in segments; out: segments written
 * @to: address of an array of struct daq_dmabuf_segment
 *
 * ENOENT: no such handle. EINVAL: @first beyond the last. EFAULT: @to. ESTALE: revoked.
 */
struct daq_dmabuf_segments {
	__u32 argsz;
	__u32 handle;
	__u32 first;
	__u32 count;
	__u64 to;
};

/* struct daq_dmabuf_state.state */
#define DAQ_DMABUF_LIVE		0
#define DAQ_DMABUF_REVOKED	1

/* struct daq_dmabuf_state.reason */
#define DAQ_DMABUF_MOVED	1	/* the exporter moved or withdrew the memory */
#define DAQ_DMABUF_REBOUND	2	/* a driver was bound to or unbound from the device */
#define DAQ_DMABUF_REMOVED	3	/* the device is gone */

/* struct daq_dmabuf_state.p2p_distance, where it is not a count of ports between the two devices */
#define DAQ_DMABUF_DISTANCE_UNKNOWN	(-1)	/* this kernel is built without PCI_P2PDMA */
#define DAQ_DMABUF_DISTANCE_REFUSED	(-2)	/* the kernel does not trust the way between the two */
#define DAQ_DMABUF_DISTANCE_HOST	(-3)	/* the memory is in no PCI device */

/**
 * struct daq_dmabuf_state - what has become of a mapping
 * @argsz: size of this structure
 * @handle: of the mapping
 * @state: out: DAQ_DMABUF_LIVE or DAQ_DMABUF_REVOKED
 * @reason: out: why it was revoked; 0 while live
 * @p2p_distance: out: as the kernel measured it when the mapping was made
 * @reserved: out: 0
 *
 * ENOENT: no such handle.
 */
struct daq_dmabuf_state {
	__u32 argsz;
	__u32 handle;
	__u32 state;
	__u32 reason;
	__s32 p2p_distance;
	__u32 reserved;
};

/**
 * struct daq_dmabuf_unmap - give a mapping back; the caller has stopped the engine
 * @argsz: size of this structure
 * @handle: of the mapping
 *
 * ENOENT: no such handle.
 */
struct daq_dmabuf_unmap {
	__u32 argsz;
	__u32 handle;
};

#define DAQ_DMABUF_MAP		_IO(DAQ_DMABUF_IOC, 0)	/* struct daq_dmabuf_map */
#define DAQ_DMABUF_SEGS		_IO(DAQ_DMABUF_IOC, 1)	/* struct daq_dmabuf_segments */
#define DAQ_DMABUF_STATE	_IO(DAQ_DMABUF_IOC, 2)	/* struct daq_dmabuf_state */
#define DAQ_DMABUF_UNMAP	_IO(DAQ_DMABUF_IOC, 3)	/* struct daq_dmabuf_unmap */

#endif
