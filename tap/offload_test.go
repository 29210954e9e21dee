package tap

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/virtio"
)

const allGuest = guestBase | guestUSO

func set(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

func TestOffloadArgument(t *testing.T) {
	const (
		c  = virtio.FeatureGuestCSum
		t4 = virtio.FeatureGuestTSO4
		t6 = virtio.FeatureGuestTSO6
		e  = virtio.FeatureGuestECN
		u4 = virtio.FeatureGuestUSO4
		u6 = virtio.FeatureGuestUSO6
	)
	for _, tt := range []struct {
		guest virtio.Features
		want  int
	}{
		{0, 0},
		{allGuest &^ c, 0},
		{c, unix.TUN_F_CSUM},
		{c | e, unix.TUN_F_CSUM},
		{c | t4 | e, unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO_ECN},
		{c | t6, unix.TUN_F_CSUM | unix.TUN_F_TSO6},
		{c | u4, unix.TUN_F_CSUM},
		{c | u6, unix.TUN_F_CSUM},
		{c | u4 | u6, unix.TUN_F_CSUM | unix.TUN_F_USO4 | unix.TUN_F_USO6},
		{c | virtio.FeatureGuestUFO, unix.TUN_F_CSUM | unix.TUN_F_UFO},
		{allGuest, 0x7F},
		{hostBase | virtio.FeatureHostUSO, 0},
	} {
		if got := tunOffload(tt.guest); got != tt.want {
			t.Errorf("%#x: %#x, want %#x", uint64(tt.guest), got, tt.want)
		}
	}
}

// Whatever subset a driver accepts, the kernel takes what is made of it.
func TestKernelTakesEverySubset(t *testing.T) {
	namespace(t)
	p := open(t, "vn0", Options{CreateIfMissing: true})
	bits := []virtio.Features{
		virtio.FeatureGuestCSum, virtio.FeatureGuestTSO4, virtio.FeatureGuestTSO6, virtio.FeatureGuestECN,
		virtio.FeatureGuestUFO, virtio.FeatureGuestUSO4, virtio.FeatureGuestUSO6,
	}
	for subset := range 1 << len(bits) {
		var guest virtio.Features
		for i, b := range bits {
			if subset>>i&1 != 0 {
				guest |= b
			}
		}
		if err := p.Configure(12, guest); err != nil {
			t.Errorf("%#x: %v", uint64(guest), err)
		}
	}
}

func TestOffloadsFollowTheDriver(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{})
	p := open(t, "vn0", Options{Queues: 2})
	all := set(csum, tso4, tso6, ecn)
	if p.Offloads().Has(guestUSO) {
		all[uso] = true
	}
	check := func(when string, want map[string]bool, hdr int) {
		t.Helper()
		if diff := cmp.Diff(want, features(t, "vn0")); diff != "" {
			t.Errorf("%s: offloads (-want +got):\n%s", when, diff)
		}
		got, err := unix.IoctlGetInt(p.queues[0].fd, unix.TUNGETVNETHDRSZ)
		if err != nil || int32(got) != int32(hdr) {
			t.Errorf("%s: header of %d bytes, %v; want %d", when, int32(got), err, hdr)
		}
	}
	check("opened", set(), 12)
	configure(t, p, 12, ^virtio.Features(0))
	check("everything", all, 12)
	configure(t, p, 10, virtio.FeatureGuestCSum)
	check("checksum", set(csum), 10)
	configure(t, p, 12, virtio.FeatureGuestCSum|virtio.FeatureGuestTSO6)
	check("TSO6", set(csum, tso6), 12)
	if err := p.Reset(); err != nil {
		t.Fatal(err)
	}
	check("reset", set(), 10)

	// With no queue attached: the device is idle, or starts.
	for i := range 2 {
		if err := p.SetActive(i, false); err != nil {
			t.Fatal(err)
		}
	}
	configure(t, p, 12, virtio.FeatureGuestCSum|virtio.FeatureGuestTSO4)
	check("idle", set(csum, tso4), 12)
	if l := linkOf(t, "vn0"); l.Queues != 0 || l.DisabledQueues != 2 {
		t.Errorf("%d queues are attached, %d detached", l.Queues, l.DisabledQueues)
	}
	configure(t, p, 12, allGuest)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(set(), features(t, "vn0")); diff != "" {
		t.Errorf("closed: a persistent TAP keeps its offloads:\n%s", diff)
	}
	p = open(t, "vn0", Options{})
	check("opened again", set(), 12)
}

const (
	mss     = 1000
	segLen  = 3500
	ipStart = 14
	tcp     = ipStart + 20
	tcpData = tcp + 20
)

