package faults

import (
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
)

func TestMain(m *testing.M) { scripted.Main(m) }

// The ground that the cases stand on.
func TestAlive(t *testing.T) {
	for _, port := range []string{"null", "echo", "source:60"} {
		t.Run(port, func(t *testing.T) { scripted.Serve(t, port).Alive() })
	}
	t.Run("tap", func(t *testing.T) { scripted.NewHost(t, 1).ServeTAP(t).Alive() })
}

// deadline is by when a reply has come.
func deadline() time.Time { return time.Now().Add(scripted.Hang) }
