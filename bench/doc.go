// Command bench compares vhostnet with other vhost-user back-ends: each drives
// the same traffic with the same front-end on the same two cores, the front-end
// on core 0 and the back-end on core 1.
//
// Usage:
//
//	go run ./bench [--quick] [--rows REGEXP] [--out DIR] [--vhostnet NAME=PATH]...
//	go run ./bench draw [--out DIR]
//	go run ./bench growth [--quick] [--rounds N] [--out DIR]
//
// draw makes table and plot of an earlier comparison again. growth measures how
// vhostnet does with many queue pairs, devices and buffers, and how long a round trip
// takes; its devices are those of vhostnet serve --config, in one process.
//
// Front-ends are DPDK's virtio-user, which polls, and the embedded driver, which
// polls, or blocks on the call eventfds so that the back-end has to notify it.
// Back-ends are vhostnet with its built-in ports against DPDK's net_vhost, and
// vhostnet with a TAP against net_vhost with net_tap, and passt.
//
// Sink is front-end to back-end, source is back-end to front-end, and echo sends a
// window of frames round and round. On both sides of a built-in comparison the
// back-end does the same work: net_vhost copies each frame once into or out of an
// mbuf. vhostnet's port null does not copy a long frame, so that sinks have a
// second vhostnet, in this program, whose port copies every frame.
//
// All back-ends of a row are alive at the same time and are measured in turns, one
// window each; a ratio is between two windows of the same turn. The table has
// medians and ranges over the turns of several launches: one process runs at its
// own speed for as long as it lives.
//
// DPDK and passt are Debian's, unpacked into the cache folder. Where that cannot be
// done, what needs them is left out and the report says so.
package main
