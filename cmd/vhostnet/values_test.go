package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/virtio"
)

// parse parses a command line without running it.
func parse(t *testing.T, args ...string) (cli, error) {
	t.Helper()
	var c cli
	var out bytes.Buffer
	p, err := kong.New(&c, options(&out, &out)...)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Parse(args)
	return c, err
}

func TestServeFlags(t *testing.T) {
	c, err := parse(
		t, "--socket-path=/s", "--port", "tap:vn0", "--queue-pairs", "4", "--queue-size", "512",
		"--mac", "52:54:00:12:34:56", "--mtu", "9000", "--name", "a.b-c_1", "--rx-coalesce", "64/32",
		"--tx-coalesce=0/0", "--coalesce-strict", "--features", "-mrg_rxbuf,+csum", "--features", "+MRG_RXBUF,-VIRTIO_NET_F_MQ",
		"--api", "unix:/a,b", "--api", "vsock:1024", "--log-level", "debug", "--log-format", "json", "--client",
	)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Serve
	if s.SocketPath != "/s" || s.FD != nil || !s.Client || s.Port != "tap:vn0" || s.pairs() != 4 || s.QueueSize != 512 ||
		s.MAC != (mac{0x52, 0x54, 0, 0x12, 0x34, 0x56}) || s.MTU != 9000 || s.Name != "a.b-c_1" ||
		s.RXCoalesce != (limits{Usecs: 64, Packets: 32}) || s.TXCoalesce != (limits{}) || !s.CoalesceStrict ||
		s.LogLevel != "debug" || s.LogFormat != "json" {
		t.Errorf("%+v", s)
	}
	want := featureEdit{with: virtio.FeatureMrgRxBuf | virtio.FeatureCSum, without: virtio.FeatureMQ}
	if s.Features != want {
		t.Errorf("features %+v, want %+v", s.Features, want)
	}
	if len(s.API) != 2 || mgmt.Address(s.API[0]).String() != "unix:/a,b" || mgmt.Address(s.API[1]).String() != "vsock:1024" {
		t.Errorf("API %v", s.API)
	}
}

func TestServeDefaults(t *testing.T) {
	for _, args := range [][]string{{"--fd=5"}, {"serve", "--fd=5"}, {"serve", "--fd", "5"}} {
		c, err := parse(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		s := c.Serve
		if s.FD == nil || *s.FD != 5 || s.Name != "net0" || s.pairs() != 1 || s.QueueSize != 0 || s.Port != "" ||
			s.LogLevel != "info" || s.LogFormat != "text" || s.API != nil {
			t.Errorf("%v: %+v", args, s)
		}
	}
}

// The command line is refused, with a message that names the option or says
// what was expected.
func TestRefusedCommandLines(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--socket-path=/s --fd=3", "can't be used together"},
		{"--fd=x", "--fd"},
		{"--socket-path=/s --no-such-flag", "--no-such-flag"},
		{"--socket-path=/s --rx-coalesce=64", "USECS/FRAMES"},
		{"--socket-path=/s --rx-coalesce=1000001/1", "0 to 1000000"},
		{"--socket-path=/s --rx-coalesce=1/32769", "0 to 32768"},
		{"--socket-path=/s --rx-moderation=foo", "must be off, fixed:USECS/FRAMES"},
		{"--socket-path=/s --tx-coalesce=-1/1", "0 to 1000000"},
		{"--socket-path=/s --tx-coalesce=1/2/3", "frames"},
		{"--socket-path=/s --mac=52:54", "six bytes"},
		{"--socket-path=/s --mac=53:54:00:00:00:01", "group address"},
		{"--socket-path=/s --mac=00:00:00:00:00:00", "leave --mac out"},
		{"--socket-path=/s --name=a/b", "letters"},
		{"--socket-path=/s --name=.hidden", "letters"},
		{"--socket-path=/s --api=tcp:1", "unix:PATH"},
		{"--socket-path=/s --api=vsock:0", "1 to 4294967294"},
		{"--socket-path=/s --features=+nonsense", "nonsense"},
		{"--socket-path=/s --features=", "+NAME"},
		{"--socket-path=/s --features", "+NAME"},
		{"--socket-path=/s --log-level=loud", "log-level"},
		{"--socket-path=/s --log-format=xml", "log-format"},
		{"tap create", "name"},
		{"tap destroy x", "destroy"},
	} {
		_, err := parse(t, strings.Fields(c.args)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q in it", c.args, err, c.want)
		}
	}
}

func FuzzFeatureEdit(f *testing.F) {
	for _, s := range []string{"+csum,-mq", "-53", "csum", "+", ",", "+csum,-csum"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var e featureEdit
		if err := e.parse(s); err == nil && (e.with&e.without != 0 || e.with|e.without == 0) {
			t.Fatalf("%q: %+v", s, e)
		}
	})
}

func FuzzValues(f *testing.F) {
	for _, s := range []string{"64/64", "0/0", "1000000/32768", "52:54:00:12:34:56", "net0", "/", "5254.0012.3456"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var l limits
		if l.UnmarshalText([]byte(s)) == nil && (l.Usecs > maxUsecs || l.Packets > maxFrames) {
			t.Fatalf("%q: limits %+v", s, l)
		}
		var m mac
		if m.UnmarshalText([]byte(s)) == nil && (m[0]&1 != 0 || m == mac{}) {
			t.Fatalf("%q: address %x", s, m)
		}
		var n deviceName
		if n.UnmarshalText([]byte(s)) == nil && (string(n) != s || strings.ContainsAny(s, "/%? \n")) {
			t.Fatalf("%q: name", s)
		}
	})
}

// TestModerationFlags: one of the two ways to choose an engine, and the short one
// is the fixed engine.
func TestModerationFlags(t *testing.T) {
	if _, err := moderationEngine("tx", "rdma-dim", limits{Usecs: 1, Packets: 1}, coalesce.TX); err == nil ||
		!strings.Contains(err.Error(), "--tx-coalesce is short for --tx-moderation fixed") {
		t.Errorf("both: %v", err)
	}
	for text, want := range map[engine]string{"": "fixed:64/32", "net-dim:cqe": "net-dim:cqe"} {
		l := limits{Usecs: 64, Packets: 32}
		if text != "" {
			l = limits{}
		}
		s, err := moderationEngine("rx", text, l, coalesce.RX)
		if err != nil || s.String() != want || s.Direction != coalesce.RX {
			t.Errorf("%q: %s, %v", text, s, err)
		}
	}
}
