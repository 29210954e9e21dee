package coalesce

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrEngine is wrapped by the errors of [ParseEngine].
var ErrEngine = errors.New("coalesce: not a moderation engine")

// EngineKind is one of the engines.
type EngineKind uint8

const (
	// EngineOff has no policy: the driver's limits apply.
	EngineOff EngineKind = iota
	// EngineFixed applies the same limits all the time.
	EngineFixed
	// EngineNetDim climbs to the profile with the best throughput, see netdim.go.
	EngineNetDim
	// EngineRDMADim is its sister for completions, see rdmadim.go.
	EngineRDMADim
	// EngineAdaptive is vhostnet's own, see adaptive.go.
	EngineAdaptive

	numEngines = int(EngineAdaptive) + 1
)

var engineNames = [numEngines]string{"off", "fixed", "net-dim", "rdma-dim", "adaptive"}

// String returns the engine's name.
func (k EngineKind) String() string {
	if int(k) < numEngines {
		return engineNames[k]
	}
	return "invalid"
}

// The largest limits that an engine can be given: a second, beyond which nobody
// tells moderation from a stall, and as many packets as the largest virtqueue
// has descriptors.
const (
	MaxHostUsecs   = 1_000_000
	MaxHostPackets = 32768
)

// NetDimSteps is how many limits a profile of net-dim has.
const NetDimSteps = 5

// EngineSpec is an engine with its parameters, before it is made for a
// virtqueue. The zero value is "off". It can be compared with ==.
type EngineSpec struct {
	Kind      EngineKind
	Direction Direction
	// Limits are those of the fixed engine.
	Limits Limits
	// CQE selects net-dim's profiles for devices whose timer restarts with each
	// completion; the others are for a timer that runs from the first one.
	CQE bool
	// Profile replaces net-dim's own limits, unless it is zero.
	Profile [NetDimSteps]Limits
	// MaxLatency is adaptive's latency budget in microseconds, 0 for its default.
	MaxLatency uint32
}

// ParseEngine reads an engine's name and parameters:
//
//	off
//	fixed:USECS/FRAMES
//	net-dim[:eqe|cqe][:USECS,FRAMES_USECS,FRAMES_USECS,FRAMES_USECS,FRAMES_USECS,FRAMES]
//	rdma-dim
//	adaptive[:max-latency=USECS]
//
// Numbers are decimal, up to [MaxHostUsecs] and [MaxHostPackets]; a latency
// budget is at least 1. Limits of 0/0 are taken as 0/1, which is a notification
// for every packet whatever the driver asked for, because the zero limits would
// mean to have no policy. With five limits of one's own for net-dim, eqe or cqe
// makes no difference.
func ParseEngine(spec string, dir Direction) (EngineSpec, error) {
	s, err := parseEngine(spec)
	if err != nil {
		return EngineSpec{}, fmt.Errorf("%w: %q: %w", ErrEngine, spec, err)
	}
	s.Direction = dir
	return s, nil
}

var (
	errNoParameters = errors.New("takes no parameters")
	errUnknown      = errors.New("must be off, fixed:USECS/FRAMES, net-dim, rdma-dim or adaptive")
)

func parseEngine(spec string) (EngineSpec, error) {
	name, args, has := strings.Cut(spec, ":")
	switch name {
	case "off":
		if has {
			return EngineSpec{}, errNoParameters
		}
		return EngineSpec{}, nil
	case "rdma-dim":
		if has {
			return EngineSpec{}, errNoParameters
		}
		return EngineSpec{Kind: EngineRDMADim}, nil
	case "fixed":
		l, err := parseLimits(args, "/")
		return EngineSpec{Kind: EngineFixed, Limits: l}, err
	case "net-dim":
		if !has {
			return EngineSpec{Kind: EngineNetDim}, nil
		}
		return parseNetDim(args)
	case "adaptive":
		if !has {
			return EngineSpec{Kind: EngineAdaptive}, nil
		}
		return parseAdaptive(args)
	}
	return EngineSpec{}, errUnknown
}

