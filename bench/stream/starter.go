package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/vhostnet/vhostnet/bench/peer"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// Processors of the native lane: the guest with its programs has one, the back-end
// the other.
const guestCore, backCore = 0, 1

// Back-ends.
const (
	vhostnet    = "vhostnet"
	netVhostTap = "net_vhost + net_tap"
	passt       = "passt"
	ovsTap      = "OVS-DPDK + tap"
	qemuTap     = "QEMU's own"
)

// starter starts sites.
type starter struct {
	o      *options
	loads  []load
	dir    string
	self   string
	binary string // vhostnet
	agent  string // the init of machines, "" if there are none
	assets *provision.Assets
	// tool is a command that runs a client or a server on this machine.
	tool  func(ctx context.Context, name string, args ...string) *exec.Cmd
	peers *provision.Peers // nil without
	kit   *peer.Kit        // nil without
	ovs   *provision.OVS   // nil without
	notes []string
	seq   int
}

// newStarter builds vhostnet and unpacks what is needed.
func newStarter(ctx context.Context, o *options, loads []load, progress io.Writer) (s *starter, err error) {
	s = &starter{o: o, loads: loads}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	log := func(format string, args ...any) { fmt.Fprintf(progress, format+"\n", args...) }
	if runtime.NumCPU() < 2 {
		s.notes = append(s.notes, "one core: guest and back-end share it")
	}
	if s.self, err = os.Executable(); err != nil {
		return s, fmt.Errorf("own program: %w", err)
	}
	if s.assets, err = provision.Ensure(ctx, provision.Options{Log: log}); err != nil {
		return s, err
	}
	s.tool = s.assets.Tool
	// Paths of Unix sockets have to be short.
	if s.dir, err = os.MkdirTemp("", "vn-"); err != nil {
		return s, err
	}
	// passt is somebody else when it opens its socket.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return s, err
	}
	if s.binary, err = qemutest.BuildBackend(ctx, s.dir); err != nil {
		return s, err
	}
	if s.agent, err = qemutest.BuildAgent(ctx, s.dir); err != nil {
		return s, err
	}
	if s.peers, err = provision.EnsurePeers(ctx, provision.Options{Log: log}); err != nil {
		s.notes = append(s.notes, "neither DPDK's testpmd nor passt nor Open vSwitch: "+err.Error())
		return s, nil
	}
	if s.ovs, err = provision.EnsureOVS(ctx, provision.Options{Log: log}); err != nil {
		s.notes = append(s.notes, "no Open vSwitch: "+err.Error())
	}
	// Open vSwitch takes as much as two testpmds.
	s.kit = peer.NewKit(s.peers, 3)
	if !s.kit.HugePages() {
		s.notes = append(s.notes, "DPDK without huge pages")
	}
	return s, nil
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

// versions are those of the others.
func (s *starter) versions() map[string]string {
	v := map[string]string{"QEMU": s.assets.QEMU.Version, "guest kernel": s.assets.KernelRelease}
	if s.peers != nil {
		v["DPDK"], v["passt"] = s.peers.DPDKVersion, s.peers.PasstVersion
	}
	if s.ovs != nil {
		v["Open vSwitch"] = s.ovs.Version
	}
	return v
}

// lane makes a lane of its name.
func (s *starter) lane(name string) *lane {
	if name == laneMachine {
		return &lane{name: name, backEnds: []string{qemuTap, vhostnet}, open: s.machine, alone: true, emulated: true}
	}
	l := &lane{name: name, backEnds: []string{netVhostTap, vhostnet, passt}, open: s.native, cores: 1}
	if s.kit == nil {
		l.backEnds = []string{vhostnet}
	}
	if s.ovs != nil {
		l.backEnds = append(l.backEnds, ovsTap)
	}
	return l
}

// folder makes one for the sockets of a site.
func (s *starter) folder() (string, error) {
	s.seq++
	dir := filepath.Join(s.dir, strconv.Itoa(s.seq))
	if err := os.Mkdir(dir, 0o777); err != nil {
		return "", err
	}
	// As said: passt is somebody else.
	return dir, os.Chmod(dir, 0o777)
}
