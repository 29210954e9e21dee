package virtio

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Features is a set of feature bits 0 to 63. Bits from 64 on cannot be
// negotiated over vhost-user, whose messages carry 64.
type Features uint64

// Feature bits of network devices (virtio 1.4, "Network Device / Feature bits").
const (
	FeatureCSum              Features = 1 << 0
	FeatureGuestCSum         Features = 1 << 1
	FeatureCtrlGuestOffloads Features = 1 << 2
	FeatureMTU               Features = 1 << 3
	FeatureMAC               Features = 1 << 5
	FeatureGSO               Features = 1 << 6 // legacy
	FeatureGuestTSO4         Features = 1 << 7
	FeatureGuestTSO6         Features = 1 << 8
	FeatureGuestECN          Features = 1 << 9
	FeatureGuestUFO          Features = 1 << 10
	FeatureHostTSO4          Features = 1 << 11
	FeatureHostTSO6          Features = 1 << 12
	FeatureHostECN           Features = 1 << 13
	FeatureHostUFO           Features = 1 << 14
	FeatureMrgRxBuf          Features = 1 << 15
	FeatureStatus            Features = 1 << 16
	FeatureCtrlVQ            Features = 1 << 17
	FeatureCtrlRX            Features = 1 << 18
	FeatureCtrlVLAN          Features = 1 << 19
	FeatureCtrlRXExtra       Features = 1 << 20
	FeatureGuestAnnounce     Features = 1 << 21
	FeatureMQ                Features = 1 << 22
	FeatureCtrlMACAddr       Features = 1 << 23
	FeatureDeviceStats       Features = 1 << 50
	FeatureHashTunnel        Features = 1 << 51
	FeatureVQNotfCoal        Features = 1 << 52
	FeatureNotfCoal          Features = 1 << 53
	FeatureGuestUSO4         Features = 1 << 54
	FeatureGuestUSO6         Features = 1 << 55
	FeatureHostUSO           Features = 1 << 56
	FeatureHashReport        Features = 1 << 57
	FeatureGuestHdrLen       Features = 1 << 59
	FeatureRSS               Features = 1 << 60
	FeatureRSCExt            Features = 1 << 61
	FeatureStandby           Features = 1 << 62
	FeatureSpeedDuplex       Features = 1 << 63
)

// Feature bits of the transport and of virtqueues (virtio 1.4, "Reserved Feature
// Bits"), and those that vhost and vhost-user put among them.
const (
	FeatureNotifyOnEmpty    Features = 1 << 24 // legacy
	FeatureLogAll           Features = 1 << 26 // vhost
	FeatureAnyLayout        Features = 1 << 27 // legacy
	FeatureIndirectDesc     Features = 1 << 28
	FeatureEventIdx         Features = 1 << 29
	FeatureProtocolFeatures Features = 1 << 30 // vhost-user
	FeatureVersion1         Features = 1 << 32
	FeatureAccessPlatform   Features = 1 << 33
	FeatureRingPacked       Features = 1 << 34
	FeatureInOrder          Features = 1 << 35
	FeatureOrderPlatform    Features = 1 << 36
	FeatureNotificationData Features = 1 << 38
	FeatureRingReset        Features = 1 << 40
)

