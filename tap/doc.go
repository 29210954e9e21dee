// Package tap is the port behind a Linux TAP interface: it attaches to one with
// virtio-net headers (IFF_VNET_HDR), follows the offloads that the driver
// accepted, and moves frames between the TAP's queues and the buffers that it
// is given: many with one system call where the kernel has an io_uring, else one by
// one.
//
// [Open] attaches to an existing interface, or makes one that lives as long as
// the port. [Create] and [Delete] make and remove persistent interfaces, which
// an unprivileged process can attach to if it owns them.
//
// The virtio-net header that the kernel reads and writes is that of virtio 1.4,
// "Network Device", "Device Operation"; which offloads it may carry towards the
// driver is governed by the GUEST_* feature bits there. The kernel fills ten
// bytes of the header; bytes 10 and 11 (num_buffers) are the device's to write.
//
// Offloads, the header's size and its byte order belong to the interface, not
// to the queue that they are set through. A TAP is therefore shared with nobody:
// [Open] refuses one on which another process has queues.
package tap