// segment makes a TCP segment over IPv4 that is still to be cut into pieces of
// mss bytes, with the virtio-net header that says so.
func segment() (hdr [10]byte, f []byte) {
	f = make([]byte, tcpData+segLen)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0})
	ip := f[ipStart:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], []byte{192, 0, 2, 1, 192, 0, 2, 2})
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20], 0))
	f[tcp+12], f[tcp+13] = 5<<4, 0x10
	for i := tcpData; i < len(f); i++ {
		f[i] = byte(i)
	}
	binary.BigEndian.PutUint16(f[tcp+16:], sum(ip[12:20], uint32(unix.IPPROTO_TCP+len(f)-tcp)))
	hdr = [10]byte{virtio.NetHdrFNeedsCSum, virtio.GSOTCPv4}
	for i, v := range []uint16{tcpData, mss, tcp, 16} {
		binary.LittleEndian.PutUint16(hdr[2+2*i:], v)
	}
	return hdr, f
}

// sum is the Internet checksum (RFC 1071) of b, not inverted.
func sum(b []byte, s uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xFFFF {
		s = s&0xFFFF + s>>16
	}
	return uint16(s)
}

// checksum tells whether the TCP checksum of a frame is right.
func checksum(f []byte) bool {
	size := binary.BigEndian.Uint16(f[ipStart+2:])
	body := f[tcp : ipStart+int(size)]
	return sum(body, uint32(sum(f[ipStart+12:ipStart+20], uint32(unix.IPPROTO_TCP+len(body))))) == 0xFFFF
}

// Fault case N06: sessions that accept different offloads, one after another, on
// a host that sends unsegmented TCP with partial checksums.
func TestSessions(t *testing.T) { bothWays(t, testSessions) }

func testSessions(t *testing.T, how IO) {
	namespace(t)
	create(t, "vn0", CreateOptions{SingleQueue: true})
	p := open(t, "vn0", Options{IO: how})
	q := polled(p, 0)
	h := packet(t, "vn0", unix.ETH_P_IP)
	if err := unix.SetsockoptInt(h.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		t.Fatal(err)
	}
	hdr, whole := segment()
	send := func() { h.send(append(hdr[:], whole...)) }

	const tso = virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6
	unsegmented := func(when string) {
		t.Helper()
		send()
		got := receive(t, q)
		var nh virtio.NetHeader
		nh.Decode(got[:12])
		if nh.GSOType != virtio.GSOTCPv4 || nh.Flags != virtio.NetHdrFNeedsCSum || nh.GSOSize != mss || nh.CSumStart != tcp || nh.CSumOffset != 16 {
			t.Errorf("%s: header %+v", when, nh)
		}
		if !bytes.Equal(got[12+tcpData:], whole[tcpData:]) {
			t.Errorf("%s: the segment is not what was sent", when)
		}
		empty(t, q)
	}
	segmented := func(when string, flags uint8) {
		t.Helper()
		send()
		var data []byte
		for len(data) < segLen {
			got := receive(t, q)
			if got[0] != flags || got[1] != virtio.GSONone {
				t.Errorf("%s: header % x", when, got[:12])
			}
			f := got[12:]
			if len(f) > tcpData+mss {
				t.Fatalf("%s: frame of %d bytes", when, len(f))
			}
			if flags == 0 && !checksum(f) {
				t.Errorf("%s: the checksum is wrong", when)
			}
			data = append(data, f[tcpData:]...)
		}
		if !bytes.Equal(data, whole[tcpData:]) {
			t.Errorf("%s: the data is not what was sent", when)
		}
		empty(t, q)
	}

	send() // before any driver is there
	configure(t, p, 12, tso)
	empty(t, q)
	unsegmented("session 1")
	send() // nobody fetches it any more
	if err := p.Reset(); err != nil {
		t.Fatal(err)
	}
	configure(t, p, 12, 0)
	empty(t, q)
	segmented("session 2", 0)
	if err := p.Reset(); err != nil {
		t.Fatal(err)
	}
	configure(t, p, 12, virtio.FeatureGuestCSum)
	segmented("session 3", virtio.NetHdrFNeedsCSum)

	// The driver changes its mind while the device runs.
	configure(t, p, 12, tso)
	unsegmented("more offloads")
	send()
	configure(t, p, 12, tso)
	if got := receive(t, q); len(got) != 12+len(whole) {
		t.Errorf("the same offloads again cost a frame")
	}
	send()
	configure(t, p, 12, 0)
	empty(t, q)
	segmented("no offloads", 0)
}

// And in the other direction: what the driver leaves to the TAP.
func TestDriverOffloads(t *testing.T) {
	namespace(t)
	p := open(t, "vn0", Options{CreateIfMissing: true})
	if !p.Offloads().Has(hostBase | guestBase) {
		t.Fatalf("the TAP offers %#x only", uint64(p.Offloads()))
	}
	if p.Offloads().Has(virtio.FeatureHostUSO) != p.Offloads().Has(guestUSO) {
		t.Error("USO in one direction only")
	}
	configure(t, p, 12, 0)
	h := packet(t, "vn0", unix.ETH_P_IP)
	hdr, whole := segment()
	if err := polled(p, 0).Send([][]byte{hdr[:], make([]byte, 2), whole}); err != nil {
		t.Fatal(err)
	}
	if got := h.recv(); !bytes.Equal(got[tcpData:], whole[tcpData:]) {
		t.Errorf("the host has a segment of %d bytes, not the one of %d", len(got), len(whole))
	}
}