var featureNames = [64]string{
	0: "VIRTIO_NET_F_CSUM", 1: "VIRTIO_NET_F_GUEST_CSUM", 2: "VIRTIO_NET_F_CTRL_GUEST_OFFLOADS",
	3: "VIRTIO_NET_F_MTU", 5: "VIRTIO_NET_F_MAC", 6: "VIRTIO_NET_F_GSO",
	7: "VIRTIO_NET_F_GUEST_TSO4", 8: "VIRTIO_NET_F_GUEST_TSO6", 9: "VIRTIO_NET_F_GUEST_ECN",
	10: "VIRTIO_NET_F_GUEST_UFO", 11: "VIRTIO_NET_F_HOST_TSO4", 12: "VIRTIO_NET_F_HOST_TSO6",
	13: "VIRTIO_NET_F_HOST_ECN", 14: "VIRTIO_NET_F_HOST_UFO", 15: "VIRTIO_NET_F_MRG_RXBUF",
	16: "VIRTIO_NET_F_STATUS", 17: "VIRTIO_NET_F_CTRL_VQ", 18: "VIRTIO_NET_F_CTRL_RX",
	19: "VIRTIO_NET_F_CTRL_VLAN", 20: "VIRTIO_NET_F_CTRL_RX_EXTRA", 21: "VIRTIO_NET_F_GUEST_ANNOUNCE",
	22: "VIRTIO_NET_F_MQ", 23: "VIRTIO_NET_F_CTRL_MAC_ADDR",
	24: "VIRTIO_F_NOTIFY_ON_EMPTY", 26: "VHOST_F_LOG_ALL", 27: "VIRTIO_F_ANY_LAYOUT",
	28: "VIRTIO_F_INDIRECT_DESC", 29: "VIRTIO_F_EVENT_IDX", 30: "VHOST_USER_F_PROTOCOL_FEATURES",
	32: "VIRTIO_F_VERSION_1", 33: "VIRTIO_F_ACCESS_PLATFORM", 34: "VIRTIO_F_RING_PACKED",
	35: "VIRTIO_F_IN_ORDER", 36: "VIRTIO_F_ORDER_PLATFORM", 38: "VIRTIO_F_NOTIFICATION_DATA",
	40: "VIRTIO_F_RING_RESET",
	50: "VIRTIO_NET_F_DEVICE_STATS", 51: "VIRTIO_NET_F_HASH_TUNNEL", 52: "VIRTIO_NET_F_VQ_NOTF_COAL",
	53: "VIRTIO_NET_F_NOTF_COAL", 54: "VIRTIO_NET_F_GUEST_USO4", 55: "VIRTIO_NET_F_GUEST_USO6",
	56: "VIRTIO_NET_F_HOST_USO", 57: "VIRTIO_NET_F_HASH_REPORT", 59: "VIRTIO_NET_F_GUEST_HDRLEN",
	60: "VIRTIO_NET_F_RSS", 61: "VIRTIO_NET_F_RSC_EXT", 62: "VIRTIO_NET_F_STANDBY",
	63: "VIRTIO_NET_F_SPEED_DUPLEX",
}

// Has reports whether all bits of want are in f.
func (f Features) Has(want Features) bool { return f&want == want }

// Names returns the names of the bits in f, lowest bit first, "BIT_n" for a bit
// without a name. It is never nil.
func (f Features) Names() []string {
	names := make([]string, 0, bits.OnesCount64(uint64(f)))
	for b := f; b != 0; b &= b - 1 {
		names = append(names, bitName(bits.TrailingZeros64(uint64(b))))
	}
	return names
}

func bitName(n int) string {
	if featureNames[n] != "" {
		return featureNames[n]
	}
	return "BIT_" + strconv.Itoa(n)
}

// String returns the names joined by commas.
func (f Features) String() string { return strings.Join(f.Names(), ",") }

// ErrFeature is wrapped by errors about feature names and dependencies.
var ErrFeature = errors.New("virtio: feature")

// ParseFeature returns the bit with that name, in any case and with or without
// its VIRTIO_NET_F_ or VIRTIO_F_ prefix, or with that number, 0 to 63.
func ParseFeature(name string) (Features, error) {
	if n, err := strconv.Atoi(name); err == nil {
		if n < 0 || n > 63 {
			return 0, fmt.Errorf("%w: bit %d: want 0 to 63", ErrFeature, n)
		}
		return 1 << n, nil
	}
	want := strings.ReplaceAll(strings.ToUpper(name), "-", "_")
	for n, full := range featureNames {
		if full == "" {
			continue
		}
		_, short, _ := strings.Cut(full, "_F_")
		if want == full || want == short {
			return 1 << n, nil
		}
	}
	return 0, fmt.Errorf("%w: no feature is called %q", ErrFeature, name)
}

// Dependency says that a feature may only be negotiated together with others
// (virtio 1.4, "Network Device / Feature bits / Feature bit requirements").
type Dependency struct {
	Feature Features
	// AnyOf lists what it needs, at least one of them.
	AnyOf Features
}