func parseNetDim(args string) (EngineSpec, error) {
	s := EngineSpec{Kind: EngineNetDim}
	mode, profile, has := strings.Cut(args, ":")
	switch mode {
	case "eqe":
	case "cqe":
		s.CQE = true
	default:
		if has {
			return s, fmt.Errorf("%q must be eqe or cqe", mode)
		}
		profile, has = mode, true
	}
	if !has {
		return s, nil
	}
	s.CQE = false
	rest, more := profile, true
	for i := range s.Profile {
		if !more {
			return s, fmt.Errorf("needs %d limits, has %d", NetDimSteps, i)
		}
		var field string
		field, rest, more = strings.Cut(rest, "_")
		var err error
		if s.Profile[i], err = parseLimits(field, ","); err != nil {
			return s, err
		}
	}
	if more {
		return s, fmt.Errorf("needs %d limits, has more", NetDimSteps)
	}
	return s, nil
}

func parseAdaptive(args string) (EngineSpec, error) {
	s := EngineSpec{Kind: EngineAdaptive}
	key, value, has := strings.Cut(args, "=")
	if !has || key != "max-latency" {
		return s, fmt.Errorf("%q must be max-latency=USECS", args)
	}
	n, err := parseNumber(value, MaxHostUsecs)
	if err == nil && n == 0 {
		err = errors.New("a latency budget must be 1 us or more")
	}
	s.MaxLatency = n
	return s, err
}

// parseLimits reads USECS and FRAMES with a separator between them.
func parseLimits(s, sep string) (Limits, error) {
	u, p, has := strings.Cut(s, sep)
	if !has {
		return Limits{}, fmt.Errorf("%q must be USECS%sFRAMES", s, sep)
	}
	usecs, err := parseNumber(u, MaxHostUsecs)
	if err != nil {
		return Limits{}, err
	}
	packets, err := parseNumber(p, MaxHostPackets)
	if err != nil {
		return Limits{}, err
	}
	l := Limits{Usecs: usecs, Packets: packets}
	if l == (Limits{}) {
		l.Packets = 1
	}
	return l, nil
}

func parseNumber(s string, most uint64) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > most {
		return 0, fmt.Errorf("%q must be a number of 0 to %d", s, most)
	}
	return uint32(n), nil
}

// String returns the text from which [ParseEngine] makes the same spec.
func (s EngineSpec) String() string {
	switch s.Kind {
	case EngineFixed:
		return fmt.Sprintf("%v:%d/%d", s.Kind, s.Limits.Usecs, s.Limits.Packets)
	case EngineNetDim:
		if s.Profile != ([NetDimSteps]Limits{}) {
			b := []byte(s.Kind.String())
			for i, l := range s.Profile {
				b = fmt.Appendf(b, "%c%d,%d", ":____"[i], l.Usecs, l.Packets)
			}
			return string(b)
		}
		if s.CQE {
			return s.Kind.String() + ":cqe"
		}
	case EngineAdaptive:
		if s.MaxLatency != 0 {
			return fmt.Sprintf("%v:max-latency=%d", s.Kind, s.MaxLatency)
		}
	}
	return s.Kind.String()
}

// New makes the engine for one virtqueue. For a kind that does not exist it is
// "off".
func (s EngineSpec) New() Engine {
	switch s.Kind {
	case EngineFixed:
		return newFixed(s.Kind.String(), s.Limits)
	case EngineNetDim:
		profile := s.Profile
		if profile == ([NetDimSteps]Limits{}) {
			mode := 0
			if s.CQE {
				mode = 1
			}
			profile = netDimProfiles[s.Direction&1][mode]
		}
		return newNetDim(profile)
	case EngineRDMADim:
		return newRDMADim()
	case EngineAdaptive:
		return newAdaptive(AdaptiveOptions{Direction: s.Direction, MaxLatency: s.MaxLatency})
	}
	return newFixed(engineNames[EngineOff], Limits{})
}
