package main

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/virtio"
)

// Ranges of --rx-coalesce and --tx-coalesce. A second is far beyond what TCP
// bears; more packets than the largest virtqueue holds are never pending.
const (
	maxUsecs  = 1_000_000
	maxFrames = 32768
)

// limits is the value USECS/FRAMES.
type limits coalesce.Limits

// UnmarshalText reads "64/32".
func (l *limits) UnmarshalText(b []byte) error {
	usecs, frames, found := bytes.Cut(b, []byte("/"))
	if !found {
		return fmt.Errorf("%q: want USECS/FRAMES, for example 64/32", b)
	}
	u, err := number("microseconds", string(usecs), 0, maxUsecs)
	if err != nil {
		return err
	}
	f, err := number("frames", string(frames), 0, maxFrames)
	if err != nil {
		return err
	}
	*l = limits{Usecs: uint32(u), Packets: uint32(f)}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (l limits) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%d/%d", l.Usecs, l.Packets), nil
}

// engine is the notation of a moderation engine.
type engine string

// UnmarshalText checks the notation.
func (e *engine) UnmarshalText(b []byte) error {
	*e = engine(b)
	_, err := coalesce.ParseEngine(string(b), coalesce.RX)
	return err
}

func number(what, s string, least, most uint64) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s %q: want a number of %d to %d", what, s, least, most)
	}
	return n, nil
}

// mac is an Ethernet address.
type mac [6]byte

// UnmarshalText reads "52:54:00:12:34:56".
func (m *mac) UnmarshalText(b []byte) error {
	a, err := net.ParseMAC(string(b))
	switch {
	case err != nil || len(a) != len(m):
		return fmt.Errorf("%q: want six bytes in hexadecimal, for example 52:54:00:12:34:56", b)
	case a[0]&1 != 0:
		return fmt.Errorf("%q is a group address: the lowest bit of the first byte must be 0", b)
	case bytes.Equal(a, make([]byte, len(m))):
		return fmt.Errorf("%q: leave --mac out to let the driver choose an address", b)
	}
	copy(m[:], a)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (m mac) MarshalText() ([]byte, error) {
	return []byte(net.HardwareAddr(m[:]).String()), nil
}

// deviceName is a device's name: it stands in paths of the API and in logs.
type deviceName string

// UnmarshalText checks the name.
func (n *deviceName) UnmarshalText(b []byte) error {
	ok := len(b) >= 1 && len(b) <= 64 && b[0] != '.'
	for _, c := range b {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", rune(c)))
	}
	if !ok {
		return fmt.Errorf("%q: want 1 to 64 letters, digits, dots, hyphens and underscores, no dot first", b)
	}
	*n = deviceName(b)
	return nil
}

// address is one value of --api.
type address mgmt.Address

// UnmarshalText reads "unix:PATH" or "vsock:PORT".
func (a *address) UnmarshalText(b []byte) error {
	parsed, err := mgmt.ParseAddress(string(b))
	*a = address(parsed)
	return err
}

// featureEdit is what --features adds to a device's offer and takes from it.
type featureEdit struct{ with, without virtio.Features }

// Decode reads "+NAME,-NAME". It takes its value from the scanner itself: kong
// would not accept one that begins with a hyphen. It may be called repeatedly;
// the last word on a feature counts.
func (f *featureEdit) Decode(ctx *kong.DecodeContext) error {
	t := ctx.Scan.Pop()
	s, ok := t.Value.(string)
	if t.IsEOL() || !ok {
		return fmt.Errorf("a value is missing: want +NAME,-NAME")
	}
	return f.parse(s)
}

// UnmarshalText reads "+NAME,-NAME".
func (f *featureEdit) UnmarshalText(b []byte) error { return f.parse(string(b)) }

// MarshalText writes what UnmarshalText reads.
func (f featureEdit) MarshalText() ([]byte, error) {
	var words []string
	for _, name := range f.with.Names() {
		words = append(words, "+"+name)
	}
	for _, name := range f.without.Names() {
		words = append(words, "-"+name)
	}
	return []byte(strings.Join(words, ",")), nil
}

func (f *featureEdit) parse(s string) error {
	for word := range strings.SplitSeq(s, ",") {
		add, name := true, word
		if word != "" && (word[0] == '+' || word[0] == '-') {
			add, name = word[0] == '+', word[1:]
		}
		if name == "" {
			return fmt.Errorf("%q: want +NAME,-NAME", s)
		}
		bit, err := virtio.ParseFeature(name)
		if err != nil {
			return fmt.Errorf("%w (vhostnet features lists them)", err)
		}
		if add {
			f.with, f.without = f.with|bit, f.without&^bit
		} else {
			f.with, f.without = f.with&^bit, f.without|bit
		}
	}
	return nil
}
