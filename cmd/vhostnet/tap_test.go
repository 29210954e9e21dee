package main

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// isolate moves the test, and the processes that it starts, to a network
// namespace of its own until it ends.
func isolate(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		const how = "needs root for a network namespace: sudo -E go test ./cmd/vhostnet"
		if os.Getenv("CI") != "" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A thread that cannot go back stays locked and ends with the test.
		if err := netns.Set(home); err != nil {
			t.Error(err)
			return
		}
		_ = ns.Close()
		_ = home.Close()
		runtime.UnlockOSThread()
	})
}

func succeeds(t *testing.T, args ...string) {
	t.Helper()
	if code, text := failure(t, nil, args...); code != exitOK {
		t.Fatalf("%v: exit code %d: %s", args, code, text)
	}
}

func fails(t *testing.T, want string, args ...string) {
	t.Helper()
	code, text := failure(t, nil, args...)
	if code != exitFailed || !strings.Contains(text, want) {
		t.Errorf("%v: exit code %d, no %q in %s", args, code, want, text)
	}
}

func exists(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

func TestTAPProvisioning(t *testing.T) {
	isolate(t)
	path := socket(t)
	succeeds(t, "tap", "create", "vn0", "--queues=1", "--owner=nobody", "--group=65534", "--mtu=9000")
	link, err := netlink.LinkByName("vn0")
	if err != nil {
		t.Fatal(err)
	}
	tt, ok := link.(*netlink.Tuntap)
	if !ok || tt.Mode != netlink.TUNTAP_MODE_TAP || tt.NonPersist || tt.Owner != 65534 || tt.Group != 65534 ||
		tt.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 || tt.MTU != 9000 || tt.Attrs().Flags&1 == 0 {
		t.Errorf("%+v", link)
	}
	fails(t, "exists", "tap", "create", "vn0")
	fails(t, "multi_queue", "--socket-path="+path, "--port=tap:vn0", "--queue-pairs=2", "--log-level=error")

	p := spawn(t, "--socket-path", path, "--port=tap:vn0")
	p.await(listening, 1)
	fails(t, "another process is attached", "tap", "delete", "vn0")
	fails(t, "another process is attached", "--socket-path="+path+"2", "--port=tap:vn0", "--log-level=error")
	p.end(syscall.SIGTERM, path)
	if !exists("vn0") {
		t.Error("the persistent TAP is gone")
	}
	succeeds(t, "tap", "delete", "vn0")
	if exists("vn0") {
		t.Error("the TAP is still there")
	}

	succeeds(t, "tap", "create", "vn1")
	p = spawn(t, "--socket-path", path, "--port=tap:vn1", "--queue-pairs=4")
	p.await(listening, 1)
	answers(t, dial(t, path))
	p.end(syscall.SIGTERM, path)
	succeeds(t, "tap", "delete", "vn1")
}

// A TAP that serve makes is gone with the process, also when it was killed.
func TestTAPOfTheProcess(t *testing.T) {
	isolate(t)
	for _, kill := range []bool{false, true} {
		path := socket(t)
		p := spawn(t, "--socket-path", path, "--port=tap:vnp", "--queue-pairs=2")
		p.await(listening, 1)
		if !exists("vnp") {
			t.Fatal("there is no TAP")
		}
		if kill {
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			p.code()
		} else {
			p.end(syscall.SIGTERM, path)
		}
		if exists("vnp") {
			t.Error("the TAP is still there")
		}
	}
}

func TestOtherInterfacesAreLeftAlone(t *testing.T) {
	isolate(t)
	path := socket(t)
	fails(t, "not a TAP", "--socket-path="+path, "--port=tap:lo", "--log-level=error")
	fails(t, "not a TAP", "tap", "delete", "lo")
	if !exists("lo") {
		t.Error("the interface is gone")
	}
}
