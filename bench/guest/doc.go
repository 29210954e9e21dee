// Command guest measures what notification moderation does for guests: real
// programs in guests of several lanes, under every engine, one engine after the
// other in each round.
//
// Usage:
//
//	go run ./bench/guest [--lanes native,uml,netdev,test-device] [--quick] [--out DIR]
//	go run ./bench/guest --render DIR
//
// The lanes are a native guest (the embedded driver with the network stack of a
// second namespace behind it; it and its programs have one processor, the device
// and the host's programs another), User-Mode Linux, and QEMU with its vhost-user
// netdev or as the tests run it, with the control queue in vhostnet.
//
// Each sample is compared with the one without moderation of the same round and
// workload, because machines have slow phases; the report has the median of these
// comparisons and their range. Counters are read while a load runs, after it has
// settled. A sample that fails is recorded as such and the run goes on.
//
// The results of a lane are in DIR/guest-LANE.json; DIR/guest.md and
// DIR/guest-LANE.svg are made of all that are there. They are written after each
// round, so that a run may be ended at any time.
package main
