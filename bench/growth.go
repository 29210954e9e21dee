package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
)

// growthArgs are the command line of the measurement of how a process of vhostnet
// grows.
type growthArgs struct {
	Quick    bool          `help:"Two short rounds: to see that it works."`
	Out      string        `help:"Folder for growth.json and growth.md; the tables go to standard output in any case." default:"bench/results" placeholder:"DIR"`
	Rounds   int           `help:"How often each variant is measured, in turns." default:"7"`
	Duration time.Duration `help:"How long each measurement takes." default:"300ms"`
	Devices  []int         `help:"Numbers of devices in a process, of which one is busy." default:"1,8,64,256"`
	Cores    []int         `help:"The drivers' processor and the devices'." default:"0,1"`
}

// variant is one thing to measure. Those of a section are compared with its first.
type variant struct {
	section, name string
	// group is the part of a section in which ratios are taken; base is the variant of
	// a group that the others are compared with.
	group string
	base  bool
	host  *host
	load  loadArgs
	// idle: the process is also watched while it has nothing to do.
	idle bool
}

// host is a process of vhostnet with devices.
type host struct {
	devices, pairs int
	port           string
	// threads that serve all queue pairs; 0: one for each.
	threads int
	env     []string

	dir    string
	back   peer.BackEnd
	holder *exec.Cmd
	held   io.Closer
}

