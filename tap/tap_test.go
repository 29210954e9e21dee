package tap

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestOpenCreates(t *testing.T) {
	namespace(t)
	for _, queues := range []int{0, 1, 4} {
		p := open(t, "vn0", Options{Queues: queues, CreateIfMissing: true})
		if p.Queues() != max(queues, 1) || p.Kind() != "tap" || p.String() != "tap:vn0" || p.Name() != "vn0" {
			t.Errorf("%v: %d queues, kind %s, name %s", p, p.Queues(), p.Kind(), p.Name())
		}
		l := linkOf(t, "vn0")
		if l.Attrs().RawFlags&unix.IFF_UP == 0 || !l.NonPersist || l.Flags&netlink.TUNTAP_VNET_HDR == 0 || l.Flags&netlink.TUNTAP_NO_PI == 0 {
			t.Errorf("%d queues: link is %+v", queues, l)
		}
		if multi := l.Flags&netlink.TUNTAP_MULTI_QUEUE != 0; multi != (queues > 1) {
			t.Errorf("%d queues: multi_queue is %v", queues, multi)
		}
		if !p.LinkUp() {
			t.Error("the link is not up")
		}
		for range 2 {
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := netlink.LinkByName("vn0"); err == nil {
			t.Fatal("the interface outlives the port that made it")
		}
		if p.LinkUp() || p.Reset() != nil || p.Configure(12, 0) == nil {
			t.Error("a closed port is not quiet")
		}
	}
	p := open(t, "vn%d", Options{CreateIfMissing: true})
	if strings.Contains(p.Name(), "%") {
		t.Errorf("name is %s", p.Name())
	}
}

func TestOpenExisting(t *testing.T) {
	namespace(t)
	for _, tt := range []struct {
		single bool
		queues int
		err    error
	}{
		{true, 1, nil},
		{true, 2, ErrQueues},
		{false, 1, nil},
		{false, 3, nil},
	} {
		create(t, "vn0", CreateOptions{SingleQueue: tt.single, Down: true})
		p, err := Open("vn0", Options{Queues: tt.queues})
		if !errors.Is(err, tt.err) {
			t.Fatalf("%+v: %v", tt, err)
		}
		if err == nil {
			if p.LinkUp() {
				t.Error("an interface that was down was set up")
			}
			if _, err := Open("vn0", Options{}); !errors.Is(err, ErrBusy) && !errors.Is(err, unix.EBUSY) {
				t.Errorf("%+v: second port: %v", tt, err)
			}
			if err := Delete("vn0"); !errors.Is(err, ErrBusy) && !errors.Is(err, unix.EBUSY) {
				t.Errorf("%+v: delete while in use: %v", tt, err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := Delete("vn0"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestErrors(t *testing.T) {
	namespace(t)
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}
	if err := netlink.LinkAdd(tun); err != nil {
		t.Fatal(err)
	}
	create(t, "vn1", CreateOptions{SingleQueue: true})
	create(t, "vn2", CreateOptions{})

	// A plain queue on a multi_queue TAP.
	plain, err := openWater("vn2", true, true)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	taken := open(t, "vn1", Options{})

	for _, tt := range []struct {
		name string
		o    Options
		want error
		text string
	}{
		{"nothere", Options{}, ErrMissing, "vhostnet tap create"},
		{"lo", Options{}, ErrNotTAP, "device"},
		{"tun0", Options{CreateIfMissing: true}, ErrNotTAP, "TUN"},
		{"vn1", Options{Queues: 2}, ErrQueues, "vhostnet tap create"},
		{"vn1", Options{}, unix.EBUSY, "another process"},
		{"vn2", Options{Queues: 2}, ErrBusy, "another process"},
		{"vn0", Options{Queues: 257, CreateIfMissing: true}, nil, "1 to 256"},
		{"vn0", Options{Queues: -1, CreateIfMissing: true}, nil, "1 to 256"},
		{"abcdefghijklmnop", Options{CreateIfMissing: true}, unix.ENAMETOOLONG, "15 bytes"},
		{"", Options{CreateIfMissing: true}, ErrName, "15 bytes"},
		{"a/b", Options{CreateIfMissing: true}, ErrName, "slash"},
		{"..", Options{CreateIfMissing: true}, ErrName, ""},
	} {
		_, err := Open(tt.name, tt.o)
		var e *Error
		if !errors.As(err, &e) || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("Open(%q, %+v): %v", tt.name, tt.o, err)
		}
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vn1", "lo"} {
		if err := Create(name, CreateOptions{}); !errors.Is(err, ErrExists) {
			t.Errorf("Create(%q): %v", name, err)
		}
	}
	if err := Create("vn%d", CreateOptions{}); !errors.Is(err, ErrName) {
		t.Errorf("Create of a pattern: %v", err)
	}
	if err := Create("vn9", CreateOptions{MTU: 70000}); err == nil {
		t.Error("Create takes an MTU of 70000")
	} else if _, err := netlink.LinkByName("vn9"); err == nil {
		t.Error("Create leaves half an interface behind")
	}
	for name, want := range map[string]error{"nothere": ErrMissing, "lo": ErrNotTAP, "a b": ErrName} {
		if err := Delete(name); !errors.Is(err, want) {
			t.Errorf("Delete(%q): %v", name, err)
		}
	}
}

// The kernel lets a second queue in without IFF_VNET_HDR if the first has none,
// and says so only when it is asked.
func TestAttachChecksFlags(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{})
	for range 2 {
		plain, err := openWater("vn0", true, true)
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
	}
	if fd, _, err := attach("vn0", true); !errors.Is(err, ErrFlags) {
		unix.Close(fd)
		t.Errorf("attach beside plain queues: %v", err)
	}
}

func TestHints(t *testing.T) {
	for _, tt := range []struct {
		op   string
		err  error
		text string
	}{
		{"open " + device, unix.ENOENT, "modprobe tun"},
		{"open " + device, unix.ENODEV, "modprobe tun"},
		{"open " + device, unix.EACCES, "readable and writable"},
		{"attach", unix.EPERM, "CAP_NET_ADMIN"},
		{"attach", unix.EBUSY, "another process"},
		{"attach", unix.EINVAL, "multi_queue"},
		{"attach", unix.E2BIG, "256"},
		{"attach", fmt.Errorf("%w: 1", ErrFlags), "another process"},
	} {
		err := failed(tt.op, "vn0", tt.err)
		if !strings.Contains(err.Error(), tt.text) || !errors.Is(err, tt.err) {
			t.Errorf("%v", err)
		}
		if again := failed("outer", "", err); again != err {
			t.Errorf("%v became %v", err, again)
		}
	}
}

// without runs fn on a thread that lacks CAP_NET_ADMIN.
func without(t *testing.T, fn func()) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	less := data
	less[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&hdr, &less[0]); err != nil {
		t.Fatal(err)
	}
	fn()
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
}

func TestOwner(t *testing.T) {
	namespace(t)
	id := func(v uint32) *uint32 { return &v }
	create(t, "mine", CreateOptions{Owner: id(0)})
	create(t, "nobodys", CreateOptions{})
	create(t, "other", CreateOptions{Owner: id(4242), Group: id(4243)})
	if l := linkOf(t, "other"); l.Owner != 4242 || l.Group != 4243 {
		t.Errorf("owner %d, group %d", l.Owner, l.Group)
	}
	p := open(t, "made", Options{CreateIfMissing: true, Owner: id(77)})
	if l := linkOf(t, "made"); l.Owner != 77 {
		t.Errorf("owner %d of an interface that Open made", l.Owner)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	without(t, func() {
		for name, want := range map[string]error{"other": unix.EPERM, "new": unix.EPERM, "mine": nil, "nobodys": nil} {
			p, err := Open(name, Options{CreateIfMissing: true})
			if !errors.Is(err, want) {
				t.Errorf("Open(%q): %v, want %v", name, err, want)
			}
			if err != nil && !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
				t.Errorf("Open(%q) has no hint: %v", name, err)
			}
			if err == nil {
				// All that a running device needs is allowed to the owner.
				configure(t, p, 12, p.Offloads())
				if err := errors.Join(p.SetActive(0, false), p.SetActive(0, true), p.Reset(), p.Close()); err != nil {
					t.Error(err)
				}
				if err := p.SetMTU(1400); err == nil {
					t.Error("SetMTU works on a closed port")
				}
			}
		}
		if err := Create("new", CreateOptions{}); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("Create: %v", err)
		}
		if err := Delete("other"); !errors.Is(err, unix.EPERM) {
			t.Errorf("Delete of another's: %v", err)
		}
		if err := Delete("mine"); err != nil {
			t.Error(err)
		}
	})
}

func TestMTU(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{MTU: 9000})
	p := open(t, "vn0", Options{Queues: 2})
	if mtu, err := p.MTU(); err != nil || mtu != 9000 {
		t.Errorf("MTU is %d, %v", mtu, err)
	}
	if err := errors.Join(p.SetActive(0, false), p.SetActive(1, false)); err != nil {
		t.Fatal(err)
	}
	if err := p.SetMTU(1400); err != nil {
		t.Fatal(err)
	}
	if got := linkOf(t, "vn0").MTU; got != 1400 {
		t.Errorf("MTU is %d, want 1400", got)
	}
	if p.SetMTU(1) == nil || p.SetMTU(70000) == nil {
		t.Error("the MTU can be anything")
	}

	// Renamed, and in another namespace.
	if err := netlink.LinkSetDown(linkOf(t, "vn0")); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetName(linkOf(t, "vn0"), "renamed"); err != nil {
		t.Fatal(err)
	}
	if err := p.SetMTU(1300); err != nil {
		t.Error(err)
	}
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if err := netns.Set(here); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsFd(linkOf(t, "renamed"), int(there)); err != nil {
		t.Fatal(err)
	}
	if err := p.SetMTU(1200); err != nil {
		t.Error(err)
	}
	if mtu, err := p.MTU(); err != nil || mtu != 1200 {
		t.Errorf("MTU is %d, %v after the interface was moved", mtu, err)
	}
}

func TestNoLeaks(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{})
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := count()
	for range 20 {
		p, err := Open("vn0", Options{Queues: 3})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		for _, o := range []Options{{Queues: 257}, {}} {
			if _, err := Open("nothere", o); err == nil {
				t.Fatal("opened what is not there")
			}
		}
		if err := errors.Join(Create("vn1", CreateOptions{}), Delete("vn1")); err != nil {
			t.Fatal(err)
		}
		if Create("vn1", CreateOptions{MTU: 1}) == nil {
			t.Fatal("created with an MTU of 1")
		}
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}
