package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vhostnet/vhostnet/mgmt"
)

// Engines change while the device runs, for all queues or for some.
func TestModerationCommand(t *testing.T) {
	path := socket(t)
	api := "unix:" + filepath.Join(filepath.Dir(path), "api")
	p := spawn(t, "--socket-path", path, "--port=echo", "--queue-pairs=2", "--name=vm1", "--rx-moderation=net-dim", "--api", api)
	p.await(listening, 1)
	engines := func() string {
		t.Helper()
		c, err := mgmt.Dial(t.Context(), api)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		d, err := c.Device(t.Context(), "vm1")
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, q := range d.Queues[:4] {
			all = append(all, q.Coalesce.Engine)
		}
		return strings.Join(all, " ")
	}
	check := func(want string, args ...string) {
		t.Helper()
		code, out, errs := inProcess(t, append([]string{"moderation", "--api", api}, args...)...)
		if code != exitOK || !strings.Contains(out, "vm1 queue ") {
			t.Fatalf("%v: exit %d\n%s%s", args, code, out, errs)
		}
		if got := engines(); got != want {
			t.Errorf("%v: engines %q, want %q", args, got, want)
		}
	}
	before := engines()
	if before != "net-dim off net-dim off" {
		t.Errorf("engines at start: %q", before)
	}
	check("adaptive fixed:32/8 adaptive fixed:32/8", "--rx=adaptive", "--tx=fixed:32/8")
	check("adaptive fixed:32/8 rdma-dim fixed:32/8", "--queue=2", "--rx=rdma-dim", "--device=vm1")
	check("adaptive off rdma-dim off", "--tx=off")

	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--api", api}, exitUsage, "nothing to change"},
		{[]string{"--api", api, "--rx=loud"}, exitUsage, "loud"},
		{[]string{"--rx=off"}, exitUsage, "--api"},
		{[]string{"--api", api, "--rx=off", "--queue=1"}, exitFailed, "no such virtqueue"},
		{[]string{"--api", api, "--rx=off", "--device=vm2"}, exitFailed, "vm2"},
		{[]string{"--api", api + "x", "--rx=off"}, exitFailed, "no such file"},
		{[]string{"--api", "vsock:99", "--rx=off"}, exitUsage, "context identifier"},
	} {
		code, _, errs := inProcess(t, append([]string{"moderation"}, tt.args...)...)
		if code != tt.code || !strings.Contains(errs, tt.text) {
			t.Errorf("%v: exit %d, %s", tt.args, code, errs)
		}
	}
	p.end(syscall.SIGTERM, path)
}
