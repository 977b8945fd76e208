/* SPDX-License-Identifier: MIT OR (GPL-2.0 WITH Linux-syscall-note) */
/*
 * daq_dmabuf: the bus addresses of a dma-buf, as one PCI device sees them.
 *
 * Every argument begins with argsz, the size of the structure in the caller's version. Members that this version does not
 * have must be zero (else E2BIG). A size below that of the first version is EINVAL.
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
 * @dmabuf_fd: the dma-buf; the mapping holds a reference, so the descriptor may be closed
 * @revoke_eventfd: signalled once when the mapping is revoked; -1: none
 * @domain: PCI domain of the device
 * @bus: PCI bus
 * @devfn: device << 3 | function
 * @address_bits: number of address bits of the engine, 1 to 64, for a device without a bound driver; 0: the number that
 *	the driver has set, or 32 if the device never had a driver
 * @handle: out: identifies the mapping in the other calls; never 0
 * @segments: out: number of ranges of consecutive bus addresses
 * @size: out: size of the dma-buf in bytes
 *
 * EBADF, EINVAL: not a descriptor, not a dma-buf, not an eventfd; no or unknown flags; a bridge; bits out of range.
 * ENODEV: the device does not exist or does not respond.
 * EBUSY: the device's DMA belongs to user space (vfio-pci, an unmanaged IOMMU domain) or to a driver that manages it
 *	alone, or the device is already mapped with other address_bits.
 * EEXIST: address_bits is set although a driver is bound.
 * EREMOTEIO: the exporter returned addresses that the device cannot use.
 * ENOSPC: no free handles. Other errors come from the exporter.
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

/* A range of consecutive bus addresses. */
struct daq_dmabuf_segment {
	__u64 address;
	__u64 bytes;
};

/**
 * struct daq_dmabuf_segments - read the bus addresses of a mapping
 * @argsz: size of this structure
 * @handle: handle of the mapping
 * @first: index of the first segment to read
 * @count: in: capacity of @to in segments; out: number of segments written
 * @to: address of an array of struct daq_dmabuf_segment
 *
 * ENOENT: unknown handle. EINVAL: @first is beyond the last segment. EFAULT: @to is invalid. ESTALE: revoked.
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
#define DAQ_DMABUF_MOVED	1	/* the exporter moved or revoked the memory */
#define DAQ_DMABUF_REBOUND	2	/* a driver was bound to or unbound from the device */
#define DAQ_DMABUF_REMOVED	3	/* the device was removed */

/* struct daq_dmabuf_state.p2p_distance, if it is not the number of ports between the two devices */
#define DAQ_DMABUF_DISTANCE_UNKNOWN	(-1)	/* this kernel is built without PCI_P2PDMA */
#define DAQ_DMABUF_DISTANCE_REFUSED	(-2)	/* Linux does not trust the path between the two */
#define DAQ_DMABUF_DISTANCE_HOST	(-3)	/* the memory is not on a PCI device */

/**
 * struct daq_dmabuf_state - read the state of a mapping
 * @argsz: size of this structure
 * @handle: handle of the mapping
 * @state: out: DAQ_DMABUF_LIVE or DAQ_DMABUF_REVOKED
 * @reason: out: why it was revoked; 0 while live
 * @p2p_distance: out: distance as measured by Linux when the mapping was created
 * @reserved: out: 0
 *
 * ENOENT: unknown handle.
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
 * struct daq_dmabuf_unmap - remove a mapping; the caller must have stopped the engine
 * @argsz: size of this structure
 * @handle: handle of the mapping
 *
 * ENOENT: unknown handle.
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
