// Package virtio is the vocabulary of virtio 1.4 network devices: feature bits
// with their names and dependencies, the virtio-net header, the configuration
// space, and the constants of virtqueues and of the control queue. It is pure:
// numbers and bytes, no memory of its own and no file descriptor.
//
// Sections of the specification: "Reserved Feature Bits", "Virtqueues", and
// "Network Device".
package virtio
