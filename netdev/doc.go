// Package netdev is the virtio network device (virtio 1.4, "Network Device"):
// it serves the receive, transmit and control virtqueues that a front-end has
// set up, moves frames between them and a [port.Port], and decides with
// package coalesce when the driver is notified.
//
// # Threads
//
// Three kinds of goroutine touch a device, and each owns its data outright:
//
//   - The session (the caller of the vhostuser.Backend methods) owns the ring
//     configuration: what is started, enabled, mapped.
//   - A worker per queue pair owns the pair's rings, its scratch memory, its
//     moderators and its counters while it runs. Nobody else touches them. A
//     change is a function posted to the worker's mailbox; the worker runs it
//     between bursts and acknowledges, and only then does the session answer
//     its message.
//   - The control worker owns the control ring and the driver-visible state
//     (coalescing values, active pairs, filter, offloads). It posts to the
//     workers like the session does.
//
// Counters are written by their worker only and are read by anybody with
// atomic loads. What else a snapshot wants to know of a worker goes through its
// mailbox.
package netdev
