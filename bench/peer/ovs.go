package peer

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// ovs is Open vSwitch with a vhost-user port and a TAP. Its thread for vhost-user
// polls as long as it is not stopped.
type ovs struct {
	BackEnd
	database *Server
}

// ovsPort is its vhost-user port, and the name of the socket.
const ovsPort = "vhost0"

// OVS starts an Open vSwitch that learns which addresses are behind its vhost-user
// port and a TAP with the given name in at's network. It has no other state than
// what is in dir.
func (k *Kit) OVS(ctx context.Context, v *provision.OVS, dir, name string, at Place) (_ BackEnd, err error) {
	o := &ovs{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.end())
		}
	}()
	command := func(ctx context.Context, name string, args ...string) *exec.Cmd {
		cmd := v.Command(ctx, name, args...)
		cmd.Env = append(cmd.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir, "OVS_SYSCONFDIR="+dir)
		return cmd
	}
	database, socket := filepath.Join(dir, "conf.db"), filepath.Join(dir, "db.sock")
	if _, err := Run(ctx, "ovsdb-tool", command(ctx, "ovsdb-tool", "create", database, v.Schema()), at); err != nil {
		return nil, err
	}
	const quiet = "-vconsole:err"
	o.database, err = Serve("ovsdb-server", command(context.WithoutCancel(ctx), "ovsdb-server", database, "--remote=punix:"+socket, quiet), at)
	if err != nil {
		return nil, err
	}
	if err := awaitSocket(ctx, o.database.Process, socket); err != nil {
		return nil, err
	}
	set := func(args ...string) error {
		_, err := Run(ctx, "ovs-vsctl", command(ctx, "ovs-vsctl", append([]string{"--db=unix:" + socket, "--no-wait"}, args...)...), at)
		return err
	}
	if err := errors.Join(set("init"), set(ovsConfig(v.Drivers, max(at.Core, 0), k.HugePages())...)); err != nil {
		return nil, err
	}
	err = set("--", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev",
		"--", "add-port", "br0", ovsPort, "--", "set", "interface", ovsPort, "type=dpdkvhostuser",
		"--", "add-port", "br0", name, "--", "set", "interface", name, "type=tap")
	if err != nil {
		return nil, err
	}
	o.BackEnd, err = Daemon(ctx, "ovs-vswitchd", command(ctx, "ovs-vswitchd-dpdk", "unix:"+socket, quiet), filepath.Join(dir, ovsPort), at)
	if err != nil {
		return nil, err
	}
	return o, o.Pause(ctx)
}

// ovsConfig are the arguments of ovs-vsctl for a switch whose threads share a core.
func ovsConfig(drivers []string, core int, huge bool) []string {
	extra := []string{"--no-pci", "--in-memory", "--single-file-segments", "--no-telemetry", "--log-level", "4", "-m", strconv.Itoa(memoryMB)}
	if !huge {
		extra = append(extra, "--no-huge")
	}
	for _, d := range drivers {
		extra = append(extra, "-d", d)
	}
	mask := fmt.Sprintf("%#x", uint64(1)<<core)
	return []string{
		"set", "Open_vSwitch", ".", "other_config:dpdk-init=true", "other_config:dpdk-lcore-mask=" + mask,
		"other_config:pmd-cpu-mask=" + mask, `other_config:dpdk-extra="` + strings.Join(extra, " ") + `"`,
	}
}

// Resume lets it poll.
func (o *ovs) Resume(ctx context.Context) error {
	return errors.Join(o.BackEnd.Resume(ctx), unix.Kill(o.PID(), unix.SIGCONT))
}

// Pause stops the whole process: nothing else keeps it from polling.
func (o *ovs) Pause(ctx context.Context) error {
	return errors.Join(o.BackEnd.Pause(ctx), unix.Kill(o.PID(), unix.SIGSTOP))
}

func (o *ovs) Close() error { return o.end() }

func (o *ovs) end() error {
	var err error
	if o.BackEnd != nil {
		err = o.Resume(context.Background())
		err = errors.Join(err, o.BackEnd.Close())
	}
	if o.database != nil {
		err = errors.Join(err, o.database.Close())
	}
	return err
}
