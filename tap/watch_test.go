package tap

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestWatchLink: whoever watches is told when the interface goes down, up, and away.
func TestWatchLink(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{Down: true})
	p := open(t, "vn0", Options{})
	changes := make(chan struct{}, 100)
	if err := p.WatchLink(func() { changes <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	await := func(up bool) {
		t.Helper()
		for end := time.After(patience); p.LinkUp() != up; {
			select {
			case <-changes:
			case <-end:
				t.Fatalf("the link is up: %t, and nobody says so", up)
			}
		}
	}
	told := func(what string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(patience):
			t.Fatalf("%s: nothing was said", what)
		}
		for len(changes) > 0 {
			<-changes
		}
	}
	await(false)
	if err := netlink.LinkSetUp(linkOf(t, "vn0")); err != nil {
		t.Fatal(err)
	}
	told("up")
	await(true)
	if err := netlink.LinkSetDown(linkOf(t, "vn0")); err != nil {
		t.Fatal(err)
	}
	told("down")
	await(false)
	if err := netlink.LinkDel(linkOf(t, "vn0")); err != nil {
		t.Fatal(err)
	}
	told("deleted")
}
