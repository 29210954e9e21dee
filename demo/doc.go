// Package demo shows notification coalescing at work without a virtual machine
// and without root: a device with the echo port and an embedded driver in one
// process, connected by a socket pair, speak vhost-user to each other. The
// driver sends traffic and sets the coalescing limits step by step through the
// control queue (virtio 1.4, "Notifications Coalescing").
//
// Every step measures two kinds of traffic in turn. Under load, frames are sent
// one at a time at a steady rate, and packets and notifications are counted. In
// between, single frames go back and forth, which gives the round-trip time. The
// driver behaves like a guest that learns of frames by interrupt only.
package demo
