package main

import (
	"fmt"
	"strings"

	"github.com/vhostnet/vhostnet/bench/peer"
)

// Host sides.
const (
	builtIn = "built-in"
	tapPort = "tap"
)

// Front-ends.
const (
	virtioUser = "virtio-user"
	polling    = "polling"  // the embedded driver
	blocking   = "blocking" // the embedded driver

	// The same with packed rings.
	virtioUserPacked = virtioUser + packedRings
	blockingPacked   = blocking + packedRings

	packedRings = ", packed"
)

// packed tells whether a row's rings are packed ones, and the front-end's name
// without that.
func (r row) packed() (frontEnd string, packed bool) {
	return strings.CutSuffix(r.FrontEnd, packedRings)
}

// row is one comparison.
type row struct {
	// Host is the back-end's other side: nothing outside of it, or a TAP.
	Host string `json:"host"`
	// Mode is the traffic: sink, source or echo. A TAP's echo is the kernel, which
	// sends every frame back.
	Mode string `json:"mode"`
	// Size is the length of a frame in bytes.
	Size int `json:"size"`
	// FrontEnd drives all back-ends.
	FrontEnd string `json:"front_end"`
}

func (r row) String() string { return fmt.Sprintf("%s/%s/%d/%s", r.Host, r.Mode, r.Size, r.FrontEnd) }

func (r row) traffic() peer.Traffic { return peer.Traffic{Mode: r.Mode, Size: r.Size} }

func allRows() []row {
	var rows []row
	for _, frontEnd := range []string{virtioUser, virtioUserPacked, polling, blocking, blockingPacked} {
		for _, mode := range []string{"sink", "source", "echo"} {
			for _, size := range []int{64, 1500} {
				rows = append(rows, row{builtIn, mode, size, frontEnd})
			}
		}
	}
	// A source behind a TAP would need a core for itself.
	for _, frontEnd := range []string{virtioUser, blocking} {
		for _, mode := range []string{"sink", "echo"} {
			for _, size := range []int{64, 1500} {
				rows = append(rows, row{tapPort, mode, size, frontEnd})
			}
		}
	}
	return rows
}

// Back-ends, beside the vhostnets.
const (
	netVhost    = "net_vhost"
	netVhostTap = "net_vhost + net_tap"
	passt       = "passt"
	// copying is the vhostnet whose sink copies every frame.
	copying = "vhostnet, copying sink"
	// bareLoop is no back-end: a loop of system calls on a TAP, for each frame one to
	// write it or to read it.
	bareLoop = "write/read loop"
)

// reference is the back-end that ratios are to.
func (r row) reference() string {
	if r.Host == tapPort {
		return netVhostTap
	}
	return netVhost
}

// backEnds are the names of a row's back-ends, the reference first.
func (r row) backEnds(vhostnets []string) []string {
	names := append([]string{r.reference()}, vhostnets...)
	switch {
	case r.Host == builtIn && r.Mode == "sink":
		names = append(names, copying)
	case r.Host == tapPort && r.Mode == "sink":
		// What it would echo, a program in a core of its own would have to.
		names = append(names, passt, bareLoop)
	case r.Host == tapPort:
		names = append(names, bareLoop)
	}
	return names
}
