package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// frameLength is that of the smallest frame, without its checksum.
const frameLength = 60

// localEtherType is for experiments (IEEE 802): no protocol takes such a frame,
// so the guest's stack drops it as early as it can.
const localEtherType = 0x88b5

// rawRates are how many frames a second are offered, by lane: what its guest
// takes without losing many.
var rawRates = map[string]int{"native": 150000, "uml": 60000, "netdev": 25000, "test-device": 25000}

// rawRX offers frames at a fixed rate, which the guest's stack drops.
func rawRX() workload {
	return workload{
		name: "raw-rx-60", direction: "rx",
		about: "frames of 60 bytes from the host at a fixed rate, dropped by the guest's stack; packets that the device delivered",
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			var sent, refused int
			length := time.Duration(l.seconds * float64(time.Second))
			rate := rawRates[b.site.Lane()]
			err := b.site.Namespace().Do(func() (err error) {
				if b.site.Lane() == "native" {
					// The guest's processor is the guest's.
					var set unix.CPUSet
					set.Set(hostCPU)
					if err := unix.SchedSetaffinity(0, &set); err != nil {
						return fmt.Errorf("bind to processor %d: %w", hostCPU, err)
					}
				}
				sent, refused, err = sendFrames(ctx, rate, length)
				return err
			})
			return outcome{unit: "packets/s", extra: map[string]float64{
				"offered/s": float64(rate), "sent/s": float64(sent) / l.seconds, "refused/s": float64(refused) / l.seconds,
			}}, err
		},
	}
}

// sendFrames sends broadcast frames through the TAP at an even rate, from the
// thread that it is called in.
func sendFrames(ctx context.Context, rate int, length time.Duration) (sent, refused int, err error) {
	link, err := net.InterfaceByName(tapName)
	if err != nil {
		return 0, 0, err
	}
	// Protocol 0: the socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("packet socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return 0, 0, fmt.Errorf("packet socket: %w", err)
	}
	// Sleep is as exact as the kernel's timers are.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return 0, 0, fmt.Errorf("timer slack: %w", err)
	}
	frame := make([]byte, frameLength)
	copy(frame, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0, 0, 0, 0, 1, localEtherType >> 8, localEtherType & 0xff})
	to := &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6}
	copy(to.Addr[:], frame[:6])
	// In between it sleeps, as there may be no processor to spin on. What is due
	// after a sleep is sent in one go, but no more than a burst after a long one.
	const gap, burst = 50 * time.Microsecond, 64
	start, due := time.Now(), 0.0
	for last := start; ; {
		now := time.Now()
		if now.Sub(start) >= length {
			return sent, refused, nil
		}
		if err := ctx.Err(); err != nil {
			return sent, refused, err
		}
		due = min(due+now.Sub(last).Seconds()*float64(rate), burst)
		for last = now; due >= 1; due-- {
			switch err := unix.Sendto(fd, frame, 0, to); {
			case err == nil:
				sent++
			case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN):
				refused++
			default:
				return sent, refused, fmt.Errorf("send a frame: %w", err)
			}
		}
		_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(gap)}, nil)
	}
}

// pktgen is the kernel's packet generator in the guest.
func pktgen(orphan bool) workload {
	name, about := "pktgen-tx-60", "pktgen in the guest, frames of 60 bytes, as many as go"
	if orphan {
		name, about = name+"-orphan", about+"; the guest transmits without NAPI (napi_tx=0)"
	}
	return workload{
		name: name, about: about, direction: "tx", orphan: orphan, lanes: []string{"netdev", "test-device"},
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			out, err := b.site.Guest(ctx, fmt.Sprintf(pktgenScript, frameLength, l.seconds))
			if err != nil {
				return outcome{}, err
			}
			rate, refused, err := parsePktgen(out)
			return outcome{rate: rate, unit: "packets/s", extra: map[string]float64{"errors": refused}}, err
		},
	}
}

// pktgenScript sends to an address of nobody, so that the host answers nothing.
// The generator runs until the process that started it gets a signal. It does not
// know the device by name after the driver was loaded anew.
const pktgenScript = `modprobe pktgen 2>/dev/null
cd /proc/net/pktgen && echo rem_device_all > kpktgend_0 && echo add_device eth0 > kpktgend_0 || exit 1
for line in "count 0" "clone_skb 0" "pkt_size %d" "delay 0" "dst 10.77.0.9" "dst_mac 02:00:00:00:00:99"; do
  echo $line > eth0 || exit 2
done
sh -c 'echo start > pgctrl' & starter=$!
sleep %.1f
kill $starter; wait $starter
cat eth0`

var pktgenResult = regexp.MustCompile(`(?s)Result: OK: (\d+)\(c\d+\+d\d+\) usec, (\d+) \(\d+byte,\d+frags\)\s+(\d+)pps .*?errors: (\d+)`)

// parsePktgen reads a device's file: packets per second, and how often the
// driver did not take one.
func parsePktgen(out string) (rate, refused float64, err error) {
	m := pktgenResult.FindStringSubmatch(out)
	if m == nil {
		return 0, 0, unexpected("pktgen", out)
	}
	if rate, err = number(m[3]); err == nil {
		refused, err = number(m[4])
	}
	return rate, refused, err
}