// Run measures.
func (g *growthArgs) Run(s *streams) (err error) {
	if g.Quick {
		g.Rounds, g.Duration = 2, 100*time.Millisecond
	}
	if g.Rounds < 1 || g.Duration <= 0 || len(g.Cores) != 2 || len(g.Devices) == 0 {
		return fmt.Errorf("%d rounds of %v on cores %v: want at least one of some length, and two cores", g.Rounds, g.Duration, g.Cores)
	}
	variants, hosts := g.variants()
	dir, err := os.MkdirTemp("", "vn-growth-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	defer func() {
		for _, h := range hosts {
			err = errors.Join(err, h.close())
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	vhostnet, err := build(s.ctx, dir)
	if err != nil {
		return err
	}
	for i, h := range hosts {
		h.dir = filepath.Join(dir, strconv.Itoa(i))
		if err := h.start(s.ctx, vhostnet, self, g.Cores); err != nil {
			return err
		}
	}
	r := newGrowthReport(g, variants)
	for round := range g.Rounds {
		fmt.Fprintf(s.err, "round %d of %d\n", round+1, g.Rounds)
		for i, v := range variants {
			m, err := g.measure(s.ctx, self, v)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", v.section, v.name, err)
			}
			r.Variants[i].Samples = append(r.Variants[i].Samples, m)
		}
	}
	r.finish()
	if err := r.markdown(s.out); err != nil {
		return err
	}
	return r.save(g.Out)
}

const (
	sectionPairs   = "Queue pairs"
	sectionRings   = "Ring size"
	sectionDevices = "Devices in a process, one of them busy"
	sectionLatency = "Round trip"

	// oneThread is behind the names of variants whose queue pairs share one.
	oneThread = ", one thread"
)

// variants are what is measured, and the processes for it.
func (g *growthArgs) variants() (list []*variant, hosts []*host) {
	add := func(devices, pairs, threads int, port string, env ...string) *host {
		h := &host{devices: devices, pairs: pairs, threads: threads, port: port, env: env}
		hosts = append(hosts, h)
		return h
	}
	const size = 64
	var rings []*variant
	for _, mode := range []string{"sink", "source", "echo"} {
		port := row{builtIn, mode, size, blocking}.port()
		h, one := add(1, 8, 0, port), add(1, 8, 1, port)
		for _, pairs := range []int{1, 2, 4, 8} {
			v := &variant{
				section: sectionPairs, name: fmt.Sprintf("%s, %d", mode, pairs), group: mode, base: pairs == 1, host: h,
				load: loadArgs{Mode: mode, Size: size, Pairs: pairs, QueueSize: queueSize},
			}
			shared := *v
			shared.name, shared.base, shared.host = v.name+oneThread, false, one
			list = append(list, v, &shared)
		}
		for _, entries := range []int{64, 256, 1024, 4096} {
			rings = append(rings, &variant{
				section: sectionRings, name: fmt.Sprintf("%s, %d", mode, entries), group: mode, base: entries == 256, host: h,
				load: loadArgs{Mode: mode, Size: size, Pairs: 1, QueueSize: entries},
			})
		}
	}
	list = append(list, rings...)
	for threads, suffix := range []string{"", oneThread} {
		for _, n := range g.Devices {
			list = append(list, &variant{
				section: sectionDevices, name: strconv.Itoa(n) + suffix, base: n == g.Devices[0] && threads == 0,
				host: add(n, 1, threads, "echo"), idle: true,
				load: loadArgs{Mode: "echo", Size: size, Pairs: 1, QueueSize: queueSize, Polling: true},
			})
		}
	}
	for _, c := range []struct {
		name, gogc, limit string
		threads           int
	}{
		{"defaults", "", "", 0},
		{"one thread", "", "", 1},
		{"GOGC=off", "off", "", 0},
		{"GOGC=10", "10", "", 0},
		{"GOGC=off GOMEMLIMIT=64MiB", "off", "64MiB", 0},
	} {
		var env []string
		if c.gogc != "" {
			env = append(env, "GOGC="+c.gogc)
		}
		if c.limit != "" {
			env = append(env, "GOMEMLIMIT="+c.limit)
		}
		h := add(1, 2, c.threads, "echo", env...)
		for _, polls := range []bool{false, true} {
			for _, bulk := range []bool{false, true} {
				driver, beside := "blocking", "alone"
				if polls {
					driver = "polling"
				}
				if bulk {
					beside = "beside bulk"
				}
				list = append(list, &variant{
					section: sectionLatency, name: fmt.Sprintf("%s driver, %s, %s", driver, beside, c.name),
					group: driver + beside, base: c.name == "defaults", host: h,
					load: loadArgs{Mode: "ping", Size: size, Pairs: 2, QueueSize: queueSize, Polling: polls, Bulk: bulk},
				})
			}
		}
	}
	return list, hosts
}

// growthSample is one measurement of a variant.
type growthSample struct {
	loadResult
	// CPU is the device process's processor time, Idle that of a second without work.
	CPU  time.Duration `json:"cpu_ns"`
	Idle time.Duration `json:"idle_cpu_ns_per_second,omitempty"`
	// ResidentKB is the process's memory, and Threads how many it has.
	ResidentKB int `json:"resident_kb"`
	Threads    int `json:"threads"`
}

func (g *growthArgs) measure(ctx context.Context, self string, v *variant) (m growthSample, err error) {
	pid := v.host.back.PID()
	if v.idle {
		before, err := peer.CPUTime(pid)
		if err != nil {
			return m, err
		}
		if err := sleepFor(ctx, time.Second); err != nil {
			return m, err
		}
		after, err := peer.CPUTime(pid)
		if err != nil {
			return m, err
		}
		m.Idle = after - before
	}
	load := v.load
	load.Socket, load.Length, load.WarmUp = v.host.socket(0), g.Duration, g.Duration/4
	before, err := peer.CPUTime(pid)
	if err != nil {
		return m, err
	}
	if m.loadResult, err = runLoad(ctx, self, load, g.Cores[0]); err != nil {
		return m, err
	}
	after, err := peer.CPUTime(pid)
	if err != nil {
		return m, err
	}
	m.CPU = after - before
	m.ResidentKB, m.Threads, err = footprint(pid)
	return m, err
}

// runLoad runs a driver in a process of its own.
func runLoad(ctx context.Context, self string, a loadArgs, core int) (r loadResult, err error) {
	order, err := json.Marshal(a)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, "taskset", "-c", strconv.Itoa(core), self, "load", string(order))
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("driver: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (h *host) socket(i int) string { return socketIn(h.dir, i) }

func socketIn(dir string, i int) string { return filepath.Join(dir, strconv.Itoa(i)+".sock") }

// config is the file that describes the devices.
func (h *host) config() []byte {
	var b bytes.Buffer
	for i := range h.devices {
		fmt.Fprintf(&b, "[[device]]\nname = \"bench%d\"\nsocket-path = %q\nport = %q\nqueue-pairs = %d\n\n", i, h.socket(i), h.port, h.pairs)
	}
	return b.Bytes()
}

// start starts the devices, and drivers for those that stay idle.
func (h *host) start(ctx context.Context, vhostnet, self string, cores []int) error {
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(h.dir, "devices.toml")
	if err := os.WriteFile(file, h.config(), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, vhostnet, "serve", "--config", file, "--log-level", "warn", "--threads", strconv.Itoa(h.threads))
	cmd.Env = append(os.Environ(), h.env...)
	var err error
	// The last socket is made last.
	h.back, err = peer.Daemon(ctx, "devices", cmd, h.socket(h.devices-1), peer.Place{Core: cores[1]})
	if err != nil || h.devices == 1 {
		return err
	}
	h.holder = exec.CommandContext(ctx, self, "hold", "--dir", h.dir, "--count", strconv.Itoa(h.devices))
	h.holder.Stderr = os.Stderr
	in, err := h.holder.StdinPipe()
	if err != nil {
		return err
	}
	h.held = in
	out, err := h.holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := h.holder.Start(); err != nil {
		h.holder = nil
		return err
	}
	_, err = io.ReadFull(out, make([]byte, len(heldMessage)))
	return err
}

func (h *host) close() error {
	var errs []error
	if h.holder != nil {
		errs = append(errs, h.held.Close(), h.holder.Wait())
	}
	if h.back != nil {
		errs = append(errs, h.back.Close())
	}
	return errors.Join(errs...)
}
