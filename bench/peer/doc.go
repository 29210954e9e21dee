// Package peer starts what vhostnet is measured against and with: back-ends that
// listen on a vhost-user socket (DPDK's net_vhost in testpmd, with and without
// its net_tap; Open vSwitch with DPDK; passt; vhostnet itself), and front-ends that
// drive any of them (DPDK's virtio-user in testpmd; a program with the embedded
// driver, which drives by itself or has a network stack behind it).
//
// Every one of them is a process on a core of its own. Back-ends that poll are
// paused between windows, so that several can be alive and take turns: a polling
// back-end that waits for its turn would take the core of the one that has it.
package peer