func (d Dependency) String() string {
	return fmt.Sprintf("%s needs %s", d.Feature, strings.Join(d.AnyOf.Names(), " or "))
}

var dependencies = [...]Dependency{
	{FeatureGuestTSO4, FeatureGuestCSum},
	{FeatureGuestTSO6, FeatureGuestCSum},
	{FeatureGuestECN, FeatureGuestTSO4 | FeatureGuestTSO6},
	{FeatureGuestUFO, FeatureGuestCSum},
	{FeatureGuestUSO4, FeatureGuestCSum},
	{FeatureGuestUSO6, FeatureGuestCSum},
	{FeatureHostTSO4, FeatureCSum},
	{FeatureHostTSO6, FeatureCSum},
	{FeatureHostECN, FeatureHostTSO4 | FeatureHostTSO6},
	{FeatureHostUFO, FeatureCSum},
	{FeatureHostUSO, FeatureCSum},
	{FeatureCtrlRX, FeatureCtrlVQ},
	{FeatureCtrlRXExtra, FeatureCtrlVQ},
	{FeatureCtrlVLAN, FeatureCtrlVQ},
	{FeatureCtrlGuestOffloads, FeatureCtrlVQ},
	{FeatureGuestAnnounce, FeatureCtrlVQ},
	{FeatureMQ, FeatureCtrlVQ},
	{FeatureCtrlMACAddr, FeatureCtrlVQ},
	{FeatureNotfCoal, FeatureCtrlVQ},
	{FeatureVQNotfCoal, FeatureCtrlVQ},
	{FeatureDeviceStats, FeatureCtrlVQ},
	{FeatureRSS, FeatureCtrlVQ},
	{FeatureHashReport, FeatureCtrlVQ},
	{FeatureHashTunnel, FeatureCtrlVQ},
	{FeatureHashTunnel, FeatureRSS | FeatureHashReport},
	{FeatureRSCExt, FeatureHostTSO4 | FeatureHostTSO6},
}

// Dependencies returns the dependencies of one feature, nil if it has none.
func Dependencies(f Features) []Dependency {
	var list []Dependency
	for _, d := range dependencies {
		if d.Feature == f {
			list = append(list, d)
		}
	}
	return list
}

// Named is the set of all features that have a name.
func Named() Features {
	var f Features
	for n, name := range featureNames {
		if name != "" {
			f |= 1 << n
		}
	}
	return f
}

// Missing returns the dependencies that f does not meet.
func (f Features) Missing() []Dependency {
	var missing []Dependency
	for _, d := range dependencies {
		if f.Has(d.Feature) && f&d.AnyOf == 0 {
			missing = append(missing, d)
		}
	}
	return missing
}

// CheckDependencies returns an error that wraps [ErrFeature] and names what f
// lacks, nil if nothing.
func CheckDependencies(f Features) error {
	missing := f.Missing()
	if len(missing) == 0 {
		return nil
	}
	texts := make([]string, len(missing))
	for i, d := range missing {
		texts[i] = d.String()
	}
	return fmt.Errorf("%w: %s", ErrFeature, strings.Join(texts, "; "))
}

// Closure returns f without the bits whose dependencies are not met.
func (f Features) Closure() Features {
	for {
		missing := f.Missing()
		if len(missing) == 0 {
			return f
		}
		for _, d := range missing {
			f &^= d.Feature
		}
	}
}

// guestOffloads are the bits that are the same in a CTRL_GUEST_OFFLOADS command
// and among the features (virtio 1.4, "Offloads State Configuration").
const guestOffloads = FeatureGuestCSum | FeatureGuestTSO4 | FeatureGuestTSO6 |
	FeatureGuestECN | FeatureGuestUFO | FeatureGuestUSO4 | FeatureGuestUSO6

// GuestOffloads returns the bitmap of a CTRL_GUEST_OFFLOADS command for the
// GUEST_* offloads in f.
func GuestOffloads(f Features) uint64 { return uint64(f & guestOffloads) }

// FeaturesFromGuestOffloads returns the features that the bitmap of a
// CTRL_GUEST_OFFLOADS command names. Bits that name none are left out.
func FeaturesFromGuestOffloads(offloads uint64) Features { return Features(offloads) & guestOffloads }
