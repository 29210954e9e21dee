package peer

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestRun(t *testing.T) {
	out, err := Run(t.Context(), "echo", exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo out; echo err >&2"), here)
	if err != nil || out != "out\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, err = Run(t.Context(), "fail", exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo out; echo err >&2; exit 3"), here)
	if err == nil || out != "out\n" || !strings.Contains(err.Error(), "err") || !strings.Contains(err.Error(), "out") {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := Run(t.Context(), "none", exec.Command("/nowhere"), here); err == nil {
		t.Error("ran what is not there")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := Run(ctx, "late", exec.Command("/bin/sh", "-c", "true"), here); err == nil || err.Error() != "enough" {
		t.Errorf("cancelled: %v", err)
	}
	if s := lastOf(strings.Repeat("x", 1000) + "end"); len(s) > 310 || !strings.HasSuffix(s, "xend") {
		t.Errorf("%q", s)
	}
}

func TestServe(t *testing.T) {
	s, err := Serve("fake", fake(t.Context(), "daemon", filepath.Join(t.TempDir(), "s")), here)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err = Serve("fake", fake(t.Context(), "daemon", ""), here); err != nil {
		t.Fatal(err)
	}
	<-s.done
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "no path") {
		t.Errorf("it has ended: %v", err)
	}
	if _, err := Serve("none", exec.Command("/nowhere"), here); err == nil {
		t.Error("started what is not there")
	}
}

func TestNativeGuest(t *testing.T) {
	for answer, want := range map[string]string{`{"calls":7,"kicks":5}`: "", `{"error":"the device is broken"}`: "broken", "what": "answer"} {
		g, err := StartGuest(t.Context(), fake(t.Context(), "guest", answer), here)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			c, err := g.Counters(t.Context())
			if want == "" && (err != nil || c.Calls != 7 || c.Kicks != 5) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %+v, %v", answer, c, err)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if _, err := g.Counters(t.Context()); err == nil {
			t.Error("a guest that has ended counts")
		}
	}
	if _, err := StartGuest(t.Context(), fake(t.Context(), "daemon", ""), here); err == nil {
		t.Error("it has ended")
	}
}

// TestStack: an interface of a guest has address and MTU, and all routes have the
// congestion control.
func TestStack(t *testing.T) {
	n, err := NewStack()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	openTAP(t, n, "eth0")
	const mtu = 9000
	if err := errors.Join(n.Join("eth0", mtu), n.SetCongestion("reno")); err != nil {
		t.Fatal(err)
	}
	l, err := n.h.LinkByName("eth0")
	if err != nil || l.Attrs().MTU != mtu {
		t.Errorf("%+v, %v", l, err)
	}
	routes, err := n.h.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, r := range routes {
		if r.Type == unix.RTN_UNICAST || r.Type == unix.RTN_LOCAL {
			found++
			if r.Congctl != "reno" {
				t.Errorf("%v has %q", r.Dst, r.Congctl)
			}
		}
	}
	if found < 3 {
		t.Errorf("%d routes: the loopback's, the guest's own and the network's are three", found)
	}
	if err := n.SetCongestion("none-such"); err == nil {
		t.Error("there is no such congestion control")
	}
}

func TestOVSConfig(t *testing.T) {
	for _, huge := range []bool{true, false} {
		args := ovsConfig([]string{"/a.so"}, 1, huge)
		line := strings.Join(args, " ")
		if !slices.Contains(args, "other_config:pmd-cpu-mask=0x2") || !strings.Contains(line, "-d /a.so") || strings.Contains(line, "--no-huge") == huge {
			t.Errorf("%q", args)
		}
	}
}
