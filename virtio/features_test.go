package virtio

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The numbers of the bits, from the specification and not from the constants.
var bitNumbers = map[int]Features{
	0: FeatureCSum, 1: FeatureGuestCSum, 2: FeatureCtrlGuestOffloads, 3: FeatureMTU, 5: FeatureMAC,
	6: FeatureGSO, 7: FeatureGuestTSO4, 8: FeatureGuestTSO6, 9: FeatureGuestECN, 10: FeatureGuestUFO,
	11: FeatureHostTSO4, 12: FeatureHostTSO6, 13: FeatureHostECN, 14: FeatureHostUFO, 15: FeatureMrgRxBuf,
	16: FeatureStatus, 17: FeatureCtrlVQ, 18: FeatureCtrlRX, 19: FeatureCtrlVLAN, 20: FeatureCtrlRXExtra,
	21: FeatureGuestAnnounce, 22: FeatureMQ, 23: FeatureCtrlMACAddr, 24: FeatureNotifyOnEmpty,
	26: FeatureLogAll, 27: FeatureAnyLayout, 28: FeatureIndirectDesc, 29: FeatureEventIdx,
	30: FeatureProtocolFeatures, 32: FeatureVersion1, 33: FeatureAccessPlatform, 34: FeatureRingPacked,
	35: FeatureInOrder, 36: FeatureOrderPlatform, 38: FeatureNotificationData, 40: FeatureRingReset,
	50: FeatureDeviceStats, 51: FeatureHashTunnel, 52: FeatureVQNotfCoal, 53: FeatureNotfCoal,
	54: FeatureGuestUSO4, 55: FeatureGuestUSO6, 56: FeatureHostUSO, 57: FeatureHashReport,
	59: FeatureGuestHdrLen, 60: FeatureRSS, 61: FeatureRSCExt, 62: FeatureStandby, 63: FeatureSpeedDuplex,
}

func TestFeatureBits(t *testing.T) {
	for n := range 64 {
		f, named := bitNumbers[n]
		if named && f != 1<<n {
			t.Errorf("bit %d is %#x", n, uint64(f))
		}
		name := Features(1 << n).String()
		if named == strings.HasPrefix(name, "BIT_") {
			t.Errorf("bit %d is called %s", n, name)
		}
	}
}

func TestFeatureNames(t *testing.T) {
	tests := []struct {
		f    Features
		want []string
	}{
		{0, []string{}},
		{FeatureMrgRxBuf, []string{"VIRTIO_NET_F_MRG_RXBUF"}},
		{FeatureVersion1 | FeatureCSum | 1<<4 | 1<<63, []string{
			"VIRTIO_NET_F_CSUM", "BIT_4", "VIRTIO_F_VERSION_1", "VIRTIO_NET_F_SPEED_DUPLEX",
		}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, tt.f.Names()); diff != "" {
			t.Errorf("%#x (-want +got):\n%s", uint64(tt.f), diff)
		}
		if got := tt.f.String(); got != strings.Join(tt.want, ",") {
			t.Errorf("%#x: %q", uint64(tt.f), got)
		}
	}
	if n := len(Features(1<<64 - 1).Names()); n != 64 {
		t.Errorf("all bits have %d names", n)
	}
}

func TestHas(t *testing.T) {
	f := FeatureCSum | FeatureMQ
	if !f.Has(0) || !f.Has(FeatureMQ) || !f.Has(f) || f.Has(FeatureMTU) || f.Has(FeatureMQ|FeatureMTU) {
		t.Error("Has is not: all of")
	}
}

func TestParseFeatureRoundTrip(t *testing.T) {
	for n := range 64 {
		want := Features(1) << n
		full := want.Names()[0]
		if full == "BIT_"+strconv.Itoa(n) {
			if _, err := ParseFeature(full); !errors.Is(err, ErrFeature) {
				t.Errorf("%s parsed: %v", full, err)
			}
			continue
		}
		_, short, _ := strings.Cut(full, "_F_")
		for _, name := range []string{
			full, short, strings.ToLower(full), strings.ToLower(short), strings.ReplaceAll(strings.ToLower(short), "_", "-"), strconv.Itoa(n),
		} {
			if got, err := ParseFeature(name); err != nil || got != want {
				t.Errorf("%q: %s, %v; want %s", name, got, err, want)
			}
		}
	}
}

func TestParseFeatureErrors(t *testing.T) {
	for _, name := range []string{"", "-1", "64", "1000000000000", "NET", "VIRTIO_NET_F_", "csum ", "csum,mq", "BIT_4"} {
		if f, err := ParseFeature(name); !errors.Is(err, ErrFeature) || f != 0 {
			t.Errorf("%q: %s, %v", name, f, err)
		}
	}
}

