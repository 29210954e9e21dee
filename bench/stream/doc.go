// Command stream compares vhostnet with others where a real network stack is the
// guest: TCP streams, small datagrams and round trips of iperf3 and sockperf.
//
// Usage:
//
//	go run ./bench/stream [--quick] [--lanes native,machine] [--loads REGEXP] [--out DIR]
//
// In the lane native the guest is the stack of a network namespace behind the
// embedded driver, which sleeps when it is idle; it and the client have core 0, the
// back-end core 1. Back-ends are vhostnet with a TAP, DPDK's net_vhost with net_tap,
// which has no segmentation offload, passt, whose host side is sockets, and Open
// vSwitch with DPDK and a TAP. All are alive at the same time and are measured in
// turns.
//
// In the lane machine the guest is Linux in QEMU with an emulated processor, behind
// vhostnet (-netdev vhost-user) or behind QEMU's own device (-netdev tap,vhost=off):
// with the same kernel, programs and kind of namespace. Machines are started one
// after the other in each launch, in alternating order.
//
// The client runs in the guest in both directions, so that passt needs no forwarded
// port, and all connections have the same congestion control. Ratios are between two
// windows of the same turn; tables have medians and ranges over the turns of several
// launches. What a back-end's processor did before and after a load does not count
// beyond what one core can do in the time of the load, which is all of it for one that
// polls.
//
// What is not Linux's own is Debian's, unpacked into the cache folder. The results are
// in DIR/stream.json and DIR/stream.md.
package main
