package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/virtio"
)

// reflecting returns a descriptor on which each frame that is written can be read.
func reflecting(t *testing.T) int {
	t.Helper()
	// A datagram socket that is connected to itself.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrUnix{}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, at); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestBare: every frame that is counted went out and, in an echo, came back.
func TestBare(t *testing.T) {
	fd := reflecting(t)
	b, err := newBare(fd, "echo", 64)
	if err != nil {
		t.Fatal(err)
	}
	w, err := b.measure(t.Context(), peer.Order{WarmUp: time.Millisecond, Length: time.Millisecond, BackEnd: unix.Getpid()})
	if err != nil || w.Packets < 64 || w.Seconds <= 0 {
		t.Errorf("%+v, %v", w, err)
	}
	if n, err := b.read(); n != 0 || err != nil {
		t.Errorf("something is left: %d, %v", n, err)
	}
	sink, err := newBare(fd, "sink", 1500)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.write(); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(fd, make([]byte, 4096)); n != virtio.NetHeaderLen+1500 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	// What comes back has to be what was sent.
	if err := sink.write(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.read(); err == nil || !strings.Contains(err.Error(), "of 76") {
		t.Errorf("another frame: %v", err)
	}
}

func TestBareFails(t *testing.T) {
	if _, err := newBare(-1, "sink", 1); err == nil {
		t.Error("a frame of one byte")
	}
	b, err := newBare(-1, "echo", 64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.measure(t.Context(), peer.Order{Length: time.Millisecond}); err == nil || !strings.Contains(err.Error(), "bad file descriptor") {
		t.Errorf("no TAP: %v", err)
	}
	if err := (&bareArgs{Tap: "toolongforaninterface", Mode: "sink", Size: 64}).Run(&streams{ctx: t.Context(), in: strings.NewReader(""), out: io.Discard}); err == nil {
		t.Error("a TAP with an impossible name")
	}
}
