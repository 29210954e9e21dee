package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// thisTree is the name of a vhostnet that was built for the measurement.
const thisTree = "vhostnet"

// starter starts back-ends and front-ends.
type starter struct {
	dir       string
	self      string
	vhostnets map[string]string // programs by name
	front     peer.Place
	back      peer.Place
	kit       *peer.Kit // nil without peers
	peers     *provision.Peers
	noTAP     bool
	notes     []string
	seq       int
}

// newStarter builds vhostnet and unpacks the peers.
func newStarter(ctx context.Context, o *options, progress io.Writer) (s *starter, err error) {
	s = &starter{
		vhostnets: o.Vhostnet,
		front:     peer.Place{Core: o.Cores[0], Nice: o.Nice},
		back:      peer.Place{Core: o.Cores[1], Nice: o.Nice},
	}
	if runtime.NumCPU() <= max(o.Cores[0], o.Cores[1]) {
		s.notes = append(s.notes, "fewer than two cores: front-end and back-end share one")
		s.front.Core, s.back.Core = 0, 0
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.self, err = os.Executable(); err != nil {
		return s, fmt.Errorf("own program: %w", err)
	}
	// Paths of Unix sockets have to be short.
	if s.dir, err = os.MkdirTemp("", "vn-bench-"); err != nil {
		return s, err
	}
	// passt is somebody else when it opens its socket.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return s, err
	}
	if len(s.vhostnets) == 0 {
		path, err := build(ctx, s.dir)
		if err != nil {
			return s, err
		}
		s.vhostnets = map[string]string{thisTree: path}
	}
	s.findPeers(ctx, o, progress)
	s.findNetworks()
	return s, nil
}

// findPeers does without peers if it has to.
func (s *starter) findPeers(ctx context.Context, o *options, progress io.Writer) {
	if o.NoPeers {
		s.notes = append(s.notes, "no other back-ends, as asked for")
		return
	}
	var err error
	s.peers, err = provision.EnsurePeers(ctx, provision.Options{
		Log: func(format string, args ...any) { fmt.Fprintf(progress, format+"\n", args...) },
	})
	if err != nil {
		s.notes = append(s.notes, "no other back-ends, and no virtio-user: "+err.Error())
		return
	}
	// Most testpmds are alive in a row with virtio-user: the reference, and one in
	// front of it, of the copying sink or passt, and of each vhostnet.
	s.kit = peer.NewKit(s.peers, 3+len(s.vhostnets))
	if !s.kit.HugePages() {
		s.notes = append(s.notes, "DPDK without huge pages")
	}
}

// findNetworks does without TAPs if it has to.
func (s *starter) findNetworks() {
	n, err := peer.NewNetwork()
	if err = errors.Join(err, n.Close()); err != nil {
		s.noTAP = true
		s.notes = append(s.notes, "no TAPs: "+err.Error())
	}
}

// build makes a vhostnet that has its symbols, for profilers.
func build(ctx context.Context, dir string) (string, error) {
	root, err := provision.RepositoryRoot()
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, "vhostnet")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", to, "./cmd/vhostnet")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return to, nil
}

