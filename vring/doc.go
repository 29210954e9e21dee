// Package vring is the device side of virtqueues (virtio 1.4, "Virtqueues", "Split
// Virtqueues" and "Packed Virtqueues").
//
// A [Config] is inert. [Activate] validates it once against a memory map and
// returns a [Queue], which one goroutine uses until Stop gives its state back.
// Queue works on bursts: pop chains into a caller-owned [Batch], complete them,
// publish once, ask once whether the driver wants to be notified.
//
// The driver is not trusted. Each value of its is loaded once and then checked. A
// chain that breaks the rules is handed out with its Fault set, to be given back
// empty. A ring whose indices make no sense is broken: that is sticky, is not the
// same as empty, and is never a panic. Only a memory fault panics, see
// guestmem.CatchFaults; the caller breaks the queue then.
package vring
