package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/tap"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// TestMain makes the test program a native guest, and a vhostnet.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "guest":
		var c commands
		var k *kong.Context
		if k, err = kong.Must(&c).Parse(os.Args[1:]); err == nil {
			err = k.Run(&streams{context.Background(), os.Stdin, os.Stdout, os.Stderr})
		}
	case len(os.Args) > 1 && os.Args[1] == "serve":
		err = fakeVhostnet(os.Args[2:])
	default:
		// With the race detector a child would end a second late.
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
		os.Exit(m.Run())
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// fakeVhostnet is the part of the program vhostnet that is measured.
func fakeVhostnet(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	path, name := f.String("socket-path", "", ""), f.String("port", "", "")
	f.String("log-level", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	p, err := tap.Open(strings.TrimPrefix(*name, "tap:"), tap.Options{CreateIfMissing: true})
	if err != nil {
		return err
	}
	dev, err := netdev.New(netdev.Config{Name: "fake", QueuePairs: 1}, p)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	err = vhostuser.Run(ctx, vhostuser.Endpoint{Path: *path}, dev, vhostuser.Options{})
	return errors.Join(err, dev.Close(), p.Close())
}

// TestNative is the native lane with one back-end: TCP of a real stack goes both ways.
func TestNative(t *testing.T) {
	skip := t.Skip
	if os.Getenv("CI") != "" {
		skip = t.Fatal
	}
	if os.Geteuid() != 0 {
		skip("it makes network namespaces: sudo -E go test ./bench/stream")
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		skip(err, ": apt-get install iperf3, then go test ./bench/stream")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The path of a socket has to be short.
	dir, err := os.MkdirTemp("", "vn-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	loads := slices.DeleteFunc(allLoads(), func(l load) bool { return l.kind != kindTCP })
	o := &options{Launches: 1, Rounds: 1, Seconds: 1, HostCore: -1}
	s := &starter{o: o, loads: loads, dir: dir, self: self, binary: self}
	s.tool = func(ctx context.Context, name string, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, name, args...)
	}
	r := newReport(o, nil)
	var progress bytes.Buffer
	c := &comparison{
		o: o, lane: s.lane(laneNative), plan: plan{loads: loads, backEnds: regexp.MustCompile("")}, progress: &progress, report: r,
	}
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.finish()
	if err := r.failed(); err != nil {
		t.Fatal(err)
	}
	for _, l := range r.Lanes[0].Loads {
		if len(l.BackEnds) != 1 || l.BackEnds[0].Rate.Median <= 0 || l.BackEnds[0].CPUNanoseconds.Median <= 0 || l.BackEnds[0].Calls.Median <= 0 {
			t.Errorf("%s: %+v", l.Name, l.BackEnds)
		}
	}
	if !strings.Contains(progress.String(), "launch 1 of 1") {
		t.Errorf("progress %q", &progress)
	}
}

func TestAnswer(t *testing.T) {
	var out bytes.Buffer
	err := answer(strings.NewReader("counters\n"), &out, func() peer.GuestCounters { return peer.GuestCounters{Calls: 3, Kicks: 2} })
	want := peer.DriverPrompt + `{"calls":3,"kicks":2,"lost":0}` + "\n" + peer.DriverPrompt
	if err != nil || out.String() != want {
		t.Errorf("%v: %q", err, &out)
	}
}

func TestNoBackEnd(t *testing.T) {
	if _, err := (&starter{}).backEnd(t.Context(), "nothing", "", peer.Place{}); err == nil {
		t.Error("there is nothing")
	}
}
