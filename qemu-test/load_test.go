package qemutest

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// loadPort is where testLoad's packets go.
const loadPort = "5999"

// udpLoad sends small packets to the guest at even distances. It spins between
// them: a timer of the kernel is not that exact. A packet that is late is sent at
// once, so the mean rate holds.
func (r *rig) udpLoad(t *testing.T, packets int, distance time.Duration) {
	t.Helper()
	err := r.ns.Do(func() error {
		to, err := net.ResolveUDPAddr("udp4", guestAddress+":"+loadPort)
		if err != nil {
			return err
		}
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		payload := make([]byte, 18) // with its headers a frame of 60 bytes
		start := time.Now()
		for i := range packets {
			for time.Since(start) < time.Duration(i)*distance {
			}
			if _, err := conn.WriteTo(payload, to); err != nil {
				return fmt.Errorf("packet %d: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("load: %v", err)
	}
}
