package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// drive connects a driver to a device with the copying sink.
func drive(t *testing.T) *driver.Driver {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "front")
	conn, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(context.Background(), vhostuser.Endpoint{FD: fds[1]}) }()
	d, err := driver.New(conn.(*net.UnixConn), driver.Config{QueueSize: queueSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestOrders: the front-end's side of the protocol of peer.Driver.
func TestOrders(t *testing.T) {
	l, err := newLoop(drive(t).Pair(0), peer.Traffic{Mode: "sink", Size: 1500})
	if err != nil {
		t.Fatal(err)
	}
	order, err := json.Marshal(peer.Order{WarmUp: time.Millisecond, Length: time.Millisecond, BackEnd: os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := serveOrders(t.Context(), strings.NewReader(fmt.Sprintf("%s\n%s\n", order, order)), &out, l.measure); err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(out.String(), peer.DriverPrompt)
	if len(answers) != 4 || answers[0] != "" || answers[3] != "" {
		t.Fatalf("answers %q", answers)
	}
	for _, text := range answers[1:3] {
		var a peer.Answer
		if err := json.Unmarshal([]byte(text), &a); err != nil || a.Error != "" || a.Packets <= 0 || a.Seconds < 0.001 || !a.Counted {
			t.Errorf("%s: %v", text, err)
		}
	}
	// A back-end that is not there has no processor time.
	var a peer.Answer
	out.Reset()
	if err := serveOrders(t.Context(), strings.NewReader("{\"back_end\": 268435456}\n"), &out, l.measure); err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(out.String(), peer.DriverPrompt), "\n")
	if err := json.Unmarshal([]byte(text), &a); err != nil || !strings.Contains(a.Error, "processor time") {
		t.Errorf("%q: %v", text, err)
	}
	if err := serveOrders(t.Context(), strings.NewReader("what\n"), &out, l.measure); err == nil {
		t.Error("an order that is none")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.measure(ctx, peer.Order{WarmUp: time.Hour}); err == nil {
		t.Error("cancelled, and it goes on")
	}
}

func TestFrame(t *testing.T) {
	for _, size := range []int{42, 64, 1500} {
		f, err := frame(size)
		if err != nil || len(f) != size {
			t.Fatalf("%d bytes, %v", len(f), err)
		}
		if got := sum(f[etherLen : etherLen+ipLen]); got != 0xffff {
			t.Errorf("%d: IP checksum: %#x", size, got)
		}
		if f[etherLen+ipLen+5]|f[etherLen+ipLen+4] == 0 {
			t.Errorf("%d: no UDP length", size)
		}
	}
	for _, size := range []int{41, 65535 + etherLen + 1} {
		if _, err := frame(size); err == nil {
			t.Errorf("a frame of %d bytes", size)
		}
	}
}

// TestCopySink: each frame of a burst is in a buffer of its own.
func TestCopySink(t *testing.T) {
	null, err := builtin.Null(1)
	if err != nil {
		t.Fatal(err)
	}
	s := newCopySink(null)
	q := s.Queue(0)
	for i := range copyBuffers + 1 {
		if err := q.Send([][]byte{{byte(i)}, bytes.Repeat([]byte{byte(i + 1)}, 3000)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, i := range []int{1, copyBuffers / 2, copyBuffers - 1} {
		if b := s.queue.mem[i*copyStride:][:copyBytes]; b[0] != byte(i) || b[1] != byte(i+1) || b[copyBytes-1] != byte(i+1) {
			t.Errorf("buffer %d begins with %x", i, b[:2])
		}
	}
	if b := s.queue.mem; b[0] != copyBuffers || b[1] != copyBuffers+1 {
		t.Errorf("the first buffer was not used again: %x", b[:2])
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
