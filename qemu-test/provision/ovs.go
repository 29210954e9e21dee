package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// ovsRecipe is the version of what EnsureOVS builds.
const ovsRecipe = 1

// ovsPrograms are the programs of OVS that measurements need, by their place in the
// packages. The vswitchd with DPDK is not where the other one is.
var ovsPrograms = []string{
	"usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk", "usr/sbin/ovsdb-server", "usr/bin/ovsdb-tool", "usr/bin/ovs-vsctl",
}

// ovsSchema is the form of its configuration.
const ovsSchema = "usr/share/openvswitch/vswitch.ovsschema"

// ovsDrivers are the drivers of DPDK that its vhost-user ports need.
var ovsDrivers = []string{"librte_mempool_ring"}

// OVS says where Open vSwitch with DPDK is.
type OVS struct {
	Recipe int `json:"recipe"`
	// Prefix has the programs and what they need, Drivers are DPDK's.
	Prefix  string   `json:"prefix"`
	Drivers []string `json:"drivers"`
	Version string   `json:"version"`
}

// EnsureOVS unpacks Open vSwitch with DPDK into the cache if it is not there. It
// needs nothing of what Ensure brings.
func EnsureOVS(ctx context.Context, o Options) (*OVS, error) {
	unlock, err := o.open()
	if err != nil {
		return nil, err
	}
	defer unlock()
	stamp := filepath.Join(o.Cache, "ovs.json")
	if !o.Refresh {
		if v := loadOVS(stamp); v != nil {
			return v, nil
		}
	}
	start := time.Now()
	v, err := fillOVS(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("provision: Open vSwitch: %w", err)
	}
	o.Log("Open vSwitch: %.1f s", time.Since(start).Seconds())
	return v, save(stamp, v)
}

func fillOVS(ctx context.Context, o Options) (*OVS, error) {
	source, err := machineSource()
	if err != nil {
		return nil, err
	}
	stable, err := o.bookworm(ctx, source)
	if err != nil {
		return nil, err
	}
	v := &OVS{Recipe: ovsRecipe, Prefix: filepath.Join(o.Cache, "ovs")}
	if v.Version, err = stable.version(ctx, "openvswitch-switch-dpdk", "bookworm"); err != nil {
		return nil, err
	}
	files, err := stable.closure(ctx, "bookworm", "openvswitch-switch-dpdk", "librte-meta-mempool")
	if err != nil {
		return nil, err
	}
	return v, replaceDir(v.Prefix, func(dir string) error {
		all := filepath.Join(dir, "all")
		if err := os.Mkdir(all, 0o755); err != nil {
			return err
		}
		if err := unpack(ctx, all, files); err != nil {
			return err
		}
		if v.Drivers, err = keep(all, dir, v.Prefix, ovsPrograms, ovsDrivers, ovsSchema); err != nil {
			return err
		}
		return os.RemoveAll(all)
	})
}

func loadOVS(stamp string) *OVS {
	raw, err := os.ReadFile(stamp)
	if err != nil {
		return nil
	}
	var v OVS
	if json.Unmarshal(raw, &v) != nil || v.Recipe != ovsRecipe {
		return nil
	}
	files := append([]string{v.Schema()}, v.Drivers...)
	for _, p := range ovsPrograms {
		files = append(files, filepath.Join(v.Prefix, p))
	}
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return nil
		}
	}
	return &v
}

// Schema is the file with the form of the configuration.
func (v *OVS) Schema() string { return filepath.Join(v.Prefix, ovsSchema) }

// Command is a command that runs a program of Open vSwitch.
func (v *OVS) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := name
	for _, p := range ovsPrograms {
		if filepath.Base(p) == name {
			path = filepath.Join(v.Prefix, p)
		}
	}
	return loaderCommand(ctx, v.Prefix, path, args...)
}
