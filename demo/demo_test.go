package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/vhostnet/vhostnet/demo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	var table, out bytes.Buffer
	r, err := demo.Run(t.Context(), demo.Config{Seconds: 1.5, Out: &table})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != 1 || !strings.HasSuffix(out.String(), "}\n") {
		t.Errorf("not one line: %q", out.String())
	}
	var got struct {
		Steps []map[string]any `json:"steps"`
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Steps) < 4 || got.Steps[0]["name"] != "off" {
		t.Fatalf("steps %v", got.Steps)
	}
	for _, s := range got.Steps {
		for _, key := range []string{"rx_usecs", "rx_frames", "tx_usecs", "tx_frames", "packets", "notifications", "notifications_per_packet", "rtt_p50_us", "rtt_p99_us"} {
			if _, ok := s[key].(float64); !ok {
				t.Errorf("step %v: %s is %v", s["name"], key, s[key])
			}
		}
		if len(s) != 10 {
			t.Errorf("step %v has %d keys", s["name"], len(s))
		}
		if !strings.Contains(table.String(), "\n"+s["name"].(string)+" ") {
			t.Errorf("step %v is not in the table", s["name"])
		}
	}
	for _, s := range r.Steps {
		if s.Packets == 0 || s.Notifications == 0 || s.RTTP50 <= 0 || s.RTTP99 < s.RTTP50 {
			t.Errorf("step %+v", s)
		}
		if s.NotificationsPerPacket != float64(s.Notifications)/float64(s.Packets) {
			t.Errorf("step %+v: wrong quotient", s)
		}
	}
	// What the demonstration is there to show.
	for i, s := range r.Steps[1:] {
		if s.RXUsecs >= 500 && s.NotificationsPerPacket >= r.Steps[0].NotificationsPerPacket {
			t.Errorf("step %d, %q, needs %.3f notifications per packet, off %.3f", i+1, s.Name, s.NotificationsPerPacket, r.Steps[0].NotificationsPerPacket)
		}
	}
	if t.Failed() {
		t.Log(table.String())
	}
}

func TestRunEnds(t *testing.T) {
	if _, err := demo.Run(t.Context(), demo.Config{Seconds: 0.5}); err == nil {
		t.Error("half a second was accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := demo.Run(ctx, demo.Config{Seconds: 3600}); !errors.Is(err, context.Canceled) || r != nil {
		t.Errorf("cancelled: %v, %v", r, err)
	}
}