// close leaves the machine as it was.
func (s *starter) close() error {
	var err error
	if s.kit != nil {
		err = s.kit.Close()
	}
	if s.dir == "" {
		return err
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// versions are those of the peers.
func (s *starter) versions() map[string]string {
	if s.peers == nil {
		return nil
	}
	return map[string]string{"DPDK": s.peers.DPDKVersion, "passt": s.peers.PasstVersion}
}

// possible are the rows that can be measured here.
func (s *starter) possible(rows []row) []row {
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool {
		name, _ := r.packed()
		return s.kit == nil && name == virtioUser || s.noTAP && r.Host == tapPort
	})
}

// names are the back-ends of a row, as far as they are here.
func (s *starter) names(r row) []string {
	return slices.DeleteFunc(r.backEnds(slices.Sorted(maps.Keys(s.vhostnets))), func(name string) bool {
		return s.kit == nil && (name == r.reference() || name == passt)
	})
}

// open starts the back-ends of a row with a front-end each.
func (s *starter) open(ctx context.Context, r row) (list []*contender, failed map[string]error) {
	for _, name := range s.names(r) {
		c, err := s.contender(ctx, r, name)
		if err != nil {
			if failed == nil {
				failed = map[string]error{}
			}
			failed[name] = errors.Join(err, c.Close())
			continue
		}
		list = append(list, c)
	}
	return list, failed
}

// contender starts one. What it returns with an error is to be closed.
func (s *starter) contender(ctx context.Context, r row, name string) (*contender, error) {
	c := &contender{name: name, cores: [2]int{s.front.Core, s.back.Core}}
	s.seq++
	dir := filepath.Join(s.dir, strconv.Itoa(s.seq))
	if err := os.Mkdir(dir, 0o777); err != nil {
		return c, err
	}
	// As said: passt is somebody else.
	if err := os.Chmod(dir, 0o777); err != nil {
		return c, err
	}
	at := s.back
	if r.Host == tapPort {
		n, err := peer.NewNetwork()
		if err != nil {
			return c, err
		}
		c.network, c.host, at.Net = n, r.Mode == "sink", n
	}
	var err error
	if name == bareLoop {
		if c.FrontEnd, err = s.bare(ctx, r, at); err != nil {
			return c, err
		}
		c.back = alone{c.FrontEnd}
		return c, at.Net.Guest(tapName, r.Mode == "echo")
	}
	if c.back, err = s.backEnd(ctx, r, name, dir, at); err != nil {
		return c, err
	}
	if r.Host == tapPort && name != passt {
		if err := at.Net.Guest(tapName, r.Mode == "echo"); err != nil {
			return c, err
		}
	}
	c.FrontEnd, err = s.frontEnd(ctx, r, c.back.Socket())
	return c, err
}

// tapName is the TAP of a back-end in its namespace.
const tapName = "bench0"

func (s *starter) backEnd(ctx context.Context, r row, name, dir string, at peer.Place) (b peer.BackEnd, err error) {
	socket := filepath.Join(dir, "vhostnet.sock")
	switch name {
	case netVhost:
		b, err = s.kit.NetVhost(ctx, dir, r.traffic(), at)
	case netVhostTap:
		b, err = s.kit.NetVhostTap(ctx, dir, tapName, at)
	case passt:
		b, err = s.kit.Passt(ctx, dir, at)
	case copying:
		b, err = peer.Daemon(ctx, name, exec.CommandContext(ctx, s.self, "serve", "--socket", socket), socket, at)
	default:
		cmd := exec.CommandContext(ctx, s.vhostnets[name], "serve", "--socket-path", socket, "--port", r.port(), "--log-level", "warn")
		b, err = peer.Daemon(ctx, name, cmd, socket, at)
	}
	if err != nil {
		return nil, err // and not an interface that holds a nil
	}
	return b, nil
}

// port is vhostnet's for a row.
func (r row) port() string {
	switch {
	case r.Host == tapPort:
		return "tap:" + tapName
	case r.Mode == "sink":
		return "null"
	case r.Mode == "source":
		return "source:" + strconv.Itoa(r.Size)
	}
	return "echo"
}

// bare has the processor that back-ends have.
func (s *starter) bare(ctx context.Context, r row, at peer.Place) (peer.FrontEnd, error) {
	return peer.Driver(ctx, exec.CommandContext(ctx, s.self, "bare", "--tap", tapName, "--mode", r.Mode, "--size", strconv.Itoa(r.Size)), at)
}

func (s *starter) frontEnd(ctx context.Context, r row, socket string) (peer.FrontEnd, error) {
	name, packed := r.packed()
	if name == virtioUser {
		return s.kit.VirtioUser(ctx, socket, r.traffic(), peer.Rings{Packed: packed, InOrder: true, Mergeable: true}, s.front)
	}
	args := []string{"drive", "--socket", socket, "--mode", r.Mode, "--size", strconv.Itoa(r.Size)}
	if name == blocking {
		args = append(args, "--blocking")
	}
	if packed {
		args = append(args, "--packed")
	}
	return peer.Driver(ctx, exec.CommandContext(ctx, s.self, args...), s.front)
}
