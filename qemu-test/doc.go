// Package qemutest runs real Linux guests on vhostnet: launchers for QEMU's
// generic vhost-user device, for QEMU's `-netdev vhost-user` and for User-Mode
// Linux, a backend in a network namespace of its own, and the end-to-end tests.
//
// The three lanes differ in what reaches the backend. The generic device and
// User-Mode Linux pass the control queue on, `-netdev vhost-user` does not: there
// QEMU answers the driver's commands itself.
//
// Every program that a test starts runs in a thread of its own which lives as
// long as the program: namespaces belong to threads, and so does the parent whose
// death ends the child.
package qemutest