func FuzzParseFeature(f *testing.F) {
	for _, s := range []string{"csum", "VIRTIO_NET_F_MQ", "12", "-0", "+3", "_F_", "virtio-f-version-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseFeature(s)
		if (err == nil) != (got != 0) || got&(got-1) != 0 {
			t.Fatalf("%q: %#x, %v", s, uint64(got), err)
		}
	})
}

func TestDependencies(t *testing.T) {
	tests := []struct {
		f       Features
		missing string // in the error, "" for none
		closure Features
	}{
		{0, "", 0},
		{FeatureCSum | FeatureHostTSO4 | FeatureHostECN, "", FeatureCSum | FeatureHostTSO4 | FeatureHostECN},
		{FeatureHostTSO4, "VIRTIO_NET_F_HOST_TSO4 needs VIRTIO_NET_F_CSUM", 0},
		{FeatureHostUSO | FeatureMAC, "VIRTIO_NET_F_HOST_USO needs VIRTIO_NET_F_CSUM", FeatureMAC},
		{FeatureGuestTSO6 | FeatureGuestECN, "VIRTIO_NET_F_GUEST_TSO6 needs VIRTIO_NET_F_GUEST_CSUM", 0}, // ECN goes with it
		{FeatureHostECN | FeatureCSum, "VIRTIO_NET_F_HOST_ECN needs VIRTIO_NET_F_HOST_TSO4 or VIRTIO_NET_F_HOST_TSO6", FeatureCSum},
		{FeatureMQ | FeatureNotfCoal, "VIRTIO_NET_F_MQ needs VIRTIO_NET_F_CTRL_VQ; VIRTIO_NET_F_NOTF_COAL needs VIRTIO_NET_F_CTRL_VQ", 0},
		{FeatureVQNotfCoal | FeatureCtrlVQ, "", FeatureVQNotfCoal | FeatureCtrlVQ}, // 52 goes without 53
		{FeatureHashTunnel | FeatureCtrlVQ, "VIRTIO_NET_F_HASH_TUNNEL needs VIRTIO_NET_F_HASH_REPORT or VIRTIO_NET_F_RSS", FeatureCtrlVQ},
		{FeatureHashTunnel | FeatureRSS, "VIRTIO_NET_F_RSS needs VIRTIO_NET_F_CTRL_VQ", 0},
		{FeatureRSCExt | FeatureHostTSO6, "VIRTIO_NET_F_HOST_TSO6 needs VIRTIO_NET_F_CSUM", 0},
		{1<<64 - 1, "", 1<<64 - 1},
	}
	for _, tt := range tests {
		err := CheckDependencies(tt.f)
		switch {
		case tt.missing == "" && err != nil:
			t.Errorf("%s: %v", tt.f, err)
		case tt.missing != "" && (!errors.Is(err, ErrFeature) || !strings.Contains(err.Error(), tt.missing)):
			t.Errorf("%s: error %v, want %s", tt.f, err, tt.missing)
		}
		if got := tt.f.Closure(); got != tt.closure {
			t.Errorf("%s: closure %s, want %s", tt.f, got, tt.closure)
		}
	}
}

// The closure is the largest subset without a missing dependency: nothing is
// missing, and no bit that was dropped can be put back.
func TestClosureIsLargest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Features(rapid.Uint64().Draw(t, "features"))
		c := f.Closure()
		if c&^f != 0 || len(c.Missing()) != 0 || CheckDependencies(c) != nil || c.Closure() != c {
			t.Fatalf("%s: closure %s misses %v", f, c, c.Missing())
		}
		for b := f &^ c; b != 0; b &= b - 1 {
			if one := b & -b; len((c | one).Missing()) == 0 {
				t.Fatalf("%s: closure %s lacks %s needlessly", f, c, one)
			}
		}
	})
}

func TestGuestOffloadBits(t *testing.T) {
	const offloads = 1<<1 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<54 | 1<<55
	if got := GuestOffloads(1<<64 - 1); got != offloads {
		t.Errorf("all offloads: %#x, want %#x", got, uint64(offloads))
	}
	if got := FeaturesFromGuestOffloads(1<<64 - 1); got != offloads {
		t.Errorf("features of all bits: %s", got)
	}
	f := FeatureGuestCSum | FeatureGuestTSO4 | FeatureMQ
	if got := FeaturesFromGuestOffloads(GuestOffloads(f)); got != f&^FeatureMQ {
		t.Errorf("round trip: %s", got)
	}
}
